"""Mounting from the command line."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

import gpu_train_fuse


@pytest.fixture
def mountable() -> None:
    try:
        gpu_train_fuse.check()
    except gpu_train_fuse.MountUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("mountable")
def test_mount_read_list_and_umount(trained, tmp_path: Path) -> None:
    program = trained.program
    there = tmp_path / "mnt"
    try:
        assert program.spawned("mount", "demo", there).stdout == f"{there}\n"
        state = there / "checkpoints" / "checkpoint-200" / "trainer_state.json"
        assert state.read_bytes() == trained.files["checkpoint-200/trainer_state.json"]
        assert json.loads((there / "best" / "trainer_state.json").read_text()) == {"global_step": 1000}
        listed = json.loads(program("mount", "-o", "json").stdout)["mounts"]
        mine = [row for row in listed if row["mountpoint"] == str(there)]
        assert [(row["target"], row["state"]) for row in mine] == [("demo-abcdef", "live")]
    finally:
        said = program("umount", "demo").stderr
    assert said == f"unmounted {there}\n"
    assert list(there.iterdir()) == []


@pytest.mark.usefixtures("mountable")
def test_what_cannot_be_mounted_or_unmounted(trained, tmp_path: Path) -> None:
    program = trained.program
    assert "no job 'nothing'" in program("mount", "nothing", tmp_path / "x", code=3).stderr
    assert "'demo' is no mount" in program("umount", tmp_path, code=3).stderr.replace(str(tmp_path), "demo")
    assert "name a mount point or a job" in program("umount", code=2).stderr


@pytest.mark.usefixtures("mountable")
def test_in_the_foreground_it_says_the_same_and_ends_when_interrupted(trained, tmp_path: Path) -> None:
    program, there = trained.program, tmp_path / "mnt"
    line = [str(program.script), "mount", "demo", str(there), "-f", "-o", "json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=program.environment()) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.endswith("}\n"):
                part = process.stdout.readline()
                assert part, "it ended without a word"
                text += part
            told = json.loads(text)
            assert (told["mountpoint"], told["target"], told["pid"]) == (str(there), "demo-abcdef", process.pid)
            assert (there / "latest").is_dir()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    assert process.returncode == 0
    assert list(there.iterdir()) == []
