"""How long there is room: what a job still writes, against what the disks have left."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_train.saves import Saves, saves_of
from gpu_train.size import size_text
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace

STORE = "store"
PLAIN = "checkpoints"
FEW = 3
"""Fewer saves than this are too few, also when nothing says how many are to come."""


@dataclass(frozen=True, slots=True)
class Disk:
    """One file system that a job fills, and how long it lasts if things go on as they did.

    Attributes:
        holds: what of the job lies on it: "store", "checkpoints" (the trainer's plain files) or both.
        path: where, the first of these.
        total_bytes, free_bytes: its size, and what may still be written.
        save_bytes: what one save takes of it for good; None before the first.
        saves_left: how many more saves fit; None when saves take nothing for good.
        full_in_s: when it is full, in seconds from now, with what the other running jobs write; None when never.
        lasts: whether it lasts to the end of the run; None when nothing says how long that is.
    """

    holds: tuple[str, ...]
    path: Path
    total_bytes: int
    free_bytes: int
    save_bytes: int | None = None
    saves_left: int | None = None
    full_in_s: float | None = None
    lasts: bool | None = None

    @property
    def is_short(self) -> bool:
        """Whether it is too small for what is to come, as far as that is known."""
        if self.lasts is not None:
            return not self.lasts
        return self.saves_left is not None and self.saves_left < FEW


@dataclass(frozen=True, slots=True)
class Room:
    """How a job saves (None before its first checkpoint), and the disks that it fills."""

    saves: Saves | None
    disks: tuple[Disk, ...]


def room_for(workspace: Workspace, job: Job) -> Room:
    """How long there is room for a job, by its last checkpoints and those of the other running jobs."""
    saves = saves_of(workspace, job) if job.is_live else None
    disks = list(_disks(workspace, job))
    if saves is None:
        return Room(None, tuple(disk for _, disk in disks))
    others = _others(workspace, job)
    return Room(saves, tuple(_forecast(disk, saves, others.get(device, 0.0)) for device, disk in disks))


def _disks(workspace: Workspace, job: Job) -> Iterator[tuple[int, Disk]]:
    """The file systems by their device numbers; one that holds both is one."""
    found: dict[int, list[tuple[str, Path]]] = {}
    for holds, path in ((STORE, workspace.home.packs), (PLAIN, workspace.home.checkpoints(job.id))):
        with suppress(OSError):  # it is not there any more, or was never made
            found.setdefault(os.stat(path).st_dev, []).append((holds, path))
    for device, parts in found.items():
        with suppress(OSError):
            room = os.statvfs(parts[0][1])
            total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
            yield device, Disk(tuple(holds for holds, _ in parts), parts[0][1], total, free)


def _takes(disk: Disk, saves: Saves) -> float:
    """Bytes that one save takes of a disk for good."""
    stored = saves.stored_bytes if STORE in disk.holds else 0
    return stored + (saves.plain_bytes * saves.plain_share if PLAIN in disk.holds else 0)


def _others(workspace: Workspace, job: Job) -> dict[int, float]:
    """Bytes a second that the other running jobs take of each device."""
    rates: dict[int, float] = {}
    for other in workspace.jobs.live():
        saves = saves_of(workspace, other) if other.id != job.id else None
        if saves is not None and saves.interval_s:
            for device, disk in _disks(workspace, other):
                rates[device] = rates.get(device, 0.0) + _takes(disk, saves) / saves.interval_s
    return rates


def _forecast(disk: Disk, saves: Saves, others: float) -> Disk:
    """What a disk will see; `others` is what else is written to it, in bytes a second."""
    interval_s = saves.interval_s or 0.0
    takes = _takes(disk, saves)
    each = takes + others * interval_s
    # A trainer that rotates writes the new files before it deletes the old ones.
    passing = saves.plain_bytes if PLAIN in disk.holds and saves.plain_share < 1 else 0
    if disk.free_bytes < passing:
        fit: int | None = 0
    else:
        fit = math.floor((disk.free_bytes - passing) / each) if each >= 1 else None
    full_in_s = None if fit is None else fit * interval_s
    lasts = None if saves.left is None else fit is None or fit >= saves.left
    return Disk(disk.holds, disk.path, disk.total_bytes, disk.free_bytes, round(takes), fit, full_in_s, lasts)


def shortage(room: Room) -> list[str]:
    """In words, which disks are too small for what is to come, and what to do; empty when none is."""
    return [_in_words(disk, room.saves) for disk in room.disks if disk.is_short and room.saves is not None]


def _in_words(disk: Disk, saves: Saves) -> str:
    fit = "not even one more save" if not disk.saves_left else f"{disk.saves_left} more saves"
    if saves.left is None:
        need = "nothing says how many are to come"
    else:
        need = f"{saves.left} are to come until step {saves.total_steps}"
    takes = saves.plain_bytes if not disk.save_bytes else disk.save_bytes
    return (
        f"the disk with {disk.path} has {size_text(disk.free_bytes)} left, room for {fit} of {size_text(takes)}, "
        f"but {need}; free some, save less often or keep fewer (`gpu-train checkpoints prune --help`)"
    )
