"""Writing a stored directory or file back out, in parallel, so that a broken restore never looks complete.

Everything is built in a folder of its own beside (or inside) the destination and moved into place by rename
when it is whole; on any failure that folder is removed. All files are opened relative to directory
descriptors, without following links, and must not exist before: neither a stored name nor a link planted
at the destination can lead a write elsewhere.

What is proven: a record's name covers its trees, they cover the manifests, they cover the blocks, and every
block and object is hashed as it is read. The file's own digest is therefore not computed a second time.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_train_cas.destination import Destination
from gpu_train_cas.digest import HOLE
from gpu_train_cas.errors import Damaged, NotFound, StorageFull, UnsafeName, mapped_os_errors
from gpu_train_cas.filesystem import FOLDER_FLAGS
from gpu_train_cas.manifest import BlockRef, Manifest
from gpu_train_cas.progress import Meter, OnProgress
from gpu_train_cas.reader import Reader
from gpu_train_cas.tree import Entry, EntryKind, check_name

IN_FLIGHT_BYTES = 64 << 20
"""Decoded bytes on their way to the disk at once, whatever the size of the files."""

RUN_BYTES = 1 << 20
"""Neighbouring blocks of a file, and small files of a folder, are written by one task up to this."""

SMALL_FILES = 64
"""Small files that one task writes at most."""

MAX_TASKS = 256
"""Tasks not finished at once: each may hold a file and its folder open."""

MAX_DEPTH = 256
"""Folders within folders; ingest stores fewer. Each level holds a descriptor while it is written."""

_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_SIZE_BYTES = (1 << 63) - 1


@dataclass(slots=True)
class Restored:
    """What was written.

    Attributes:
        files: regular files.
        size_bytes: their lengths together, holes included.
    """

    files: int = 0
    size_bytes: int = 0


def restore(
    reader: Reader, root: Entry, dest: Path | str | bytes, *, select: bytes = b"", overwrite: bool = False,
    progress: OnProgress | None = None, threads: int | None = None, fsync: bool = False,
) -> Restored:  # fmt: skip
    """Write what `root` holds, or the part of it at the path `select`, to `dest`.

    A directory becomes `dest` itself: a new one appears whole, by one rename; an empty one is filled. With
    `overwrite`, files in an existing one are replaced and others are left. A single file is written to `dest`,
    or into it when it is a directory. Modes (without set-user-id and set-group-id of files, since owners are
    not kept), times, links, empty directories and holes come back. With `fsync` all of it is on the disk
    when this returns.

    Raises:
        NotFound: when `select` names nothing, or a block is in no source.
        Damaged: when a block or object is not what it should be.
        UnsafeName: when a stored name would leave its directory.
        DestinationExists: when something is in the way.
        StorageFull: when the destination has not room for it, before anything is written, or later.
    """
    entry = reader.lookup(root, select)
    path = os.path.abspath(os.fsencode(dest))
    whole = entry.kind is EntryKind.DIRECTORY
    with mapped_os_errors(f"restoring to {os.fsdecode(path)}"), _destination(path, entry, select, overwrite) as place:
        need = _check_space(reader, entry, place)
        meter = Meter("restoring", progress)
        meter.progress.total_bytes, meter.progress.files_total = need.size_bytes, need.files
        with place.work_folder() as (work, fd):
            build = _Build(reader, meter, threads or os.cpu_count() or 1, fsync)
            build.run(fd, entry if whole else entry._replace(name=place.name))
            if whole:
                place.land_folder(work, fd)
            else:
                place.land_content(fd)
        if fsync:
            os.fsync(place.fd)
        meter.progress.done_bytes = need.size_bytes
        meter.tick(last=True)
    return Restored(need.files, need.size_bytes)


def _destination(path: bytes, entry: Entry, select: bytes, overwrite: bool) -> Destination:
    if entry.kind is EntryKind.DIRECTORY:
        return Destination.of_folder(path, overwrite)
    return Destination.of_file(path, os.path.basename(select) or entry.name, overwrite)


# Room for it


@dataclass(slots=True)
class _Need:
    """What a part of the tree takes: regular files, their lengths, bytes on the disk, and names in all."""

    files: int = 0
    size_bytes: int = 0
    disk_bytes: int = 0
    inodes: int = 0

    def add(self, other: _Need) -> None:
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.disk_bytes += other.disk_bytes
        self.inodes += other.inodes


def _check_space(reader: Reader, entry: Entry, place: Destination) -> _Need:
    """Measure what is needed and compare it with what is free."""
    disk = os.fstatvfs(place.fd)
    unit = disk.f_frsize or 4096
    need = _measure(reader, entry, unit, {}, 0)
    free = disk.f_bavail * unit
    if need.disk_bytes > free:
        raise StorageFull(
            f"restoring to {os.fsdecode(place.path)} takes {need.disk_bytes} bytes and {free} are free there; "
            "free some or choose another destination"
        )
    if disk.f_files and need.inodes > disk.f_favail:
        raise StorageFull(
            f"restoring to {os.fsdecode(place.path)} makes {need.inodes} files and folders, and that filesystem has "
            f"room for {disk.f_favail}; remove some or choose another destination"
        )
    return need


def _measure(reader: Reader, entry: Entry, unit: int, known: dict[bytes, _Need], depth: int) -> _Need:
    """Each different directory is measured once, so that a tree that repeats itself cannot take forever."""
    if entry.kind is EntryKind.SYMLINK:
        return _Need(inodes=1)
    if entry.kind is EntryKind.FILE:
        stored = entry.size_bytes
        if entry.manifest is not None:
            stored -= _hole_bytes(reader.manifest(entry))
        return _Need(1, entry.size_bytes, -(-stored // unit) * unit, 1)
    if depth > MAX_DEPTH:
        raise UnsafeName(f"folders lie deeper than {MAX_DEPTH} levels; the record is damaged or hostile")
    need = known.get(entry.digest)
    if need is None:
        need = _Need(disk_bytes=unit, inodes=1)
        for child in reader.tree(entry.digest).entries:
            need.add(_measure(reader, child, unit, known, depth + 1))
        known[entry.digest] = need
    return need


def _hole_bytes(manifest: Manifest) -> int:
    if manifest.digests.find(HOLE) < 0:
        return 0
    return sum(ref.end - ref.start for ref in manifest.blocks() if ref.digest == HOLE)


# Building


class _Node:
    """An open file or folder that is being written: finished when its last part is."""

    __slots__ = ("_finish", "_left", "_lock", "entry", "fd", "parent")

    def __init__(self, fd: int, entry: Entry, parent: _Node | None, finish: Callable[[_Node], None]) -> None:
        self.fd = fd
        self.entry = entry
        self.parent = parent
        self._finish = finish
        self._left = 1
        self._lock = threading.Lock()

    def take(self) -> None:
        """One more part to come."""
        with self._lock:
            self._left += 1

    def drop(self) -> None:
        """One part is done."""
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._finish(self)


class _Build:
    """One restore: the calling thread makes folders and opens files, a pool decodes and writes."""

    def __init__(self, reader: Reader, meter: Meter, threads: int, fsync: bool) -> None:
        self._reader = reader
        self._meter = meter
        self._fsync = fsync
        self._threads = threads
        self._waiting: deque[tuple[Future[None], int, int, bytes]] = deque()
        self._held = 0
        self._open: set[int] = set()
        self._stop = False

    def run(self, fd: int, entry: Entry) -> None:
        """Build what a directory holds, or a single file under its name, in the open work folder."""
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="restore")
        try:
            if entry.kind is EntryKind.DIRECTORY:
                self._folder(self._node(os.dup(fd), entry, None), b"", 0)
            else:
                holder = self._node(os.dup(fd), entry._replace(kind=EntryKind.DIRECTORY, mode=0o700), None)
                self._children(holder, [entry], b"", 0)
                holder.drop()
            while self._waiting:
                self._settle()
        finally:
            self._stop = True
            self._pool.shutdown(cancel_futures=True)
            for left in self._open:
                os.close(left)

    def _node(self, fd: int, entry: Entry, parent: _Node | None) -> _Node:
        self._open.add(fd)
        if parent is not None:
            parent.take()
        return _Node(fd, entry, parent, self._finish)

    def _finish(self, node: _Node) -> None:
        """Give a file or folder its mode and times, and close it; nothing is written to it after that."""
        _dress(node.fd, node.entry)
        if self._fsync:
            os.fsync(node.fd)
        self._open.discard(node.fd)
        os.close(node.fd)
        if node.parent is not None:
            node.parent.drop()

    def _folder(self, node: _Node, path: bytes, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise UnsafeName(f"folders lie deeper than {MAX_DEPTH} levels; the record is damaged or hostile")
        self._children(node, self._reader.tree(node.entry.digest).entries, path, depth)
        node.drop()

    def _children(self, node: _Node, entries: Sequence[Entry], path: bytes, depth: int) -> None:
        small: list[Entry] = []
        held = 0
        for entry in entries:
            check_name(entry.name)
            below = path + b"/" + entry.name if path else entry.name
            if entry.kind is EntryKind.DIRECTORY:
                os.mkdir(entry.name, 0o700, dir_fd=node.fd)
                fd = os.open(entry.name, FOLDER_FLAGS, dir_fd=node.fd)
                self._folder(self._node(fd, entry, node), below, depth + 1)
            elif entry.kind is EntryKind.SYMLINK:
                _link(node.fd, entry)
            elif entry.manifest is not None or entry.size_bytes > RUN_BYTES:
                self._large(node, entry, below)
            else:
                small.append(entry)
                held += entry.size_bytes
                if len(small) == SMALL_FILES or held >= RUN_BYTES:
                    self._small(node, small, held, path)
                    small, held = [], 0
        if small:
            self._small(node, small, held, path)

    def _large(self, parent: _Node, entry: Entry, path: bytes) -> None:
        """A file of several blocks: one task per run of neighbouring blocks; holes are left unwritten."""
        if entry.size_bytes > _MAX_SIZE_BYTES:
            raise Damaged(f"{os.fsdecode(path)} claims {entry.size_bytes} bytes, more than a file can have")
        manifest = self._reader.manifest(entry)
        node = self._node(os.open(entry.name, _FILE_FLAGS, 0o600, dir_fd=parent.fd), entry, parent)
        os.ftruncate(node.fd, entry.size_bytes)
        for run, size in _runs(manifest):
            node.take()
            self._submit(partial(self._write, node, run, path), size, 0, path)
        self._submit(node.drop, 0, 1, path)

    def _small(self, parent: _Node, entries: list[Entry], size: int, path: bytes) -> None:
        parent.take()
        self._submit(partial(self._write_small, parent, entries, path), size, len(entries), path)

    def _submit(self, work: Callable[[], None], size: int, files: int, path: bytes) -> None:
        """Hand a task to the pool once there is room for the bytes it will hold."""
        while self._waiting and (
            self._held + size > IN_FLIGHT_BYTES or len(self._waiting) >= MAX_TASKS or self._waiting[0][0].done()
        ):
            self._settle()
        self._held += size
        self._waiting.append((self._pool.submit(self._run, work), size, files, path))

    def _settle(self) -> None:
        future, size, files, path = self._waiting.popleft()
        future.result()
        self._held -= size
        self._meter.progress.done_bytes += size
        self._meter.progress.files_done += files
        self._meter.progress.path = os.fsdecode(path)
        self._meter.tick()

    def _run(self, work: Callable[[], None]) -> None:
        if not self._stop:
            work()

    def _write(self, node: _Node, run: list[BlockRef], path: bytes) -> None:
        with _naming(path):
            data = [self._block(ref) for ref in run]
        _pwrite(node.fd, data, run[0].start)
        node.drop()

    def _block(self, ref: BlockRef) -> bytes | memoryview:
        data = self._reader.block(ref.digest, keep=False)
        if len(data) != ref.end - ref.start:
            raise Damaged(f"{ref.digest.hex()[:16]}: a block of another length than its manifest says")
        return data

    def _write_small(self, parent: _Node, entries: list[Entry], path: bytes) -> None:
        for entry in entries:
            data: bytes | memoryview = b""
            if entry.size_bytes:
                with _naming(os.path.join(path, entry.name)):
                    data = self._block(BlockRef(entry.digest, 0, entry.size_bytes))
            fd = os.open(entry.name, _FILE_FLAGS, 0o600, dir_fd=parent.fd)
            try:
                if data:
                    _pwrite(fd, [data], 0)
                _dress(fd, entry)
                if self._fsync:
                    os.fsync(fd)
            finally:
                os.close(fd)
        parent.drop()


@contextmanager
def _naming(path: bytes) -> Iterator[None]:
    """Say which file could not be read back."""
    try:
        yield
    except (Damaged, NotFound) as e:
        raise type(e)(f"{os.fsdecode(path)}: {e}") from e


def _runs(manifest: Manifest) -> Iterator[tuple[list[BlockRef], int]]:
    """Neighbouring blocks, up to RUN_BYTES together, and how many bytes they are."""
    run: list[BlockRef] = []
    for ref in manifest.blocks():
        if run and (ref.digest == HOLE or ref.end - run[0].start > RUN_BYTES):
            yield run, run[-1].end - run[0].start
            run = []
        if ref.digest != HOLE:
            run.append(ref)
    if run:
        yield run, run[-1].end - run[0].start


def _pwrite(fd: int, data: Sequence[bytes | memoryview], offset: int) -> None:
    """Write all of it, however often the system takes less."""
    left = [memoryview(part) for part in data]
    while left:
        done = os.pwritev(fd, left, offset)
        offset += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if left:
            left[0] = left[0][done:]


def _dress(fd: int, entry: Entry) -> None:
    """Mode and times. Set-id bits of files would lend the restoring user's rights, so they are left out."""
    keep = 0o7777 if entry.kind is EntryKind.DIRECTORY else 0o1777
    os.fchmod(fd, entry.mode & keep)
    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))


def _link(folder: int, entry: Entry) -> None:
    if not entry.target or b"\0" in entry.target:
        raise UnsafeName(f"link {entry.name!r} has no valid target; the record is damaged or hostile")
    os.symlink(entry.target, entry.name, dir_fd=folder)
    os.utime(entry.name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=folder, follow_symlinks=False)
