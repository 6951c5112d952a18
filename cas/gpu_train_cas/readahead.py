"""Files whose blocks are decoded ahead of whoever reads them, on all cores: what a mount reads through."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from gpu_train_cas.access import Access, Span
from gpu_train_cas.digest import HOLE, Digest
from gpu_train_cas.errors import GpuTrainError
from gpu_train_cas.manifest import Manifest
from gpu_train_cas.reader import File, Reader
from gpu_train_cas.tree import Entry, Tree

WINDOW_BYTES = 8 << 20
"""So far ahead of one run of reads blocks are decoded; less when many files are read at once."""

TASKS_PER_THREAD = 4
"""When so many blocks wait for each thread the cores are busy, and reading ahead helps nobody."""

MANIFEST_BYTES = 16 << 20
"""Manifests kept for the next open, counted by the digests in them."""


class ReadAhead:
    """A reader for many open files. Threads may share it.

    Blocks that are decoded ahead go into the reader's cache, of which they may take half. What fails here is
    passed over: the read that needs it will say so.
    """

    def __init__(self, reader: Reader, *, threads: int | None = None, window_bytes: int = WINDOW_BYTES) -> None:
        self._reader = reader
        count = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="read-ahead")
        self._room = threading.Semaphore(count * TASKS_PER_THREAD)
        self._window_bytes = window_bytes
        self._lock = threading.Lock()
        self._running = 0
        self._manifests: OrderedDict[Digest, Manifest] = OrderedDict()
        self._manifest_bytes = 0

    def close(self) -> None:
        """Stop reading ahead, before what the reader reads from is closed; files that are open can be read on."""
        self._pool.shutdown(cancel_futures=True)

    def tree(self, digest: Digest, /) -> Tree:
        """A directory."""
        return self._reader.tree(digest)

    def open(self, entry: Entry, /) -> AheadFile:
        """A file for reading; raises as `Reader.open`. Close it."""
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

    def started(self, count: int) -> None:
        """So many more files (or fewer) are being read in runs."""
        with self._lock:
            self._running += count

    @property
    def window_bytes(self) -> int:
        """How far to read ahead of one run, so that all that are read now find room in the cache."""
        return min(self._window_bytes, self._reader.cache_bytes // 2 // max(1, self._running))

    def want(self, manifest: Manifest, spans: Iterable[Span]) -> None:
        """Have the blocks that start in these spans decoded, unless there is enough to do as it is."""
        digests = [
            ref.digest
            for span in spans
            for ref in manifest.covering(span.start, span.end)
            if ref.start >= span.start and ref.digest != HOLE and not self._reader.at_hand(ref.digest)
        ]
        if digests:
            self._reader.expect(digests)
        for digest in digests:
            if not self._room.acquire(blocking=False):
                return
            try:
                self._pool.submit(self._decode, digest)
            except RuntimeError:  # closed
                self._room.release()
                return

    def _decode(self, digest: Digest) -> None:
        try:
            with suppress(GpuTrainError, OSError):
                self._reader.block(digest)
        finally:
            self._room.release()


class AheadFile:
    """An open file. Any number of threads may read it."""

    def __init__(self, file: File, ahead: ReadAhead) -> None:
        self._file = file
        self._ahead = ahead
        self._access = Access(file.manifest)
        self._lock = threading.Lock()
        self._started = False

    @property
    def manifest(self) -> Manifest:
        """The blocks that it is made of."""
        return self._file.manifest

    def readinto(self, buffer: memoryview, offset: int, /) -> int:
        """Fill a buffer from an offset, as `File.readinto`."""
        end = min(offset + len(buffer), self.manifest.size_bytes)
        if len(self.manifest) > 1 and offset < end:
            with self._lock:
                spans = self._access.note(offset, end, self._ahead.window_bytes)
                first, self._started = not self._started and bool(spans), self._started or bool(spans)
            if first:
                self._ahead.started(1)
            if spans:
                self._ahead.want(self.manifest, spans)
        return self._file.readinto(buffer, offset)

    def close(self) -> None:
        """Say that no read follows."""
        with self._lock:
            started, self._started = self._started, False
        if started:
            self._ahead.started(-1)
