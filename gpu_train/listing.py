"""What a project's folder holds and what is left out of it, found by one walk that reads no file."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgpack
from blake3 import blake3

from gpu_train.exclude import IGNORE_FILE, Excludes, looks_generated
from gpu_train.stat_cache import Signature, StatCache, is_racy, signature_of
from gpu_train_cas.errors import GpuTrainError

COUNT_LIMIT = 200_000
"""Entries looked at inside left-out folders in one walk; beyond it the counts are too low and say so."""

LARGEST = 10
_NOT_READABLE = "make it readable, or name it in " + os.fsdecode(IGNORE_FILE)


@dataclass(frozen=True, slots=True)
class LeftOutPath:
    """A file or a whole folder that was left out.

    Attributes:
        path: relative to the root; a folder ends with a slash.
        files: how many files that is.
        size_bytes: their bytes.
        exact: False when the folder was too large to count in full: there are at least as many.
    """

    path: str
    files: int
    size_bytes: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Everything that was left out, as sums and the ten largest; each folder counts as one path.

    A folder is counted when it is first met and whenever names directly in it come or go; what happens deeper
    down meanwhile is not noticed.
    """

    files: int = 0
    size_bytes: int = 0
    exact: bool = True
    largest: tuple[LeftOutPath, ...] = ()

    @classmethod
    def of(cls, paths: Sequence[LeftOutPath]) -> Self:
        """Sum the paths up."""
        largest = sorted(paths, key=lambda p: (-p.size_bytes, -p.files, p.path))[:LARGEST]
        return cls(
            sum(p.files for p in paths), sum(p.size_bytes for p in paths), all(p.exact for p in paths),
            tuple(largest),
        )  # fmt: skip

    def to_row(self) -> dict[str, Any]:
        """The sums as msgpack and JSON types."""
        largest = [[p.path, p.files, p.size_bytes, p.exact] for p in self.largest]
        return {
            "files": self.files, "size_bytes": self.size_bytes, "exact": self.exact, "largest": largest,
        }  # fmt: skip

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a row back."""
        largest = tuple(LeftOutPath(*path) for path in row.get("largest", ()))
        return cls(row.get("files", 0), row.get("size_bytes", 0), row.get("exact", True), largest)


Item = tuple[bytes, Signature]
"""Something that is kept: its path from the root, and its signature (of a folder only the mode)."""


@dataclass(slots=True)
class Listing:
    """The result of a walk.

    Attributes:
        items: what is kept, sorted by path; folders too.
        left_out: what is not.
        skipped: what cannot be kept: sockets, FIFOs, devices, and what `leave_moving` took out.
        size_bytes: bytes of the files that are kept.
    """

    items: list[Item] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    skipped: list[bytes] = field(default_factory=list)
    size_bytes: int = 0

    def leave_moving(self, before: Listing) -> None:
        """Take the files out that changed or came since an earlier listing; they are skipped then."""
        then = dict(before.items)
        moving = {p: s[0] for p, s in self.items if then.get(p) != s and not stat.S_ISDIR(s[-1])}
        self.items = [item for item in self.items if item[0] not in moving]
        self.size_bytes -= sum(moving.values())
        self.skipped = sorted([*self.skipped, *moving])

    def fingerprint(self) -> bytes:
        """A digest of all paths and their signatures: the same only when nothing was touched."""
        return blake3(msgpack.packb([self.items, self.skipped])).digest()

    def is_racy(self, moment_ns: int) -> bool:
        """Whether some file could have changed since that moment without another fingerprint."""
        return any(is_racy(s, moment_ns) for _, s in self.items if not stat.S_ISDIR(s[-1]))


def list_folder(root: Path, excludes: Excludes, cache: StatCache) -> Listing:
    """Walk `root`. Folders that are left out are entered only to count what they hold.

    Such a count is noted in the cache and used again while the folder itself looks the same.

    Raises:
        GpuTrainError: when a folder cannot be read, naming it.
        UsageError: for a wrong pattern in an ignore file.
    """
    return _Walk(os.path.realpath(os.fsencode(root)), cache).run(excludes)


class _Walk:
    """One walk: a stack of folders, and what was found so far."""

    def __init__(self, root: bytes, cache: StatCache) -> None:
        self._root = root
        self._cache = cache
        self._found = Listing()
        self._left_out: list[LeftOutPath] = []
        self._to_count = COUNT_LIMIT
        self._stack: list[tuple[bytes, bytes, Excludes, bool]] = []

    def run(self, excludes: Excludes) -> Listing:
        self._stack.append((b"", b"", excludes, True))
        while self._stack:
            self._folder(*self._stack.pop())
        self._found.items.sort()
        self._found.skipped.sort()
        self._found.left_out = LeftOut.of(self._left_out)
        return self._found

    def _folder(self, path: bytes, name: bytes, outer: Excludes, wanted: bool) -> None:
        """Take in one folder; `wanted` when somebody asked for it, so that its content is not judged."""
        folder = os.path.join(self._root, path) if path else self._root
        try:
            with os.scandir(folder) as entries:
                inside = list(entries)
                own = os.lstat(folder)
        except FileNotFoundError:
            if not path:
                raise
            return  # gone since its parent was read, as if it had never been there
        except OSError as e:
            raise GpuTrainError(f"{os.fsdecode(folder)}: {e.strerror}; {_NOT_READABLE}") from e
        names = {entry.name for entry in inside}
        if not wanted and looks_generated(folder, name, names):
            self._leave_folder(path, own)
            return
        if path:
            self._found.items.append((path, (0, 0, 0, 0, own.st_mode)))
        prefix = path + b"/" if path else b""
        excludes = outer.enter(folder, prefix, names)
        for entry in inside:
            self._entry(entry, prefix + entry.name, excludes)

    def _entry(self, entry: os.DirEntry[bytes], path: bytes, excludes: Excludes) -> None:
        is_folder = entry.is_dir(follow_symlinks=False)
        verdict = excludes.leaves_out(path, entry.name, is_folder=is_folder)
        if is_folder and not verdict:
            self._stack.append((path, entry.name, excludes, verdict is False))
            return
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        if is_folder:
            self._leave_folder(path, found)
        elif verdict:
            self._left_out.append(LeftOutPath(os.fsdecode(path), 1, found.st_size))
        else:
            self._keep(path, found)

    def _keep(self, path: bytes, found: os.stat_result) -> None:
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFREG:
            self._found.size_bytes += found.st_size
        elif kind != stat.S_IFLNK:
            self._found.skipped.append(path)
            return
        self._found.items.append((path, signature_of(found)))

    def _leave_folder(self, path: bytes, found: os.stat_result) -> None:
        key = path + b"/"
        note = self._cache.get(key, signature_of(found))
        if note is not None:
            files, size = msgpack.unpackb(note)
            self._left_out.append(LeftOutPath(os.fsdecode(key), files, size))
            return
        files, size, exact = self._count(os.path.join(self._root, path))
        if exact:
            self._cache.put(key, signature_of(found), msgpack.packb([files, size]))
        self._left_out.append(LeftOutPath(os.fsdecode(key), files, size, exact))

    def _count(self, folder: bytes) -> tuple[int, int, bool]:
        """Files and bytes below a folder, and whether all of them were counted."""
        files = size = 0
        exact, stack = True, [folder]
        while stack:
            if self._to_count <= 0:
                return files, size, False
            try:
                with os.scandir(stack.pop()) as entries:
                    for entry in entries:
                        self._to_count -= 1
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(entry.path)
                        else:
                            files += 1
                            size += entry.stat(follow_symlinks=False).st_size
            except OSError:  # not ours to read, or going away while we look
                exact = False
        return files, size, exact
