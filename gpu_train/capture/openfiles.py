"""What processes do and are, as /proc tells: which files they have open for writing, how many ranks they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from gpu_train.process import PROC

WORLD_SIZES = (b"WORLD_SIZE", b"OMPI_COMM_WORLD_SIZE", b"PMI_SIZE")
"""Variables of torchrun and what is like it, of Open MPI, and of MPICH and Intel MPI."""


class Processes:
    """The processes of a job at a moment; they are listed once, if at all."""

    def __init__(self, listed: Callable[[], set[int]]) -> None:
        self._list = listed
        self._pids: set[int] | None = None

    def write(self, inodes: Iterable[tuple[int, int]]) -> bool:
        """Whether one of them has one of the files (device, inode) open for writing."""
        return any_open_for_writing(self._listed(), set(inodes))

    def world_size(self) -> int:
        """How many ranks they say there are; 0 when none says it."""
        return world_size_of(self._listed())

    def _listed(self) -> set[int]:
        if self._pids is None:
            self._pids = self._list()
        return self._pids


def any_open_for_writing(pids: Collection[int], inodes: Collection[tuple[int, int]]) -> bool:
    """Whether one of the processes has one of the files (device, inode) open for writing."""
    wanted = set(inodes)
    return any(_opened(pid, wanted, writing=True) for pid in pids)


def any_open(pids: Collection[int], inodes: Collection[tuple[int, int]]) -> bool:
    """Whether one of the processes has one of the files (device, inode) open at all."""
    wanted = set(inodes)
    return any(_opened(pid, wanted, writing=False) for pid in pids)


def world_size_of(pids: Collection[int]) -> int:
    """How many ranks the processes' launcher told them that there are; 0 when it told none of them."""
    return max(map(_world_size, pids), default=0)


def _world_size(pid: int) -> int:
    try:
        words = Path(f"{PROC}/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return 0  # it ended, or belongs to somebody else
    sizes = (value for name, _, value in (word.partition(b"=") for word in words) if name in WORLD_SIZES)
    return max((int(size) for size in sizes if size.isdigit() and len(size) < 8), default=0)


def _opened(pid: int, wanted: set[tuple[int, int]], *, writing: bool) -> bool:
    folder = f"{PROC}/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return False  # it ended, or belongs to somebody else
    for number in numbers:
        try:
            found = os.stat(f"{folder}/{number}")
            if (found.st_dev, found.st_ino) not in wanted:
                continue
            if not writing or _flags(pid, number) & os.O_ACCMODE != os.O_RDONLY:
                return True
        except OSError:
            continue
    return False


def _flags(pid: int, number: str) -> int:
    for line in Path(f"{PROC}/{pid}/fdinfo/{number}").read_bytes().splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8)
    return os.O_RDONLY
