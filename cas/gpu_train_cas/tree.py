"""One directory: its entries, in the byte order of their names (cas/spec/blocks.md, Trees)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple, Self

import msgpack

from gpu_train_cas.digest import DIGEST_BYTES, Digest, Kind, content_digest, digest_of
from gpu_train_cas.errors import Damaged, TooNew, UnsafeName

VERSION = 1
MODE_MASK = 0o7777


class EntryKind(IntEnum):
    """What a name stands for. Devices, sockets and FIFOs are not stored."""

    FILE = 0
    DIRECTORY = 1
    SYMLINK = 2


class Entry(NamedTuple):
    """One name in a directory.

    Attributes:
        name: the bytes of the name; empty for the root of a record.
        kind: file, directory or symbolic link.
        mode: permission bits, 0o7777 at most.
        mtime_ns: last modification, nanoseconds since the epoch.
        size_bytes: a file's length; a link's target length; for a directory the sum of all files below.
        digest: a file's plain BLAKE3 (which is also its block's, when it has one block); a directory's
            tree object; a link's plain BLAKE3 of the target.
        manifest: the manifest object of a file that has one; None for files of no or one block.
        content: a directory's digest over names, kinds, modes and contents, blind to times; None for
            the others, whose digest is that already (see `identity`).
        files: files in or below a directory; 1 for a file, 0 for a link.
        target: where a symbolic link points, as stored; empty for the others.
    """

    name: bytes
    kind: EntryKind
    mode: int
    mtime_ns: int
    size_bytes: int
    digest: Digest
    manifest: Digest | None = None
    content: Digest | None = None
    files: int = 0
    target: bytes = b""

    @property
    def identity(self) -> Digest:
        """What the entry holds, blind to times: equal exactly when names below, modes and bytes are."""
        return self.content or self.digest

    def to_wire(self) -> list[Any]:
        """The entry as the list that a tree or a record holds."""
        return [
            self.name, int(self.kind), self.mode, self.mtime_ns, self.size_bytes, self.digest,
            self.manifest, self.content, self.files, self.target,
        ]  # fmt: skip

    @classmethod
    def from_wire(cls, wire: list[Any], *, root: bool = False) -> Self:
        """Read an entry back.

        Raises:
            UnsafeName: for a name that would leave its directory.
            Damaged: for a list of the wrong shape.
        """
        try:
            name, kind, mode, mtime_ns, size, digest, manifest, content, files, target = wire[:10]
            digests = [digest] + [d for d in (manifest, content) if d is not None]
            if not (
                isinstance(name, bytes)
                and isinstance(target, bytes)
                and all(isinstance(n, int) for n in (mode, mtime_ns, size, files))
                and size >= 0
                and all(isinstance(d, bytes) and len(d) == DIGEST_BYTES for d in digests)
            ):
                raise ValueError("field of the wrong type")
            entry = cls(
                name, EntryKind(kind), mode & MODE_MASK, mtime_ns, size, digest, manifest,
                content, files, target,
            )  # fmt: skip
        except (ValueError, TypeError) as e:
            raise Damaged(f"a directory entry cannot be read: {e}") from e
        if not root:
            check_name(entry.name)
        return entry


def check_name(name: bytes) -> None:
    """Refuse what is not the plain name of something inside a directory.

    Raises:
        UnsafeName: for "", ".", "..", and names with a slash or a NUL.
    """
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise UnsafeName(f"stored name {name!r} would leave its folder; the record is damaged or hostile")


@dataclass(frozen=True, slots=True)
class Tree:
    """A directory's entries, sorted by name, each name once."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        """Sort the entries into a tree."""
        return cls(tuple(sorted(entries, key=lambda e: e.name)))

    def encode(self) -> tuple[Digest, bytes]:
        """The tree's name and bytes; the same entries always give the same bytes."""
        data: bytes = msgpack.packb([VERSION, [e.to_wire() for e in self.entries]])
        return digest_of(data, Kind.TREE), data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a tree back.

        Raises:
            Damaged: for bytes that are no tree, or one with names out of order or twice.
            UnsafeName: for names that would leave the directory.
            TooNew: for a later version.
        """
        try:
            version, wires = msgpack.unpackb(data)[:2]
            wires = list(wires)
        except (ValueError, TypeError, LookupError, msgpack.UnpackException) as e:
            raise Damaged(f"a tree cannot be read: {e}") from e
        if version != VERSION:
            raise TooNew(f"a tree of version {version}: this gpu-train reads {VERSION}; install a newer one")
        entries = tuple(Entry.from_wire(w) for w in wires)
        if any(a.name >= b.name for a, b in pairwise(entries)):
            raise Damaged("a tree's names are out of order")
        return cls(entries)

    def content(self) -> Digest:
        """The digest of what the directory holds, blind to times."""
        rows = [[e.name, int(e.kind), e.mode, e.identity] for e in self.entries]
        return content_digest(msgpack.packb(rows))

    def find(self, name: bytes) -> Entry | None:
        """The entry of that name, by binary search."""
        low, high = 0, len(self.entries)
        while low < high:
            mid = (low + high) // 2
            if self.entries[mid].name < name:
                low = mid + 1
            else:
                high = mid
        found = self.entries[low] if low < len(self.entries) else None
        return found if found is not None and found.name == name else None
