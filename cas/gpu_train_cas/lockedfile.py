"""Files that say something exactly while the process that made them lives (cas/spec/registry.md, Locked files).

Such a file is locked with flock(2). The kernel drops the lock when the process ends, however it ends; no clock,
process id or boot id has to be believed, and it holds between containers that share a home but not a process-id
namespace.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpu_train_cas.errors import mapped_os_errors
from gpu_train_cas.filesystem import remove_if_there

STARTING = "."


class Said(NamedTuple):
    """What a locked file says: its id, the facts in it, and whether its owner lives."""

    id: str
    facts: Mapping[str, Any]
    alive: bool


class LockedFile:
    """A file of this process; `release` or the end of the process ends it."""

    def __init__(self, folder: Path, suffix: str, facts: Mapping[str, Any] | None = None) -> None:
        """Make one in `folder`, whose name ends in `suffix`; it says `facts`, or nothing yet."""
        self._fd = -1
        with mapped_os_errors(f"writing in {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            while self._fd < 0:
                self._take(folder, suffix, facts)

    def _take(self, folder: Path, suffix: str, facts: Mapping[str, Any] | None) -> None:
        self.id = os.urandom(8).hex()
        self._path = folder / (self.id + suffix)
        starting = folder / (STARTING + self.id)
        fd = os.open(starting, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if facts is not None:
                os.pwrite(fd, json.dumps(facts).encode(), 0)
            # Visible under its final name only once it is locked: a cleaner never sees it unlocked.
            os.rename(starting, self._path)
        except FileNotFoundError:  # a cleaner took it for a dead process's, between the two calls above
            os.close(fd)
        except BaseException:
            remove_if_there(starting)
            os.close(fd)
            raise
        else:
            self._fd = fd

    def say(self, facts: Mapping[str, Any]) -> None:
        """Say this from now on; longer than what was said before."""
        with mapped_os_errors(f"writing {self._path}"):
            os.pwrite(self._fd, json.dumps(facts).encode(), 0)

    def release(self) -> None:
        """End it; safe to call twice."""
        if self._fd >= 0:
            remove_if_there(self._path)
            os.close(self._fd)
            self._fd = -1


def locked_files(folder: Path, suffix: str) -> Iterator[Said]:
    """What all such files say, those of the dead too, which stay until `remove_unlocked`."""
    for path in sorted(folder.glob("*" + suffix)):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            yield Said(path.name.removesuffix(suffix), _facts(os.pread(fd, 4096, 0)), _locked(fd))
        finally:
            os.close(fd)


def remove_unlocked(folder: Path, suffix: str) -> list[str]:
    """Remove the files of processes that are gone; their ids."""
    gone = [said.id for said in locked_files(folder, suffix) if not said.alive]
    for id in gone:
        remove_if_there(folder / (id + suffix))
    for path in folder.glob(STARTING + "*"):
        _remove_unless_locked(path)
    return gone


def _remove_unless_locked(path: Path) -> None:
    """Remove what a process left that was killed before its file was whole."""
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


def _facts(text: bytes) -> Mapping[str, Any]:
    """What a file says; nothing while it is being written."""
    try:
        facts = json.loads(text)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False
