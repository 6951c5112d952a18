from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpu_train.capture.openfiles import any_open_for_writing, world_size_of


def test_files_open_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(b"x")
    found = path.stat()
    inode = [(found.st_dev, found.st_ino)]
    with open(path, "rb"):
        assert not any_open_for_writing({os.getpid()}, inode)
    with open(path, "ab"):
        assert any_open_for_writing({os.getpid(), 2**30}, inode)
        assert not any_open_for_writing({os.getpid()}, [(found.st_dev, 2**40)])
        assert not any_open_for_writing(set(), inode)


def test_how_many_ranks_a_launcher_told_of() -> None:
    sizes = [("WORLD_SIZE", "8"), ("OMPI_COMM_WORLD_SIZE", "4"), ("WORLD_SIZE", "many"), ("WORLD_SIZES", "16")]
    waiting = [sys.executable, "-c", "input()"]
    started = [
        subprocess.Popen(waiting, env={**os.environ, name: value}, stdin=subprocess.PIPE) for name, value in sizes
    ]  # fmt: skip
    try:
        assert [world_size_of({one.pid}) for one in started] == [8, 4, 0, 0]
        assert world_size_of({one.pid for one in started}) == 8
        assert world_size_of({2**30}) == 0
    finally:
        for one in started:
            one.communicate(b"\n")
