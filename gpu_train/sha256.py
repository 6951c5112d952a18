"""SHA-256 of many files at once, and of large ones read ahead.

hashlib and the reads release the GIL, so threads are enough: each worker hashes its own files, and while it
hashes one piece of a large file, the next piece is read.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from gpu_train.stat_cache import Signature, signature_of
from gpu_train_cas.errors import GpuTrainError, SourceChanged
from gpu_train_cas.progress import INTERVAL_S, Meter, OnProgress

ATTEMPTS = 2
"""How often a file that changes while it is read is read again."""

MAX_THREADS = 16
READ_BYTES = 1 << 20
READ_AHEAD_FROM_BYTES = 16 << 20
BATCH_FILES = 64
BATCH_BYTES = 16 << 20

Hashed = tuple[Signature, bytes]
"""A file's signature while it was read, and its SHA-256."""


class _GivenUp(Exception):
    """Another file failed, so that this one need not be read to its end."""


@dataclass(frozen=True, slots=True)
class ToHash:
    """A file to hash: a name (as the result has it), where it is, and its size as far as known."""

    name: bytes
    location: bytes
    size_bytes: int


def hash_files(
    files: Sequence[ToHash], *, threads: int | None = None, progress: OnProgress | None = None
) -> dict[bytes, Hashed]:
    """Read and hash all files; the results by name.

    Args:
        files: what to hash.
        threads: how many work at once; None takes one per CPU, MAX_THREADS at most.
        progress: told how far it is, from this thread.

    Raises:
        SourceChanged: when a file vanished, or changed each of the ATTEMPTS times it was read.
        GpuTrainError: when a file cannot be read.
    """
    work = _Work()
    meter = Meter("hashing", progress)
    meter.progress.total_bytes = sum(file.size_bytes for file in files)
    meter.progress.files_total = len(files)
    results: dict[bytes, Hashed] = {}
    count = threads or min(os.cpu_count() or 1, MAX_THREADS)
    with ThreadPoolExecutor(count, thread_name_prefix="sha256") as pool:
        try:
            pending = {pool.submit(work.hash_batch, batch) for batch in _batches(files)}
            while pending:
                done, pending = wait(pending, timeout=INTERVAL_S, return_when=FIRST_COMPLETED)
                _collect(done, results)
                meter.progress.done_bytes, meter.progress.files_done = work.done_bytes, work.files_done
                meter.tick(last=not pending)
        except BaseException:
            work.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results


def _collect(done: Iterable[Future[list[tuple[bytes, Hashed]]]], results: dict[bytes, Hashed]) -> None:
    for future in done:
        results.update(future.result())


def _batches(files: Iterable[ToHash]) -> Iterator[Sequence[ToHash]]:
    """Groups of files, so that small ones do not cost a task each and large ones spread over the threads."""
    batch: list[ToHash] = []
    size = 0
    for file in files:
        batch.append(file)
        size += file.size_bytes
        if len(batch) == BATCH_FILES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Work:
    """What the workers share: counters, and the word to stop."""

    def __init__(self) -> None:
        self.done_bytes = 0
        self.files_done = 0
        self.stopped = False
        self._lock = threading.Lock()

    def hash_batch(self, batch: Sequence[ToHash]) -> list[tuple[bytes, Hashed]]:
        buffers = (bytearray(READ_BYTES), bytearray(READ_BYTES))
        return [(file.name, self._hash(file.location, buffers)) for file in batch if not self.stopped]

    def _hash(self, where: bytes, buffers: tuple[bytearray, bytearray]) -> Hashed:
        for _ in range(ATTEMPTS):
            try:
                fd = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                try:
                    before = os.fstat(fd)
                    digest = self._read(fd, before, buffers)
                    after = os.fstat(fd)
                finally:
                    os.close(fd)
            except FileNotFoundError as e:
                raise SourceChanged(f"{os.fsdecode(where)} vanished while it was being read; try again") from e
            except OSError as e:
                raise GpuTrainError(f"{os.fsdecode(where)}: {e.strerror}; make it readable and retry") from e
            if signature_of(before) == signature_of(after):
                with self._lock:
                    self.files_done += 1
                return signature_of(before), digest
        raise SourceChanged(
            f"{os.fsdecode(where)} changed while it was being read; register it when nothing writes to it"
        )

    def _read(self, fd: int, found: os.stat_result, buffers: tuple[bytearray, bytearray]) -> bytes:
        if not stat.S_ISREG(found.st_mode):
            raise SourceChanged("a file was replaced by something else while it was being read; try again")
        digest = hashlib.sha256()
        if found.st_size < READ_AHEAD_FROM_BYTES:
            at = 0
            while piece := os.preadv(fd, [buffers[0]], at):
                at += self._feed(digest, buffers[0], piece)
            return digest.digest()
        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
            at, turn = 0, 0
            reading = reader.submit(os.preadv, fd, [buffers[turn]], at)
            while piece := reading.result():
                full, turn = buffers[turn], 1 - turn
                reading = reader.submit(os.preadv, fd, [buffers[turn]], at + piece)
                at += self._feed(digest, full, piece)
        return digest.digest()

    def _feed(self, digest: hashlib._Hash, buffer: bytearray, length: int) -> int:
        """Hash the start of a buffer; how many bytes that was."""
        if self.stopped:
            raise _GivenUp
        digest.update(memoryview(buffer)[:length])
        with self._lock:
            self.done_bytes += length
        return length
