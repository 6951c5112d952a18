"""Plain files that the store has copies of: as long as they lie where they were, their blocks are read from there.

A base whose own delta lies on three others is decoded four times over; its original, which a trainer often keeps for a
while, is one read. Nothing is believed: the reader proves what comes from here as it proves what comes from packs.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpu_train_cas.codecs import Codec
from gpu_train_cas.digest import HOLE, Digest, Kind
from gpu_train_cas.errors import Damaged, NotFound, TooNew
from gpu_train_cas.frame import FrameHeader
from gpu_train_cas.reader import Reader
from gpu_train_cas.tree import Entry, EntryKind


class Original(NamedTuple):
    """A stored directory, and the folder that it was read from."""

    root: Entry
    folder: Path


class _Place(NamedTuple):
    """Where a block lies: in a file that is open, from an offset."""

    fd: int
    offset: int
    length: int


class Originals:
    """A block source over plain files. A file that has another size or time than the stored one is left out.

    Threads may share it. Close it when no thread reads any more.
    """

    def __init__(self, reader: Reader, originals: Sequence[Original]) -> None:
        self._reader = reader
        self._originals = originals
        self._places: dict[Digest, _Place] | None = None
        self._files: list[int] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close all files; safe to call twice."""
        with self._lock:
            files, self._files, self._places = self._files, [], {}
        for fd in files:
            os.close(fd)

    def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
        """The block as a frame that holds it as it is; see `BlockSource`."""
        with self._lock:
            if self._places is None:
                self._places = dict(self._listed())
            place = self._places.get(digest)
        if place is None:
            return None
        try:
            data = os.pread(place.fd, place.length, place.offset)
        except OSError:  # the store has it too
            return None
        if len(data) != place.length:
            return None
        return FrameHeader(Kind.BLOCK, Codec.RAW, digest, len(data), len(data)), memoryview(data)

    def _listed(self) -> Iterator[tuple[Digest, _Place]]:
        for root, folder in self._originals:
            with suppress(NotFound, Damaged, TooNew):  # without its manifests nobody knows what lies where
                for path, entry in self._reader.walk(root):
                    if entry.kind is EntryKind.FILE and entry.manifest is not None:
                        yield from self._blocks(entry, folder / os.fsdecode(path))

    def _blocks(self, entry: Entry, path: Path) -> Iterator[tuple[Digest, _Place]]:
        fd = self._opened(entry, path)
        if fd is None:
            return
        for ref in self._reader.manifest(entry).blocks():
            if ref.digest != HOLE:
                yield ref.digest, _Place(fd, ref.start, ref.end - ref.start)

    def _opened(self, entry: Entry, path: Path) -> int | None:
        """The file, if it seems to be what was stored."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or (found.st_size, found.st_mtime_ns) != (entry.size_bytes, entry.mtime_ns):
            os.close(fd)
            return None
        self._files.append(fd)
        return fd
