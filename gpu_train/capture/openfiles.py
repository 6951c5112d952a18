"""Which files processes have open for writing, as /proc tells."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from gpu_train.process import PROC


def any_open_for_writing(pids: Collection[int], inodes: Collection[tuple[int, int]]) -> bool:
    """Whether one of the processes has one of the files (device, inode) open for writing."""
    wanted = set(inodes)
    return any(_writes(pid, wanted) for pid in pids)


def _writes(pid: int, wanted: set[tuple[int, int]]) -> bool:
    folder = f"{PROC}/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return False  # it ended, or belongs to somebody else
    for number in numbers:
        try:
            found = os.stat(f"{folder}/{number}")
            if (found.st_dev, found.st_ino) in wanted and _flags(pid, number) & os.O_ACCMODE != os.O_RDONLY:
                return True
        except OSError:
            continue
    return False


def _flags(pid: int, number: str) -> int:
    for line in Path(f"{PROC}/{pid}/fdinfo/{number}").read_bytes().splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8)
    return os.O_RDONLY
