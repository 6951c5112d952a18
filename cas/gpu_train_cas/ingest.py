"""Bringing files in: walk, cut, name, look up, encode, pack; nothing is visible before the commit.

    with store.writer("capture") as writer:
        added = writer.add_tree(path)
        with writer.commit() as txn:
            digest = txn.put_record(Record("checkpoint", job, name, now, added.root))

The calling thread reads and cuts; a pool names and encodes blocks (the calls that release the GIL); frames go
into the pack in the order in which they were read. At most IN_FLIGHT_BYTES of blocks are held at once.
Where a block may have a base or a sibling, the pool reads that too (pairing.py, deltas.py).
"""

from __future__ import annotations

import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from gpu_train_cas.chunking import WHOLE_FILE_BYTES, Span, blocks
from gpu_train_cas.codecs import Encoded, encode, encode_object
from gpu_train_cas.deltas import MAX_DEPTH, base_within, can_lean_on
from gpu_train_cas.digest import HOLE, Digest, FileHasher, Kind, digest_of
from gpu_train_cas.errors import Damaged, NotFound, SourceChanged, UsageError
from gpu_train_cas.formats import FileSource, Layout, layout
from gpu_train_cas.lease import Lease
from gpu_train_cas.manifest import Manifest
from gpu_train_cas.packer import Packer
from gpu_train_cas.pairing import Bases, Pairer, Pairing
from gpu_train_cas.progress import Meter, OnProgress
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Registry
from gpu_train_cas.tensorclass import TensorClass
from gpu_train_cas.transaction import Tables, Transaction, commit_packs
from gpu_train_cas.tree import MODE_MASK, Entry, EntryKind, Tree

IN_FLIGHT_BYTES = 64 << 20
MAX_FOLDERS = 200
"""Folders within folders: each level holds a file descriptor while it is read."""

Exclude = Callable[[bytes, bool], bool]
"""Says of a path relative to the root (bytes, `/`) and whether it is a directory: leave it out?"""


class StatCache(Protocol):
    """Remembers which content a file had, by its stat; see gpu_train.stat_cache."""

    def lookup(self, path: bytes, found: os.stat_result) -> tuple[Digest, Digest | None] | None:
        """The digest and manifest of the file at a relative path if its stat is the one remembered."""
        ...

    def remember(self, path: bytes, found: os.stat_result, digest: Digest, manifest: Digest | None) -> None:
        """Take note of what a file with that stat holds."""
        ...


@dataclass(slots=True)
class ClassCost:
    """What the tensors of one class took.

    Attributes:
        original_bytes: their length.
        new_bytes: of these, bytes of blocks that the store did not have.
        stored_bytes: what the new blocks take as frames.
        depth: the most deltas on top of each other among the new blocks; 0 when all stand alone.
    """

    original_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    depth: int = 0


@dataclass(slots=True)
class Added:
    """What was read in.

    Attributes:
        root: the directory, ready to be the root of a record.
        files: files in it.
        size_bytes: original bytes in it.
        new_bytes: of these, bytes of blocks that the store did not have.
        stored_bytes: what the new blocks and objects take as frames.
        skipped: relative paths of what cannot be stored (sockets, FIFOs, devices).
        classes: per class of tensor, what that took; files taken from a stat cache are not among them.
    """

    root: Entry = field(init=False)
    files: int = 0
    size_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    skipped: list[bytes] = field(default_factory=list)
    classes: dict[TensorClass, ClassCost] = field(default_factory=dict)

    def count(self, tensor_class: TensorClass, named: _Named) -> None:
        """Add one block of a file."""
        cost = self.classes.setdefault(tensor_class, ClassCost())
        length = named.span.end - named.span.start
        cost.original_bytes += length
        if named.encoded is not None:
            self.new_bytes += length
            self.stored_bytes += len(named.encoded.payload)
            cost.new_bytes += length
            cost.stored_bytes += len(named.encoded.payload)
            cost.depth = max(cost.depth, named.depth)


@dataclass(slots=True)
class _Named:
    """A span once it has been named; `encoded` when the store does not have it yet.

    `depth` counts the deltas down to a block without a base, this one included.
    """

    span: Span
    digest: Digest
    encoded: Encoded | None = None
    base: Digest | None = None
    sibling: Digest | None = None
    depth: int = 0


class _Helper(NamedTuple):
    """A block that may help to encode another: a base with the deltas below it, or a sibling."""

    digest: Digest
    data: bytes | memoryview
    depth: int = 0


class _Open(NamedTuple):
    """A file that is being cut, its partners, and the siblings that must turn up in it."""

    source: FileSource
    pairing: Pairing
    promised: set[Digest]


class Writer:
    """One writer: its lease, its packs and what it relies on. Used by one thread; a context manager.

    Leaving it without `commit` drops all it wrote. After SourceChanged or StorageFull the writer can only
    be left.
    """

    def __init__(
        self, registry: Registry, tables: Tables, reader: Reader, folders: Folders, purpose: str,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        self._registry = registry
        self._tables = tables
        self._reader = reader
        self._folders = folders
        self._lease = Lease(folders.leases, purpose)
        with registry.read() as txn:
            self._lease.announce(tables.index.generation(txn))
        self._packer = Packer(folders.tmp, self._lease.id)
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="ingest")
        self._claims = threading.Lock()
        self._new: set[Digest] = set()
        self._relied: set[Digest] = set()
        # No block is both: what a sibling helps with has none itself, so that none ever needs itself.
        self._siblings: set[Digest] = set()
        self._leaning: set[Digest] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop what was not committed and end the lease; safe to call twice."""
        self._pool.shutdown(cancel_futures=True)
        self._packer.discard()
        self._lease.release()

    def add_tree(
        self, path: Path | bytes, *, exclude: Exclude | None = None, cache: StatCache | None = None,
        bases: Bases | None = None, progress: OnProgress | None = None,
    ) -> Added:  # fmt: skip
        """Read a directory in, with all below it; links are stored, not followed.

        `bases` are earlier directories that it may be like; new tensors are then stored as what differs from them.

        Raises:
            SourceChanged: when something changed or vanished meanwhile.
            StorageFull: when the disk is full.
            OSError: when something cannot be read; the message names it.
        """
        pairer = Pairer(self._reader, bases)
        return _Walk(self, exclude, cache, pairer, Meter("reading", progress)).tree(os.fsencode(path))

    def add_file(
        self, path: Path | bytes, *, name: bytes | None = None, bases: Bases | None = None,
        progress: OnProgress | None = None,
    ) -> Added:  # fmt: skip
        """Read one file in as a directory that holds just it, under its own name or another.

        Raises:
            SourceChanged, StorageFull, OSError: as for `add_tree`.
        """
        pairer = Pairer(self._reader, bases)
        return _Walk(self, None, None, pairer, Meter("reading", progress)).single(os.fsencode(path), name)

    @contextmanager
    def commit(self) -> Iterator[Transaction]:
        """Make what was added visible together with what the block puts; on an exception nothing is.

        Raises:
            StorageFull: when the disk is full; nothing was committed.
            Damaged: when something found in the store at first is gone; try again from the start.
        """
        self._packer.sync()
        with self._registry.write() as raw:
            for digest in self._relied:
                if not self._tables.index.revive(raw, digest):
                    raise Damaged(f"block {digest.hex()[:16]} vanished from the store while it was used; try again")
            yield Transaction(raw, self._tables, self._packer)
            commit_packs(raw, self._tables, self._packer, self._folders.packs)
        self._relied |= self._new
        self._new.clear()

    # What the walk uses

    def put_file(
        self, fd: int, found: os.stat_result, shape: Layout | None, pairing: Pairing, added: Added, meter: Meter
    ) -> Entry:
        """Cut, name and store an open regular file of more than WHOLE_FILE_BYTES."""
        file = _Open(FileSource(fd), pairing, set())
        hasher = FileHasher()
        digests, ends = bytearray(), []
        for named in self._named(file, blocks(file.source, shape, holes_of(fd, found)), hasher):
            span = named.span
            added.count(pairing.class_of(span), named)
            if named.encoded is not None:
                meter.progress.new_bytes += span.end - span.start
                self._packer.add(
                    Kind.BLOCK, named.digest, span.end - span.start, named.encoded, named.base, named.sibling
                )
            digests += named.digest
            ends.append(span.end)
            meter.progress.done_bytes += span.end - span.start
            meter.tick()
        if not file.promised <= self._new | self._relied:
            raise SourceChanged("its tensors were not the same when they were read again")
        digest = hasher.digest()
        manifest = None
        if len(ends) > 1 or bytes(digests) == HOLE:
            manifest = self._put_manifest(
                Manifest(
                    found.st_size, digest, bytes(digests), ends,
                    shape.format if shape else "", shape.tensors if shape else (),
                ), added,
            )  # fmt: skip
        return _file_entry(found, digest, manifest)

    def put_whole(self, fd: int, found: os.stat_result, added: Added, meter: Meter) -> Entry:
        """Name and store an open regular file of at most WHOLE_FILE_BYTES, as one block."""
        data = os.pread(fd, WHOLE_FILE_BYTES + 1, 0)
        if len(data) != found.st_size:
            raise SourceChanged(f"it was {found.st_size} bytes long and is {len(data)} now")
        digest = digest_of(data)
        meter.progress.done_bytes += len(data)
        encoded = None
        if data and not self._has(digest):
            encoded = encode_object(data)
            self._packer.add(Kind.BLOCK, digest, len(data), encoded)
            self._new.add(digest)
            meter.progress.new_bytes += len(data)
        added.count(TensorClass.OTHER, _Named(Span(0, len(data), "", None), digest, encoded))
        return _file_entry(found, digest, None)

    def put_tree(self, tree: Tree, added: Added) -> Digest:
        """Store a directory."""
        digest, data = tree.encode()
        self._put_object(Kind.TREE, digest, data, added)
        return digest

    def recall(self, digest: Digest, manifest: Digest | None) -> bool:
        """Whether a file that a cache remembers is still in the store whole; relied upon from then on."""
        wanted = {digest} if manifest is None else {manifest}
        if not self._known(wanted):
            return False
        if manifest is not None:
            try:
                wanted |= Manifest.decode(self._reader.object(manifest, Kind.MANIFEST)).stored_digests()
            except (NotFound, Damaged):  # collected this moment, or broken: the file is read again
                return False
            if not self._known(wanted):
                return False
        self._relied |= wanted
        return True

    def _put_manifest(self, manifest: Manifest, added: Added) -> Digest:
        digest, data = manifest.encode()
        self._put_object(Kind.MANIFEST, digest, data, added)
        return digest

    def _put_object(self, kind: Kind, digest: Digest, data: bytes, added: Added) -> None:
        if self._has(digest):
            return
        encoded = encode_object(data)
        self._packer.add(kind, digest, len(data), encoded)
        self._new.add(digest)
        added.stored_bytes += len(encoded.payload)

    def _named(self, file: _Open, spans: Iterator[Span], hasher: FileHasher) -> Iterator[_Named]:
        """Name and encode spans in the pool, in order, holding a bounded amount at once."""
        waiting: deque[Future[_Named]] = deque()
        held = 0
        for span in spans:
            if span.data is None:
                _hash_zeros(hasher, span.end - span.start)
            waiting.append(self._pool.submit(self._name, file, span))
            held += 0 if span.data is None else len(span.data)
            if span.data is not None:
                hasher.update(span.data)
            while waiting and (held > IN_FLIGHT_BYTES or waiting[0].done()):
                named = waiting.popleft().result()
                held -= 0 if named.span.data is None else len(named.span.data)
                yield named
        while waiting:
            yield waiting.popleft().result()

    def _name(self, file: _Open, span: Span) -> _Named:
        if span.data is None:
            return _Named(span, HOLE)
        digest = digest_of(span.data)
        if self._has(digest):
            return _Named(span, digest)
        with self._claims:  # claimed before it is encoded, so that a twin in flight is not encoded too
            if digest in self._new:
                return _Named(span, digest)
            self._new.add(digest)
        base = self._base(file.pairing, span)
        sibling = self._sibling(file, span, digest)
        encoded = encode(
            span.data, span.dtype, base=base.data if base else None, sibling=sibling.data if sibling else None
        )
        named = _Named(span, digest, encoded)
        if base is not None and encoded.uses_base:
            self._relied.add(base.digest)
            named.base, named.depth = base.digest, base.depth + 1
        if sibling is not None:
            self._settle_sibling(file, named, sibling.digest, encoded.uses_sibling)
        return named

    def _base(self, pairing: Pairing, span: Span) -> _Helper | None:
        """The block to take a delta against, if there is one that can be read."""
        candidate = pairing.base_of(span)
        depth = pairing.depth(span, MAX_DEPTH - 1)
        if candidate is None or depth < 0:
            return None
        with self._registry.read() as txn:
            found = base_within(txn, self._tables.index, candidate, depth)
        if found is None:
            return None
        try:
            data = self._reader.block(found[0], keep=False)
        except (NotFound, Damaged):  # collected this moment, or broken: the block is stored without it
            return None
        return _Helper(found[0], data, found[1]) if len(data) == span.end - span.start else None

    def _sibling(self, file: _Open, span: Span, digest: Digest) -> _Helper | None:
        """The block of the second moment beside one of the first; it may still have to be read and stored."""
        place = file.pairing.sibling_of(span)
        if place is None:
            return None
        data = file.source.pread(place[1] - place[0], place[0])
        sibling = digest_of(data)
        if len(data) != span.end - span.start or sibling == digest:
            return None
        if sibling not in self._new and self._has(sibling):
            with self._registry.read() as txn:
                if not can_lean_on(txn, self._tables.index, sibling):
                    return None
        with self._claims:
            if sibling in self._leaning or digest in self._siblings:
                return None
            self._siblings.add(sibling)
            self._leaning.add(digest)
        return _Helper(sibling, data)

    def _settle_sibling(self, file: _Open, named: _Named, sibling: Digest, used: bool) -> None:
        with self._claims:
            if used:
                named.sibling = sibling
                file.promised.add(sibling)
            else:
                self._leaning.discard(named.digest)

    def _has(self, digest: Digest) -> bool:
        if digest in self._new or digest in self._relied:
            return True
        if self._known({digest}):
            self._relied.add(digest)
            return True
        return False

    def _known(self, digests: set[Digest]) -> bool:
        with self._registry.read() as txn:
            return all(self._tables.index.usable(txn, d) for d in digests)


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a store keeps its files: packs, what is not finished, and the marks of its writers."""

    packs: Path
    tmp: Path
    leases: Path


class _Walk:
    """One walk over a directory tree, through descriptors, so that a renamed folder cannot mislead it."""

    def __init__(
        self, writer: Writer, exclude: Exclude | None, cache: StatCache | None, pairer: Pairer, meter: Meter
    ) -> None:
        self._writer = writer
        self._exclude = exclude
        self._cache = cache
        self._pairer = pairer
        self._meter = meter
        self._added = Added()

    def tree(self, path: bytes) -> Added:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._finish(self._directory(fd, b"", b""))

    def single(self, path: bytes, name: bytes | None) -> Added:
        folder, own = os.path.split(path)
        fd = os.open(folder or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = os.stat(own, dir_fd=fd)
            entry = self._file(fd, own, own, found, follow=True)
        finally:
            os.close(fd)
        return self._finish(self._close_directory(b"", [_renamed(entry, name or own)], 0o755, found.st_mtime_ns))

    def _finish(self, root: Entry) -> Added:
        self._added.root = root
        self._added.files, self._added.size_bytes = root.files, root.size_bytes
        self._meter.tick(last=True)
        return self._added

    def _directory(self, fd: int, name: bytes, path: bytes) -> Entry:
        """Store an open directory, closing it."""
        entries = []
        try:
            if path.count(b"/") >= MAX_FOLDERS:
                raise UsageError(f"{os.fsdecode(path[:80])}...: folders lie deeper than {MAX_FOLDERS} levels")
            found = os.fstat(fd)
            with os.scandir(fd) as listing:
                names = sorted(os.fsencode(e.name) for e in listing)
            for child in names:
                entry = self._entry(fd, child, path + b"/" + child if path else child)
                if entry is not None:
                    entries.append(entry)
        finally:
            os.close(fd)
        return self._close_directory(name, entries, stat.S_IMODE(found.st_mode), found.st_mtime_ns)

    def _close_directory(self, name: bytes, entries: list[Entry], mode: int, mtime_ns: int) -> Entry:
        tree = Tree.of(entries)
        return Entry(
            name, EntryKind.DIRECTORY, mode & MODE_MASK, mtime_ns, sum(e.size_bytes for e in entries if e.files),
            self._writer.put_tree(tree, self._added), None, tree.content(), sum(e.files for e in entries),
        )  # fmt: skip

    def _entry(self, folder: int, name: bytes, path: bytes) -> Entry | None:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            is_dir = stat.S_ISDIR(found.st_mode)
            if self._exclude is not None and self._exclude(path, is_dir):
                return None
            if is_dir:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                return self._directory(os.open(name, flags, dir_fd=folder), name, path)
            if stat.S_ISLNK(found.st_mode):
                target = os.readlink(name, dir_fd=folder)
                return _link_entry(name, found, target)
            if stat.S_ISREG(found.st_mode):
                return self._file(folder, name, path, found)
        except FileNotFoundError as e:
            raise SourceChanged(f"{os.fsdecode(path)} vanished while it was being read") from e
        self._added.skipped.append(path)
        return None

    def _file(self, folder: int, name: bytes, path: bytes, found: os.stat_result, *, follow: bool = False) -> Entry:
        self._meter.progress.path = os.fsdecode(path)
        entry = self._remembered(path, found)
        if entry is None:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
            fd = os.open(name, flags, dir_fd=folder)
            try:
                entry = self._read(fd, path)
            finally:
                os.close(fd)
            if self._cache is not None:
                self._cache.remember(path, found, entry.digest, entry.manifest)
        self._meter.progress.files_done += 1
        self._meter.tick()
        return _renamed(entry, name)

    def _read(self, fd: int, path: bytes) -> Entry:
        """Store an open file and make sure that it stayed the same meanwhile."""
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise SourceChanged(f"{os.fsdecode(path)} was replaced while it was being read")
        try:
            entry = self._put(fd, before, path)
        except SourceChanged as e:
            raise SourceChanged(f"{os.fsdecode(path)} changed while it was being read: {e}") from e
        after = os.fstat(fd)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise SourceChanged(f"{os.fsdecode(path)} changed while it was being read")
        return entry

    def _put(self, fd: int, found: os.stat_result, path: bytes) -> Entry:
        if found.st_size <= WHOLE_FILE_BYTES:
            return self._writer.put_whole(fd, found, self._added, self._meter)
        shape = layout(FileSource(fd), os.fsdecode(path))
        pairing = self._pairer.pair(path, shape, found.st_size)
        return self._writer.put_file(fd, found, shape, pairing, self._added, self._meter)

    def _remembered(self, path: bytes, found: os.stat_result) -> Entry | None:
        known = None if self._cache is None else self._cache.lookup(path, found)
        if known is None or (found.st_size and not self._writer.recall(*known)):
            return None
        self._meter.progress.done_bytes += found.st_size
        return _file_entry(found, *known)


def holes_of(fd: int, found: os.stat_result) -> list[tuple[int, int]]:
    """The ranges (start, end) of a file that were never allocated, in bytes."""
    holes: list[tuple[int, int]] = []
    if found.st_blocks * 512 >= found.st_size:
        return holes
    at = 0
    while at < found.st_size:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole from here on; others: the filesystem cannot tell
            data = found.st_size if at or found.st_blocks == 0 else at
        if data > at:
            holes.append((at, data))
        if data >= found.st_size:
            break
        try:
            at = os.lseek(fd, data, os.SEEK_HOLE)
        except OSError:
            break
    return holes


def _hash_zeros(hasher: FileHasher, count: int) -> None:
    zeros = memoryview(bytes(1 << 20))
    while count > 0:
        hasher.update(zeros[: min(count, len(zeros))])
        count -= len(zeros)


def _file_entry(found: os.stat_result, digest: Digest, manifest: Digest | None) -> Entry:
    mode = stat.S_IMODE(found.st_mode)
    return Entry(b"", EntryKind.FILE, mode, found.st_mtime_ns, found.st_size, digest, manifest, None, 1)


def _link_entry(name: bytes, found: os.stat_result, target: bytes) -> Entry:
    return Entry(
        name, EntryKind.SYMLINK, stat.S_IMODE(found.st_mode), found.st_mtime_ns, len(target), digest_of(target),
        target=target,
    )  # fmt: skip


def _renamed(entry: Entry, name: bytes) -> Entry:
    return Entry(
        name, entry.kind, entry.mode, entry.mtime_ns, entry.size_bytes, entry.digest, entry.manifest,
        entry.content, entry.files, entry.target,
    )  # fmt: skip
