"""Who is writing: a locked file per writer, so that gc knows whom to wait for (cas/spec/registry.md, Leases).

A lease is alive exactly while its file is locked with flock(2). The kernel drops the lock when the
process ends, however it ends; no clock, process id or boot id has to be believed, and it holds between
containers that share a home but not a process-id namespace.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpu_train_cas.errors import mapped_os_errors
from gpu_train_cas.filesystem import remove_if_there

SUFFIX = ".lease"
STARTING = "."


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
        self._fd = -1
        with mapped_os_errors(f"writing in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            while self._fd < 0:
                self._take(folder)

    def _take(self, folder: Path) -> None:
        self.id = os.urandom(8).hex()
        self._path = folder / (self.id + SUFFIX)
        starting = folder / (STARTING + self.id)
        fd = os.open(starting, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Visible under its final name only once it is locked: a cleaner never sees it unlocked.
            os.rename(starting, self._path)
        except FileNotFoundError:  # a cleaner took it for a dead writer's, between the two calls above
            os.close(fd)
        else:
            self._fd = fd

    def announce(self, generation: int) -> None:
        """Say which generation of the index this writer looks things up in, read after the lease was taken."""
        facts = {"generation": generation, "pid": os.getpid(), "purpose": self._purpose}
        with mapped_os_errors(f"writing {self._path}"):
            os.pwrite(self._fd, json.dumps(facts).encode(), 0)

    def release(self) -> None:
        """End the lease; safe to call twice."""
        if self._fd >= 0:
            remove_if_there(self._path)
            os.close(self._fd)
            self._fd = -1


def leases(folder: Path) -> Iterator[LeaseFacts]:
    """All leases, the dead ones too; a dead one stays until `remove_dead`."""
    for path in sorted(folder.glob("*" + SUFFIX)):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            facts = _facts(os.pread(fd, 4096, 0))
            yield LeaseFacts(
                path.name.removesuffix(SUFFIX), facts.get("generation"), int(facts.get("pid", 0)),
                str(facts.get("purpose", "")), _locked(fd),
            )  # fmt: skip
        finally:
            os.close(fd)


def _facts(text: bytes) -> dict[str, Any]:
    """What a lease says; nothing while it is being written, which counts as still starting."""
    try:
        facts = json.loads(text)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def remove_dead(folder: Path) -> list[str]:
    """Drop the leases of writers that are gone; returns their ids, whose temporary files may go as well."""
    gone = [lease.id for lease in leases(folder) if not lease.alive]
    for id in gone:
        remove_if_there(folder / (id + SUFFIX))
    for path in folder.glob(STARTING + "*"):
        _remove_unlocked(path)
    return gone


def _remove_unlocked(path: Path) -> None:
    """Remove what a writer left that was killed before its lease was whole."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_if_there(path)
    except BlockingIOError:
        return
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False
