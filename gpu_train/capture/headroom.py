"""How much of a disk capture leaves free while a trainer runs: what its next save needs must not go by our own use.

What a save needs is told by the last ones. On the file systems that the trainer writes checkpoints to that much is
kept, on the store's own a little; and what the agents of other running jobs keep there. Storing stays above all of it.
Pins are given up for what the save at hand still needs: what it has written already is not wanted a second time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_train.capture.board import read_board
from gpu_train.capture.candidate import Candidate
from gpu_train.saves import largest_of, largest_save_bytes
from gpu_train.size import Size, bytes_of
from gpu_train.step import step_of
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace

FLOOR_SHARE = 0.01
FLOOR_BYTES = 1 << 30
"""Beside a save a hundredth of a disk is kept, at most so much: for logs, rows, and a save that has grown."""

LAST_BYTES = 16 << 20
"""At most so much is kept when no trainer is left to protect: rows and logs still need a little."""

PAUSE_S = 2.0
"""So long after its last change a save may still be about to delete the one that it replaces."""

UNKNOWN_BYTES = 1 << 60
"""What is left where the system does not say."""

OTHERS_S = 5.0
"""How often other jobs are asked."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A disk on which too little is free.

    Attributes:
        path, device: where.
        free_bytes: what is free.
        kept_bytes: what is to stay free.
        wants_bytes: what there must be beside that.
    """

    path: Path
    device: int
    free_bytes: int
    kept_bytes: int
    wants_bytes: int = 0

    @property
    def missing_bytes(self) -> int:
        """What would have to become free."""
        return self.kept_bytes + self.wants_bytes - self.free_bytes


class NoRoom(Exception):
    """Storing stopped where it would have gone on into what is kept free."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A checkpoint that was written lately: when it was first seen and changed last (monotonic), its step and size."""

    first_seen: float
    changed: float
    step: int | None
    size_bytes: int


class Headroom:
    """What one job's agent leaves free. For the agent's thread; `shortage` and `left_bytes` may be asked by any."""

    def __init__(self, workspace: Workspace, job: Job, reserve: Size) -> None:
        self._workspace = workspace
        self._job = job
        self._said_bytes = bytes_of(reserve)
        self._store = workspace.home.packs
        self._trainers = {device_of(root): root for root in (workspace.home.checkpoints(job.id),)}
        self._stored_bytes = 0
        self._seen_bytes = 0
        self._lately: dict[tuple[str, float], _Written] = {}
        self._others: dict[int, int] = {}
        self._asked = -OTHERS_S
        self.is_ended = False
        self.stored()
        self._kept_bytes = self._kept(device_of(self._store), self._store)

    @property
    def save_bytes(self) -> int:
        """What is kept for the trainer on each file system that it writes checkpoints to."""
        return self._own(next(iter(self._trainers.values())), is_trainers=True)

    def stored(self) -> None:
        """A checkpoint was stored, or entered as gone: see what saves need by now."""
        if self._said_bytes is None:
            self._stored_bytes = largest_save_bytes(self._workspace, self._job)

    def also_on(self, place: Path) -> None:
        """The trainer writes to the file system of that folder too."""
        self._trainers.setdefault(device_of(place), place)

    def watch(self, written: Iterable[Candidate], waiting: Iterable[Candidate]) -> None:
        """Take note of what is being written, and of what is whole but not stored yet."""
        now = time.monotonic()
        self._lately = {key: one for key, one in self._lately.items() if now - one.changed < PAUSE_S}
        waiting = list(waiting)
        for candidate in (*written, *(c for c in waiting if now - c.changed < PAUSE_S)):
            if candidate.absent_since is None:
                self._lately[candidate.name, candidate.first_seen] = _Written(
                    candidate.first_seen, candidate.changed, step_of(candidate.name), candidate.size_bytes
                )
        self._seen_bytes = largest_of((c.name, step_of(c.name), c.size_bytes) for c in waiting)
        if now - self._asked >= OTHERS_S:
            self._asked = now
            self._others = kept_for_jobs(self._workspace, besides=self._job.id)
        self._kept_bytes = self._kept(device_of(self._store), self._store)

    def shortage(self, wants_bytes: int = 0) -> Shortage | None:
        """What the store lacks to take so many bytes; None when there is room."""
        return self._short(self._store, self._kept_bytes, wants_bytes)

    def left_bytes(self) -> int:
        """What the store may still take; negative when less is free than there should be."""
        free_bytes = free_bytes_at(self._store)
        return UNKNOWN_BYTES if free_bytes is None else free_bytes - self._kept_bytes

    def squeeze(self, place: Path) -> Shortage | None:
        """What the trainer lacks for its next save, or the rest of the one at hand, where pins lie."""
        device = device_of(place)
        if device not in self._trainers or self.is_ended:
            return None
        floor = min(_floor(place), self._own(place, is_trainers=True))
        kept = max(floor, self._own(place, is_trainers=True) - self._written_bytes())
        return self._short(place, kept + self._others.get(device, 0))

    def is_cramped(self, place: Path) -> bool:
        """Whether the trainer's next save, or the rest of the one at hand, does not fit where pins lie."""
        device, free_bytes = device_of(place), free_bytes_at(place)
        if device not in self._trainers or self.is_ended or free_bytes is None:
            return False
        return free_bytes < self._next_save_bytes() - self._written_bytes()

    def spare_bytes(self) -> int:
        """What copies of the trainer's files leave free."""
        return max(self._kept(device, path) for device, path in self._trainers.items())

    def _short(self, path: Path, kept_bytes: int, wants_bytes: int = 0) -> Shortage | None:
        free_bytes = free_bytes_at(path)
        if free_bytes is None or free_bytes >= kept_bytes + wants_bytes:
            return None
        return Shortage(path, device_of(path), free_bytes, kept_bytes, wants_bytes)

    def _kept(self, device: int, path: Path) -> int:
        return self._own(path, is_trainers=device in self._trainers) + self._others.get(device, 0)

    def _own(self, path: Path, *, is_trainers: bool) -> int:
        """What is kept of a file system for this job."""
        floor = _floor(path)
        if self.is_ended or not is_trainers:
            floor = min(floor, LAST_BYTES)
            return floor if self._said_bytes is None else min(floor, self._said_bytes)
        return self._next_save_bytes() + (floor if self._said_bytes is None else 0)

    def _next_save_bytes(self) -> int:
        if self._said_bytes is not None:
            return self._said_bytes
        return max(self._stored_bytes, self._seen_bytes)

    def _written_bytes(self) -> int:
        """What the save at hand has written, or the last one, while it may still be about to replace another."""
        newest = max(self._lately.values(), key=lambda one: one.first_seen, default=None)
        if newest is None:
            return 0
        return sum(
            one.size_bytes for one in self._lately.values()
            if one is newest or (one.step is not None and one.step == newest.step)
        )  # fmt: skip


def kept_for_jobs(workspace: Workspace, besides: str = "") -> dict[int, int]:
    """What agents of running jobs keep free for their trainers, by the devices' numbers."""
    kept: dict[int, int] = {}
    for job in workspace.jobs.live():
        notice = read_board(workspace.home.control(job.id)) if job.id != besides else None
        if notice is not None and notice.is_current and notice.reserve_bytes:
            device = device_of(workspace.home.checkpoints(job.id))
            kept[device] = kept.get(device, 0) + notice.reserve_bytes
    return kept


def free_bytes_at(path: Path) -> int | None:
    """What may be written to the file system of a path, which need not be there yet; None when nobody knows."""
    with suppress(OSError):
        disk = os.statvfs(_existing(path))
        return disk.f_bavail * disk.f_frsize
    return None


def _floor(path: Path) -> int:
    with suppress(OSError):
        disk = os.statvfs(_existing(path))
        return min(FLOOR_BYTES, int(disk.f_blocks * disk.f_frsize * FLOOR_SHARE))
    return 0


def device_of(path: Path) -> int:
    """The number of the file system of a path, which need not be there yet; 0 when nobody knows."""
    with suppress(OSError):
        return os.stat(_existing(path)).st_dev
    return 0


def _existing(path: Path) -> Path:
    return next((one for one in (path, *path.parents) if one.exists()), path)
