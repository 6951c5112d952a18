"""Walking over what is to be brought in, through descriptors, so that a renamed folder cannot mislead it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gpu_train_cas.added import Added
from gpu_train_cas.chunking import WHOLE_FILE_BYTES
from gpu_train_cas.digest import Digest, digest_of
from gpu_train_cas.errors import SourceChanged, UsageError
from gpu_train_cas.formats import METADATA, FileSource, Layout, layout, read_items
from gpu_train_cas.pairing import Pairer, Pairing
from gpu_train_cas.progress import Meter
from gpu_train_cas.tree import MODE_MASK, Entry, EntryKind, Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpu_train_cas.formats import Items, Source, Tensor

MAX_DEPTH = 200
"""Folders within folders: each level holds a file descriptor while it is read."""

_DISTCP = b".distcp"

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


class Receiver(Protocol):
    """What the walk hands files and directories to."""

    def put_file(
        self, fd: int, found: os.stat_result, shape: Layout | None, pairing: Pairing, added: Added, meter: Meter
    ) -> tuple[Digest, Digest | None]:
        """Store an open file of more than WHOLE_FILE_BYTES; its digest and manifest."""
        ...

    def put_whole(self, fd: int, found: os.stat_result, added: Added, meter: Meter) -> Digest:
        """Store an open file of at most WHOLE_FILE_BYTES; its digest."""
        ...

    def put_source(
        self, source: Source, holes: Sequence[tuple[int, int]], shape: Layout | None, tensors: Sequence[Tensor],
        pairing: Pairing, added: Added, meter: Meter,
    ) -> tuple[Digest, Digest | None]:  # fmt: skip
        """Store bytes that are no open file, cut as `shape` says; the manifest tells of `tensors`."""
        ...

    def put_bytes(self, data: bytes, added: Added, meter: Meter) -> Digest:
        """Store at most WHOLE_FILE_BYTES; their digest."""
        ...

    def put_tree(self, tree: Tree, added: Added) -> Digest:
        """Store a directory."""
        ...

    def recall(self, digest: Digest, manifest: Digest | None) -> bool:
        """Whether a file that a cache remembers is still in the store whole; relied upon from then on."""
        ...


class Walk:
    """One walk over a directory tree or to a single file."""

    def __init__(
        self, receiver: Receiver, exclude: Exclude | None, cache: StatCache | None, pairer: Pairer, meter: Meter, *,
        follow: bool = False,
    ) -> None:  # fmt: skip
        self._receiver = receiver
        self._exclude = exclude
        self._cache = cache
        self._pairer = pairer
        self._follow = follow
        self._meter = meter
        self._added = Added()
        self._items: tuple[bytes, Items] | None = None

    def tree(self, path: bytes) -> Added:
        """Read a directory in."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._finish(self._directory(fd, b"", b""))

    def single(self, path: bytes, name: bytes | None) -> Added:
        """Read one file in, as a directory that holds just it."""
        folder, own = os.path.split(path)
        fd = os.open(folder or b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = os.stat(own, dir_fd=fd)
            entry = self._file(fd, own, own, found, follow=True)
        finally:
            os.close(fd)
        return self._finish(
            directory_entry(self._receiver, self._added, b"", [_renamed(entry, name or own)], 0o755, found.st_mtime_ns)
        )

    def _finish(self, root: Entry) -> Added:
        self._added.root = root
        self._added.files, self._added.size_bytes = root.files, root.size_bytes
        self._meter.tick(last=True)
        return self._added

    def _directory(self, fd: int, name: bytes, path: bytes) -> Entry:
        """Store an open directory, closing it."""
        entries = []
        try:
            if path.count(b"/") >= MAX_DEPTH:
                raise UsageError(f"{os.fsdecode(path[:80])}...: folders lie deeper than {MAX_DEPTH} levels")
            found = os.fstat(fd)
            with os.scandir(fd) as listing:
                names = sorted(os.fsencode(e.name) for e in listing)
            for child in names:
                entry = self._entry(fd, child, path + b"/" + child if path else child)
                if entry is not None:
                    entries.append(entry)
        finally:
            os.close(fd)
        return directory_entry(
            self._receiver, self._added, name, entries, stat.S_IMODE(found.st_mode), found.st_mtime_ns
        )

    def _entry(self, folder: int, name: bytes, path: bytes) -> Entry | None:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            is_dir = stat.S_ISDIR(found.st_mode)
            if self._exclude is not None and self._exclude(path, is_dir):
                return None
            if is_dir:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                return self._directory(os.open(name, flags, dir_fd=folder), name, path)
            if stat.S_ISLNK(found.st_mode) and self._follow:
                behind = os.stat(name, dir_fd=folder)
                if stat.S_ISREG(behind.st_mode):
                    return self._file(folder, name, path, behind, follow=True)
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
                entry = self._read(fd, path, folder)
            finally:
                os.close(fd)
            if self._cache is not None:
                self._cache.remember(path, found, entry.digest, entry.manifest)
        self._meter.progress.files_done += 1
        self._meter.tick()
        return _renamed(entry, name)

    def _read(self, fd: int, path: bytes, folder: int) -> Entry:
        """Store an open file and make sure that it stayed the same meanwhile."""
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise SourceChanged(f"{os.fsdecode(path)} was replaced while it was being read")
        try:
            entry = self._put(fd, before, path, folder)
        except SourceChanged as e:
            raise SourceChanged(f"{os.fsdecode(path)} changed while it was being read: {e}") from e
        after = os.fstat(fd)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise SourceChanged(f"{os.fsdecode(path)} changed while it was being read")
        return entry

    def _put(self, fd: int, found: os.stat_result, path: bytes, folder: int) -> Entry:
        if found.st_size <= WHOLE_FILE_BYTES:
            return _file_entry(found, self._receiver.put_whole(fd, found, self._added, self._meter), None)
        items = self._items_beside(folder, path) if path.endswith(_DISTCP) else None
        shape = layout(FileSource(fd), os.fsdecode(path), items)
        pairing = self._pairer.pair(path, shape, found.st_size)
        return _file_entry(found, *self._receiver.put_file(fd, found, shape, pairing, self._added, self._meter))

    def _items_beside(self, folder: int, path: bytes) -> Items:
        """What the parts of the distributed checkpoint in an open folder are called; nothing when nothing says so."""
        above = path.rpartition(b"/")[0]
        if self._items is None or self._items[0] != above:
            items: Items = {}
            try:
                fd = os.open(METADATA, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            except OSError:
                pass
            else:
                try:
                    items = read_items(FileSource(fd))
                finally:
                    os.close(fd)
            self._items = above, items
        return self._items[1]

    def _remembered(self, path: bytes, found: os.stat_result) -> Entry | None:
        known = None if self._cache is None else self._cache.lookup(path, found)
        if known is None or (found.st_size and not self._receiver.recall(*known)):
            return None
        self._meter.progress.done_bytes += found.st_size
        return _file_entry(found, *known)


def directory_entry(
    receiver: Receiver, added: Added, name: bytes, entries: Sequence[Entry], mode: int, mtime_ns: int
) -> Entry:
    """Store a directory of these entries; the entry that it is itself."""
    tree = Tree.of(entries)
    return Entry(
        name, EntryKind.DIRECTORY, mode & MODE_MASK, mtime_ns, sum(e.size_bytes for e in entries if e.files),
        receiver.put_tree(tree, added), None, tree.content(), sum(e.files for e in entries),
    )  # fmt: skip


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
