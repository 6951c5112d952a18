"""Who is reading which record: a locked file for each, so that gc leaves it alone (cas/spec/registry.md, Holds)."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import GpuTrainError
from gpu_train_cas.lockedfile import LockedFile, locked_files, remove_unlocked

SUFFIX = ".hold"


class HoldFacts(NamedTuple):
    """What the file of a reader that lives says."""

    record: Digest
    pid: int
    purpose: str


class Holds:
    """The records that this process holds, one file each however often it was taken. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Digest, LockedFile | None] = {}
        self._counts: Counter[Digest] = Counter()
        self._lock = threading.Lock()

    def take(self, record: Digest, purpose: str) -> None:
        """Hold a record once more. Where no file can be made, as on a disk that is full, nothing is held."""
        with self._lock:
            if not self._counts[record]:
                try:
                    facts = {"record": record.hex(), "pid": os.getpid(), "purpose": purpose}
                    self._files[record] = LockedFile(self._folder, SUFFIX, facts)
                except (OSError, GpuTrainError):  # reading matters more
                    self._files[record] = None
            self._counts[record] += 1

    def release(self, record: Digest) -> None:
        """Hold a record once less."""
        with self._lock:
            self._counts[record] -= 1
            if self._counts[record]:
                return
            del self._counts[record]
            file = self._files.pop(record)
            if file is not None:
                with suppress(OSError, GpuTrainError):  # without its owner it means nothing
                    file.release()


def holds(folder: Path) -> Iterator[HoldFacts]:
    """What readers that live hold."""
    for _, facts, alive in locked_files(folder, SUFFIX):
        if alive and "record" in facts:
            yield HoldFacts(
                Digest(bytes.fromhex(facts["record"])), int(facts.get("pid", 0)), str(facts.get("purpose", ""))
            )


def remove_dead_holds(folder: Path) -> None:
    """Remove the files of readers that are gone."""
    remove_unlocked(folder, SUFFIX)
