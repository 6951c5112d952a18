"""What must be kept: the digests that records and durable rows need, in eight bytes each.

A block is marked by the first eight bytes of its digest. Two digests that agree in them (among ten million
blocks: once in some hundred thousand stores) keep one block too many and never lose one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_train_cas.batch import batches
from gpu_train_cas.digest import DIGEST_BYTES, Digest
from gpu_train_cas.index import Index
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Txn
from gpu_train_cas.tree import Entry, EntryKind

SETTLE_BYTES = 32 << 20
"""Digests are collected up to this before they are reduced to their first eight bytes and sorted."""

_WORD = np.dtype(">u8")


class Marks:
    """A set of digests that may say yes once in a while where it should say no."""

    def __init__(self) -> None:
        self._objects: set[Digest] = set()
        self._pending = bytearray()
        self._fresh: bytearray | None = None
        self._sorted: list[NDArray[np.uint64]] = []

    def add(self, digest: Digest) -> bool:
        """Mark an object or a single block; whether it is new (known exactly, so that walks end)."""
        if digest in self._objects:
            return False
        self._objects.add(digest)
        self.add_all(digest)
        return True

    def add_all(self, digests: bytes) -> None:
        """Mark blocks whose digests lie one after another."""
        self._pending += digests
        if self._fresh is not None:
            self._fresh += digests
        if len(self._pending) >= SETTLE_BYTES:
            self._settle()

    def fresh(self) -> list[Digest]:
        """The digests marked since this was last called; the first call only begins to take note of them."""
        found, self._fresh = bytes(self._fresh or b""), bytearray()
        return [Digest(found[i : i + DIGEST_BYTES]) for i in range(0, len(found), DIGEST_BYTES)]

    def has(self, digests: Sequence[bytes]) -> NDArray[np.bool_]:
        """For each digest, whether it is marked."""
        self._settle()
        words = _words(b"".join(digests))
        found = np.zeros(len(digests), dtype=np.bool_)
        for run in self._sorted:
            at = np.searchsorted(run, words)
            at[at == len(run)] = 0
            found |= run[at] == words
        return found

    def _settle(self) -> None:
        if self._pending:
            run = np.unique(_words(bytes(self._pending)))
            self._pending.clear()
            while self._sorted and len(self._sorted[-1]) < 2 * len(run):
                run = np.union1d(self._sorted.pop(), run)
            self._sorted.append(run)


def _words(digests: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(digests, _WORD)[:: DIGEST_BYTES // _WORD.itemsize].astype(np.uint64)


def mark_records(reader: Reader, records: Iterable[Digest], marks: Marks) -> None:
    """Mark records with everything they need.

    Raises:
        Damaged, NotFound, TooNew, UnsafeName: when something cannot be read; what it needs is then unknown.
    """
    for digest in records:
        if marks.add(digest):
            mark_entry(reader, reader.record(digest).root, marks)


def mark_entry(reader: Reader, entry: Entry, marks: Marks) -> None:
    """Mark what a file or directory needs; raises as `mark_records`."""
    stack = [entry]
    while stack:
        entry = stack.pop()
        match entry.kind:
            case EntryKind.DIRECTORY:
                if marks.add(entry.digest):
                    stack.extend(reader.tree(entry.digest).entries)
            case EntryKind.FILE if entry.manifest is not None:
                if marks.add(entry.manifest):
                    marks.add_all(reader.manifest(entry).digests)
            case EntryKind.FILE if entry.size_bytes:
                marks.add_all(entry.digest)


def mark_bases(txn: Txn, index: Index, marks: Marks) -> int:
    """Mark what marked deltas need to be decoded, and what that needs; the stored bytes of what was not marked yet."""
    held_bytes = 0
    found = True
    while found:
        found = False
        for batch in batches(index.scan(txn)):
            alive = marks.has([digest for digest, _ in batch])
            bases = {d for (_, loc), is_alive in zip(batch, alive, strict=True) if is_alive for d in loc.references}
            for base, known in zip(bases, marks.has(list(bases)), strict=True):
                if not known:
                    marks.add_all(base)
                    location = index.get(txn, base)
                    held_bytes += 0 if location is None else location.stored_bytes
                    found = True
    return held_bytes
