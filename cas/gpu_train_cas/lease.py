"""Who is writing: a locked file per writer, so that gc knows whom to wait for (cas/spec/registry.md, Leases)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpu_train_cas.lockedfile import LockedFile, locked_files, remove_unlocked

SUFFIX = ".lease"


class LeaseFacts(NamedTuple):
    """What a lease file says. `generation` is None while its owner is still starting."""

    id: str
    generation: int | None
    pid: int
    purpose: str
    alive: bool


class Lease:
    """A running writer's mark; `release` or the end of the process ends it."""

    def __init__(self, folder: Path, purpose: str) -> None:
        self._purpose = purpose
        self._file = LockedFile(folder, SUFFIX)
        self.id = self._file.id

    def announce(self, generation: int) -> None:
        """Say which generation of the index this writer looks things up in, read after the lease was taken."""
        self._file.say({"generation": generation, "pid": os.getpid(), "purpose": self._purpose})

    def release(self) -> None:
        """End the lease; safe to call twice."""
        self._file.release()


def leases(folder: Path) -> Iterator[LeaseFacts]:
    """All leases, the dead ones too; a dead one stays until `remove_dead`."""
    for id, facts, alive in locked_files(folder, SUFFIX):
        pid, purpose = int(facts.get("pid", 0)), str(facts.get("purpose", ""))
        yield LeaseFacts(id, facts.get("generation"), pid, purpose, alive)


def remove_dead(folder: Path) -> list[str]:
    """Drop the leases of writers that are gone; returns their ids, whose temporary files may go as well."""
    return remove_unlocked(folder, SUFFIX)
