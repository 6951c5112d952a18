"""Users other than root, and users other than the one who mounts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_train
import gpu_train_cas
import gpu_train_fuse

AS_NOBODY = Path(__file__).parents[1] / "kit" / "as_nobody.sh"
CHILD = Path(__file__).parent / "nobody_child.py"
PACKAGES = [gpu_train, gpu_train_cas, gpu_train_fuse]
CODE = {Path(sys.prefix), Path(sys.base_prefix), CHILD.parent, *(Path(p.__file__).parents[1] for p in PACKAGES)}


@pytest.fixture
def as_nobody(tmp_path):
    """Runs a command as the user nobody, who gets into the given folders; skips where that cannot be done."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        pytest.skip("needs root, unshare and setpriv to become nobody")
    (tmp_path / "aside").mkdir()

    def run(*command, folders=()):
        line = ["bash", AS_NOBODY, tmp_path / "aside", *folders, "--", *command]
        return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)

    tried = run("true")
    if tried.returncode:
        pytest.skip(f"nobody cannot be become here: {tried.stderr.strip()}")
    return run


@pytest.mark.usefixtures("mount")
def test_a_user_without_rights_mounts_crashes_repairs_and_unmounts(as_nobody, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    shutil.chown(own, "nobody", "nogroup")
    done = as_nobody("env", f"HOME={own}", sys.executable, "-B", CHILD, own, folders=[*CODE, own])
    assert (done.returncode, done.stderr) == (0, "")


def test_others_see_nothing_unless_allowed_and_then_what_the_modes_say(as_nobody, lab, mount, tmp_path):
    source = lab.folder("c", {"open.txt": b"for all", "closed.txt": b"for one"})
    (source / "open.txt").chmod(0o644)
    (source / "closed.txt").chmod(0o600)
    lab.checkpoint(lab.job("run"), "checkpoint-1", source)
    said = {}
    for name, options in (("alone", {}), ("shared", {"allow_other": True})):
        place = tmp_path / name
        mounted = mount("run", place / "m", **options)
        for file in ("open.txt", "closed.txt"):
            done = as_nobody("cat", mounted / "checkpoints" / "checkpoint-1" / file, folders=[place])
            said[name, file] = done.stdout or done.stderr.rpartition(": ")[2].strip()
    assert said == {
        ("alone", "open.txt"): "Permission denied", ("alone", "closed.txt"): "Permission denied",
        ("shared", "open.txt"): "for all", ("shared", "closed.txt"): "Permission denied",
    }  # fmt: skip
