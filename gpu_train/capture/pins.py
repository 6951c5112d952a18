"""Where a job's pins lie, and how much of the disk they alone hold.

Most lie in the job's own folder; where checkpoints are on another file system, in a hidden folder there, which is noted
in the job's control folder so that it is found again after a crash.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_train.active import append_line
from gpu_train.capture.candidate import ABOUT
from gpu_train.capture.tail import Tail
from gpu_train.capture.watched import folders_in
from gpu_train.home import Home
from gpu_train.size import Size, bytes_of

BLOCK_BYTES = 512
"""What `st_blocks` counts, whatever the file system's own blocks are (stat(2))."""

_NOTES = "pin-places.jsonl"


@dataclass(frozen=True, slots=True)
class PinUse:
    """What a job's pins hold.

    Attributes:
        files: how many files are pinned.
        held_bytes: of those that have no other name: what the disks would get back without the pins.
    """

    files: int = 0
    held_bytes: int = 0


def places_of(home: Home, job_id: str) -> list[Path]:
    """The folders with a job's pins, its own first."""
    notes = Tail(home.control(job_id) / _NOTES)
    return [home.pins(job_id), *(Path(line["path"]) for line, _ in notes.read() if isinstance(line.get("path"), str))]


def note_place(home: Home, job_id: str, place: Path) -> None:
    """Remember a folder with pins on another file system."""
    if place not in places_of(home, job_id):
        with suppress(OSError):  # a full disk: it is only looked for after a crash
            append_line(home.control(job_id) / _NOTES, {"path": str(place)})


@dataclass(slots=True)
class _File:
    """A pinned file: its device, what it takes of the disk, how many names it has, and how many of them are ours."""

    device: int
    size_bytes: int
    names: int
    ours: int = 0

    @property
    def is_held(self) -> bool:
        """Whether it has no other name. A copy never has one."""
        return self.ours >= self.names


class Holdings:
    """What a job's pins hold at one moment, each candidate's and what the sentry has caught."""

    def __init__(self, places: Iterable[Path]) -> None:
        """Look into folders with pins (`places_of`)."""
        self._files: dict[tuple[int, int], _File] = {}
        self._pins: dict[Path, set[tuple[int, int]]] = defaultdict(set)
        for place in places:
            for pin in folders_in(place):
                for folder, _, names in os.walk(pin):
                    for name in names if names != [ABOUT] else ():
                        self._count(pin, f"{folder}/{name}")

    @property
    def use(self) -> PinUse:
        """In numbers."""
        return PinUse(len(self._files), self.held_bytes())

    def held_bytes(self, device: int | None = None) -> int:
        """What the pins alone hold, on one file system or all."""
        return sum(f.size_bytes for f in self._files.values() if f.is_held and device in (None, f.device))

    def held_by(self, pin: Path, device: int | None = None) -> int:
        """What one candidate's pin holds of that, alone or with what the sentry has caught."""
        files = (self._files[inode] for inode in self._pins.get(pin, ()))
        return sum(f.size_bytes for f in files if f.is_held and device in (None, f.device))

    def _count(self, pin: Path, path: str) -> None:
        with suppress(OSError):  # it was freed this moment
            found = os.stat(path, follow_symlinks=False)
            inode = found.st_dev, found.st_ino
            file = self._files.setdefault(inode, _File(found.st_dev, found.st_blocks * BLOCK_BYTES, 0))
            file.names = found.st_nlink
            file.ours += 1
            self._pins[pin].add(inode)


def bound_bytes(bound: Size, holdings: Holdings, places: Iterable[Path], save_bytes: int) -> int:
    """What pins may hold by a setting; "auto" is half of what would be free without them, but no less than one save.

    A trainer that has just replaced a checkpoint on a full disk would else lose it, however soon it is stored.
    """
    said = bytes_of(bound)
    if said is not None:
        return said
    free: dict[int, int] = {}
    for place in places:
        with suppress(OSError):
            disk = os.statvfs(place)
            free[place.stat().st_dev] = disk.f_bavail * disk.f_frsize
    return max((sum(free.values()) + holdings.held_bytes()) // 2, save_bytes)
