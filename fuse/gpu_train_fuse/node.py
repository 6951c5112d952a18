"""What a file system is made of: directories, files and links, each knowing its own attributes.

Three families share the interface: what the store holds and never changes (`StoredDirectory`,
`StoredFile`, `StoredLink`), plain files of the home that may still grow (`LiveDirectory`, `LiveFile`),
and what is made up for the view (`TextFile`, `Pointer`; the made-up directories are in `tree`).
"""

from __future__ import annotations

import os
import stat
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from blake3 import blake3

from gpu_train_cas import Digest, Entry, EntryKind, Manifest, Tree
from gpu_train_cas.errors import Damaged, NotFound

XATTR_PREFIX = "user.gpu_train."


@dataclass(frozen=True, slots=True)
class Attributes:
    """What stat(2) says of a node; `mode` is the permission bits as they were in the original."""

    kind: EntryKind
    mode: int
    size_bytes: int
    mtime_ns: int


class Handle(Protocol):
    """An open file. Several threads may read it at once."""

    def readinto(self, buffer: memoryview, offset: int, /) -> int:
        """Fill the buffer with the bytes from `offset` on; how many, fewer only at the end of the file.

        The buffer is the kernel's reply itself: no copy of the bytes lies between the engine and it.
        """
        ...

    def close(self) -> None:
        """Give up what the handle holds; no read follows."""
        ...


class Node(ABC):
    """One thing with a name. Nodes are cheap, immutable views and are made anew for each look."""

    live = False
    """True when the attributes may differ at the next look at the same path."""

    @abstractmethod
    def attributes(self) -> Attributes:
        """Kind, permissions, size, time."""

    def xattrs(self) -> Mapping[str, bytes]:
        """Extended attributes by full name; none unless said otherwise."""
        return {}

    def measures(self) -> Mapping[str, Callable[[], bytes]]:
        """Further extended attributes: the names cost nothing, each value is worked out when somebody asks for it."""
        return {}


class Directory(Node):
    """A node with named nodes in it."""

    @abstractmethod
    def find(self, name: bytes) -> Node | None:
        """The node of that name, or None."""

    @abstractmethod
    def names(self) -> Iterator[tuple[bytes, EntryKind]]:
        """Every name once, with the kind of node it stands for, in no promised order."""


class File(Node):
    """A node with bytes."""

    @property
    @abstractmethod
    def identity(self) -> bytes | None:
        """Equal exactly when the bytes are; None for bytes that may change under one's feet.

        The kernel may keep the pages of a file that has one, for as long as it stays the same.
        """

    @abstractmethod
    def open(self) -> Handle:
        """Start reading."""


class Link(Node):
    """A symbolic link."""

    @abstractmethod
    def target(self) -> bytes:
        """Where it points, as stored."""


# ---- what the store holds ---------------------------------------------------------------------


class Bytes(Protocol):
    """A stored file's bytes at any offset, for any number of threads; nothing to close."""

    @property
    def manifest(self) -> Manifest:
        """The blocks it is made of."""
        ...

    def readinto(self, buffer: memoryview, offset: int, /) -> int:
        """As `Handle.readinto`; raises Damaged or NotFound when a block in that range is."""
        ...


class Objects(Protocol):
    """The part of the engine's reader that nodes need; safe to share between threads."""

    def tree(self, digest: Digest, /) -> Tree:
        """A directory's entries."""
        ...

    def open(self, entry: Entry, /) -> Bytes:
        """A file's bytes, checked as they are read."""
        ...


class DecodedTrees:
    """An `Objects` that keeps decoded directories, so that a look into a large one does not decode it again.

    Bounded by the number of entries over all kept directories; the one in use is always kept.
    """

    def __init__(self, objects: Objects, max_entries: int = 200_000) -> None:
        self._objects = objects
        self._max_entries = max_entries
        self._trees: OrderedDict[Digest, Tree] = OrderedDict()
        self._entries = 0
        self._lock = threading.Lock()

    def tree(self, digest: Digest, /) -> Tree:
        """A directory's entries; two threads may decode the same one at once, never under the lock."""
        with self._lock:
            found = self._trees.get(digest)
            if found is not None:
                self._trees.move_to_end(digest)
                return found
        found = self._objects.tree(digest)
        with self._lock:
            if digest not in self._trees:
                self._trees[digest] = found
                self._entries += len(found.entries)
            while self._entries > self._max_entries and len(self._trees) > 1:
                self._entries -= len(self._trees.popitem(last=False)[1].entries)
        return found

    def open(self, entry: Entry, /) -> Bytes:
        """A file's bytes."""
        return self._objects.open(entry)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where stored nodes come from: the engine's reader, and the record all of them hang from.

    `holding` keeps that record from being collected while a file of it is open; `stored_bytes` tells what a file or
    folder takes in the store.
    """

    objects: Objects
    record: Digest
    step: int | None
    holding: Callable[[Digest], AbstractContextManager[None]]
    stored_bytes: Callable[[Entry], int]

    def node(self, entry: Entry) -> Node:
        """The entry as a node."""
        if entry.kind is EntryKind.DIRECTORY:
            return StoredDirectory(entry, self)
        return StoredFile(entry, self) if entry.kind is EntryKind.FILE else StoredLink(entry, self)

    def xattrs(self, entry: Entry) -> dict[str, bytes]:
        """The digest of the entry's content, its record, and the training step when there is one."""
        facts = {"digest": entry.identity.hex(), "record": self.record.hex()}
        if self.step is not None:
            facts["step"] = str(self.step)
        return {XATTR_PREFIX + key: value.encode() for key, value in facts.items()}

    def measures(self, entry: Entry) -> dict[str, Callable[[], bytes]]:
        """How many times larger the entry is than what it takes in the store; nothing of one without bytes."""
        if not entry.size_bytes or entry.kind is EntryKind.SYMLINK:
            return {}

        def codec_ratio() -> bytes:
            return f"{entry.size_bytes / max(1, self.stored_bytes(entry)):.3f}".encode()

        return {XATTR_PREFIX + "codec_ratio": codec_ratio}


class _Stored(Node):
    def __init__(self, entry: Entry, origin: Origin) -> None:
        self.entry = entry
        self.origin = origin

    def attributes(self) -> Attributes:
        # A directory's size is what ext4 would show; the sum of the files is no size of the directory.
        size = 4096 if self.entry.kind is EntryKind.DIRECTORY else self.entry.size_bytes
        return Attributes(self.entry.kind, self.entry.mode, size, self.entry.mtime_ns)

    def xattrs(self) -> Mapping[str, bytes]:
        return self.origin.xattrs(self.entry)

    def measures(self) -> Mapping[str, Callable[[], bytes]]:
        return self.origin.measures(self.entry)


class StoredDirectory(_Stored, Directory):
    """A directory of a record.

    Raises:
        Damaged: by `find` and `names`, when the tree object cannot be read; a missing one counts as
            damaged, so that nobody takes it for a directory without files.
    """

    def _tree(self) -> Tree:
        try:
            return self.origin.objects.tree(self.entry.digest)
        except NotFound as e:
            raise Damaged(f"a directory of record {self.origin.record.hex()[:16]} is missing: {e}") from e

    def find(self, name: bytes) -> Node | None:
        """The node of that name, or None."""
        found = self._tree().find(name)
        return None if found is None else self.origin.node(found)

    def names(self) -> Iterator[tuple[bytes, EntryKind]]:
        """The names as stored."""
        return ((entry.name, entry.kind) for entry in self._tree().entries)


class StoredFile(_Stored, File):
    """A file of a record."""

    @property
    def identity(self) -> bytes:
        """The file's digest."""
        return self.entry.digest

    def open(self) -> Handle:
        """Start reading; raises Damaged when the file's manifest is missing or unreadable.

        Also NotFound when the whole record is gone.
        """
        with ExitStack() as held:
            held.enter_context(self.origin.holding(self.origin.record))
            try:
                return _StoredHandle(self.origin.objects.open(self.entry), held.pop_all())
            except NotFound as e:
                raise Damaged(f"a manifest of record {self.origin.record.hex()[:16]} is missing: {e}") from e


class _StoredHandle:
    def __init__(self, stored: Bytes, held: ExitStack) -> None:
        self._stored = stored
        self._held = held

    def readinto(self, buffer: memoryview, offset: int, /) -> int:
        try:
            return self._stored.readinto(buffer, offset)
        except (Damaged, NotFound) as e:
            raise Damaged(self._blame(len(buffer), offset) or str(e)) from e

    def close(self) -> None:
        self._held.close()

    def _blame(self, length: int, offset: int) -> str | None:
        """Which block of that range it is, since the reason alone (a header's checksum, say) need not tell."""
        for ref in self._stored.manifest.covering(offset, offset + length):
            try:
                self._stored.readinto(memoryview(bytearray(1)), ref.start)
            except (Damaged, NotFound) as e:
                return f"block {ref.digest.hex()[:16]} (bytes {ref.start} to {ref.end}) cannot be read: {e}"
        return None


class StoredLink(_Stored, Link):
    """A symbolic link of a record."""

    def target(self) -> bytes:
        """Where it points, as stored: it may lead out of the mount, as it may have led out of the folder."""
        return self.entry.target


# ---- plain files of the home -------------------------------------------------------------------


class LiveDirectory(Directory):
    """A plain directory: its regular files and directories; links and devices in it are not shown."""

    live = True

    def __init__(self, path: Path, suffix: str = "") -> None:
        """Show `path`; with a suffix only files whose name ends so."""
        self._path = path
        self._suffix = os.fsencode(suffix)

    def attributes(self) -> Attributes:
        """As they are now; raises FileNotFoundError when the directory is gone."""
        return _live_attributes(self._path)

    def find(self, name: bytes) -> Node | None:
        """The node of that name as it is now, or None."""
        path = self._path / os.fsdecode(name)
        try:
            mode = path.lstat().st_mode
        except OSError:
            return None
        if stat.S_ISDIR(mode):
            return LiveDirectory(path, os.fsdecode(self._suffix))
        return LiveFile(path) if stat.S_ISREG(mode) and name.endswith(self._suffix) else None

    def names(self) -> Iterator[tuple[bytes, EntryKind]]:
        """The names that are there now."""
        with os.scandir(os.fsencode(self._path)) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    yield item.name, EntryKind.DIRECTORY
                elif item.is_file(follow_symlinks=False) and item.name.endswith(self._suffix):
                    yield item.name, EntryKind.FILE


class LiveFile(File):
    """A plain file that may still grow."""

    live = True
    identity = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def attributes(self) -> Attributes:
        """As they are now; raises FileNotFoundError when the file is gone."""
        return _live_attributes(self._path)

    def open(self) -> Handle:
        """Open the file as it is now; raises OSError when it is gone or has become a link."""
        return _PlainHandle(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))


class _PlainHandle:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def readinto(self, buffer: memoryview, offset: int, /) -> int:
        return os.preadv(self._fd, [buffer], offset)

    def close(self) -> None:
        os.close(self._fd)


def _live_attributes(path: Path) -> Attributes:
    found = path.lstat()
    kind = EntryKind.DIRECTORY if stat.S_ISDIR(found.st_mode) else EntryKind.FILE
    return Attributes(kind, stat.S_IMODE(found.st_mode), found.st_size, found.st_mtime_ns)


# ---- made up for the view ----------------------------------------------------------------------


class TextFile(File):
    """A file whose bytes are made for the view. No identity: its text may differ at the next look."""

    identity = None

    def __init__(self, data: bytes, mtime_ns: int) -> None:
        self._data = data
        self._mtime_ns = mtime_ns

    def attributes(self) -> Attributes:
        """A file that everyone may read."""
        return Attributes(EntryKind.FILE, 0o644, len(self._data), self._mtime_ns)

    def xattrs(self) -> Mapping[str, bytes]:
        """The digest of the text."""
        return {XATTR_PREFIX + "digest": blake3(self._data).hexdigest().encode()}

    def open(self) -> Handle:
        """The text as it was when the node was made."""
        return _TextHandle(self._data)


class _TextHandle:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def readinto(self, buffer: memoryview, offset: int, /) -> int:
        part = self._data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        pass


class Pointer(Link):
    """A made-up link, such as `latest`."""

    def __init__(self, target: bytes, mtime_ns: int) -> None:
        self._target = target
        self._mtime_ns = mtime_ns

    def attributes(self) -> Attributes:
        """A link that everyone may follow."""
        return Attributes(EntryKind.SYMLINK, 0o777, len(self._target), self._mtime_ns)

    def target(self) -> bytes:
        """Where it points, relative to the link."""
        return self._target
