"""Code and data versions from the command line."""

import json
import os
import tarfile
from pathlib import Path

import pytest

import gpu_train


@pytest.fixture
def project(program) -> Path:
    """A small project in the working folder, recorded twice; the folder as it is at last."""
    (program.cwd / "train.py").write_text("print(1)\n")
    (program.cwd / "lib").mkdir()
    (program.cwd / "lib" / "empty").mkdir()
    (program.cwd / "run.sh").write_text("#!/bin/sh\n")
    (program.cwd / "run.sh").chmod(0o755)
    (program.cwd / "link").symlink_to("train.py")
    with gpu_train.Workspace.open(program.home) as workspace:
        workspace.code.snapshot(program.cwd)
        (program.cwd / "train.py").write_text("print(2)\n")
        (program.cwd / "new.py").write_text("")
        workspace.code.snapshot(program.cwd)
    return program.cwd


def test_no_code_yet(program) -> None:
    assert program("code").stderr.startswith("no code versions yet: `gpu-train run")


@pytest.mark.usefixtures("project")
def test_code_lists_shows_compares_restores_and_exports(program, tmp_path: Path) -> None:
    listed = json.loads(program("code", "-o", "json").stdout)["code"]
    new, old = (row["code"] for row in listed)
    assert [row["files"] for row in listed] == [3, 2]
    assert program("code", "list", "-q").stdout.split() == [new, old]
    assert json.loads(program("code", "show", new[:6], "-o", "json").stdout)["path"] == str(program.cwd)
    changes = json.loads(program("code", "diff", old, new, "-o", "json").stdout)["changes"]
    assert changes == [{"path": "new.py", "change": "added"}, {"path": "train.py", "change": "changed"}]
    assert program("code", "diff", new, new).stderr == "no difference\n"

    assert f"restored code {old}, 2 files" in program("code", "--restore", old, "--dest", tmp_path / "a").stderr
    program("code", "restore", "--dest", tmp_path / "b", old)
    for there in (tmp_path / "a", tmp_path / "b"):
        assert (there / "train.py").read_text() == "print(1)\n"
        assert os.access(there / "run.sh", os.X_OK)
        assert (there / "lib" / "empty").is_dir()
        assert os.readlink(there / "link") == "train.py"
    assert "is not empty" in program("code", "--restore", new, "--dest", tmp_path / "a", code=1).stderr
    program("code", f"--restore={new}", "--dest", tmp_path / "a", "--overwrite")
    assert (tmp_path / "a" / "train.py").read_text() == "print(2)\n"

    tarball = Path(program("code", "export", old).stdout.strip())
    with tarfile.open(tarball) as archive:
        assert "train.py" in archive.getnames()
    assert "code version 'zz'" in program("code", "show", "zz", code=3).stderr


def test_data_in_both_forms(program) -> None:
    assert "data --register PATH --name NAME" in program("data").stderr
    folder = program.cwd / "train"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "b.txt").write_text("bb")
    first = json.loads(program("data", "--register", "train", "--name", "imdb", "-o", "json").stdout)
    assert (first["name"], first["num_files"], first["size_bytes"]) == ("imdb", 2, 3)
    again = program("data", "register", "train", "--name", "imdb")
    assert f"imdb@{first['version']} was registered before" in again.stderr
    assert program("data", "verify", "imdb").stderr.startswith(f"{folder} is imdb@{first['version']}: 2 files")

    (folder / "b.txt").write_text("xx")
    wrong = program("data", "verify", "imdb", "-o", "json", code=4)
    assert json.loads(wrong.stdout)["changes"] == [{"path": "b.txt", "change": "changed"}]
    assert "register it again" in wrong.stderr
    second = json.loads(program("data", "--name", "imdb", "--register=train", "-o", "json").stdout)
    changed = program("data", "diff", f"imdb@{first['version']}", f"imdb@{second['version']}")
    assert changed.stdout.splitlines() == ["CHANGE  PATH", "M       b.txt"]

    assert program("data", "-q").stdout.split() == [f"imdb@{second['version']}", f"imdb@{first['version']}"]
    shown = json.loads(program("data", "show", "imdb", "-o", "json").stdout)
    assert shown["version"] == second["version"]
    files = json.loads(program("data", "show", "imdb", "--files", "-o", "json").stdout)["files"]
    assert [file["path"] for file in files] == ["a.txt", "b.txt"]
    assert "no data named 'imbd'" in program("data", "show", "imbd", code=3).stderr
    assert "Missing option '--name'" in program("data", "--register", "train", code=2).stderr


def test_code_says_what_could_not_be_stored(program) -> None:
    (program.cwd / "train.py").write_text("print(1)")
    os.mkfifo(program.cwd / "pipe")
    with gpu_train.Workspace.open(program.home) as workspace:
        workspace.code.snapshot(program.cwd)
    shown = program("code", "show", program("code", "-q").stdout.strip()).stdout
    assert "not stored  1, no plain files" in shown
    assert "  pipe\n" in shown
    assert "left out" not in shown
