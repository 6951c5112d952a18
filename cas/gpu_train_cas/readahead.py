"""Files whose blocks are decoded ahead of whoever reads them, on all cores: what a mount reads through."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from gpu_train_cas.access import Access, Span
from gpu_train_cas.digest import HOLE, Digest
from gpu_train_cas.errors import GpuTrainError
from gpu_train_cas.manifest import BlockRef, Manifest
from gpu_train_cas.reader import File, Reader
from gpu_train_cas.tree import Entry, Tree

WINDOW_PER_CORE_BYTES = 2 << 20
"""So far ahead of one run of reads blocks are decoded. Farther ahead they are out of the processor's caches again when
they are read: with 8 MiB for two cores a mount took a tenth more of their time than with 4."""

TASKS_PER_CORE = 2
"""When so many blocks are being decoded, or wait for it, reading ahead would only hold up those that were asked for."""

CACHE_SHARE = 4
"""Of the cache only a fourth may hold what nobody has read yet."""

UNREAD_S = 2.0
"""What nobody has read for so long will hardly be read any more: the file was closed, or is read elsewhere."""

RANDOM_BYTES = 16 << 10
"""The kernel asks for less than this only where a program reads at random: its own read-ahead begins with more."""

MANIFEST_BYTES = 16 << 20
"""Manifests kept for the next open, counted by the digests in them."""


class _Unread(NamedTuple):
    """A block that is decoded ahead, or about to be, and since when."""

    size_bytes: int
    since_s: float


class ReadAhead:
    """A reader for many open files. Threads may share it.

    Blocks that are decoded ahead go into the reader's cache. They are bounded twice: by what the cores can do besides
    what is being asked for, and by a part of the cache, in which they stay until they are read; else many readers
    would push each other's blocks out before they are read, and decode everything twice. What fails here is passed
    over: the read that needs it will say so.
    """

    def __init__(
        self, reader: Reader, *, threads: int | None = None, window_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._reader = reader
        self._clock = clock
        count = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="read-ahead")
        self._most_tasks = count * TASKS_PER_CORE
        self._most_unread_bytes = reader.cache_bytes // CACHE_SHARE
        self.window_bytes = min(window_bytes or count * WINDOW_PER_CORE_BYTES, self._most_unread_bytes)
        self._lock = threading.Lock()
        self._queued = 0
        self._unread: dict[Digest, _Unread] = {}  # the oldest first
        self._unread_bytes = 0
        reader.protect(self._unread)
        self._manifests: OrderedDict[Digest, Manifest] = OrderedDict()
        self._manifest_bytes = 0

    def close(self) -> None:
        """Stop reading ahead, before what the reader reads from is closed; files that are open can be read on."""
        self._pool.shutdown(cancel_futures=True)

    def tree(self, digest: Digest, /) -> Tree:
        """A directory."""
        return self._reader.tree(digest)

    def open(self, entry: Entry, /) -> AheadFile:
        """A file for reading; raises as `Reader.open`."""
        if entry.manifest is None:
            return AheadFile(self._reader.open(entry), self)
        with self._lock:
            manifest = self._manifests.get(entry.manifest)
            if manifest is not None:
                self._manifests.move_to_end(entry.manifest)
        if manifest is None:
            file = self._reader.open(entry)
            self._remember(entry.manifest, file.manifest)
        else:
            file = File(self._reader, manifest)
        return AheadFile(file, self)

    def _remember(self, name: Digest, manifest: Manifest) -> None:
        with self._lock:
            if name in self._manifests:
                return
            self._manifests[name] = manifest
            self._manifest_bytes += len(manifest.digests)
            while self._manifest_bytes > MANIFEST_BYTES:
                self._manifest_bytes -= len(self._manifests.popitem(last=False)[1].digests)

    def want(self, manifest: Manifest, spans: Iterable[Span]) -> int | None:
        """Have the blocks that start in these spans decoded.

        Where there is enough to do as it is, the offset of the first one that was left.
        """
        if self._is_busy() and not self._reader.is_far:
            return next((span.start for span in spans), None)
        refs = [
            ref
            for span in spans
            for ref in manifest.covering(span.start, span.end)
            if ref.start >= span.start and ref.digest != HOLE and not self._reader.at_hand(ref.digest)
        ]
        if refs:
            self._reader.expect([ref.digest for ref in refs])
        for ref in refs:
            if not self._take(ref):
                return ref.start
            try:
                self._pool.submit(self._decode, ref.digest)
            except RuntimeError:  # closed
                self._is_wanted(ref.digest)
                return None
        return None

    def was_read(self, manifest: Manifest, start: int, end: int) -> None:
        """Take notice that these bytes were read."""
        if not self._unread:
            return
        for ref in manifest.covering(start, end):
            if ref.digest in self._unread:
                with self._lock:
                    found = self._unread.pop(ref.digest, None)
                    self._unread_bytes -= found.size_bytes if found else 0

    def _is_busy(self) -> bool:
        return self._queued + self._reader.decoding >= self._most_tasks

    def _take(self, ref: BlockRef) -> bool:
        """Whether there is room for one more, which is then counted."""
        size, now = ref.end - ref.start, self._clock()
        with self._lock:
            if self._is_busy() or ref.digest in self._unread:
                return False
            while self._unread_bytes + size > self._most_unread_bytes:
                digest = next(iter(self._unread), None)
                if digest is None or now - self._unread[digest].since_s < UNREAD_S:
                    return False
                self._unread_bytes -= self._unread.pop(digest).size_bytes
            self._queued += 1
            self._unread[ref.digest] = _Unread(size, now)
            self._unread_bytes += size
            return True

    def _is_wanted(self, digest: Digest) -> bool:
        """Take one out of the queue; whether nobody was faster and has read it."""
        with self._lock:
            self._queued -= 1
            return digest in self._unread

    def _decode(self, digest: Digest) -> None:
        if self._is_wanted(digest):
            with suppress(GpuTrainError, OSError):
                self._reader.block(digest)


class AheadFile:
    """An open file. Any number of threads may read it."""

    def __init__(self, file: File, ahead: ReadAhead) -> None:
        self._file = file
        self._ahead = ahead
        self._access = Access(file.manifest)
        self._lock = threading.Lock()

    @property
    def manifest(self) -> Manifest:
        """The blocks that it is made of."""
        return self._file.manifest

    def readinto(self, buffer: memoryview, offset: int, /) -> int:
        """Fill a buffer from an offset, as `File.readinto`."""
        if len(buffer) < RANDOM_BYTES or len(self.manifest) <= 1:
            return self._file.readinto(buffer, offset)
        end = min(offset + len(buffer), self.manifest.size_bytes)
        with self._lock:
            spans = self._access.note(offset, end, self._ahead.window_bytes) if offset < end else []
        if spans:
            left = self._ahead.want(self.manifest, spans)
            if left is not None:
                with self._lock:
                    self._access.take_back(left)
        length = self._file.readinto(buffer, offset)
        self._ahead.was_read(self.manifest, offset, end)
        return length
