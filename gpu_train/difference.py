"""How two versions differ: which paths were added, removed or changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

from gpu_train_cas import Entry, EntryKind, Reader

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Difference:
    """From one version to another. Paths are relative, in the order of their bytes; a folder ends with a slash.

    Bytes of a name that are no UTF-8 are surrogates, as `os.fsdecode` gives them.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    @classmethod
    def of(cls, old: Mapping[bytes, T], new: Mapping[bytes, T]) -> Self:
        """Compare two maps from path to content."""
        return cls(
            _names(new.keys() - old.keys()), _names(old.keys() - new.keys()),
            _names(path for path in old.keys() & new.keys() if old[path] != new[path]),
        )  # fmt: skip


def tree_difference(reader: Reader, old: Entry, new: Entry) -> Difference:
    """Compare two stored directories; folders with the same content are not read.

    A path is changed when its kind, mode, bytes or target are; times do not count.

    Raises:
        Damaged, NotFound: when a tree cannot be read.
    """
    before: dict[bytes, tuple[int, int, bytes]] = {}
    after: dict[bytes, tuple[int, int, bytes]] = {}
    stack = [(b"", old, new)]
    while stack:
        prefix, left, right = stack.pop()
        ours, theirs = _children(reader, left), _children(reader, right)
        for name in ours.keys() | theirs.keys():
            a, b = ours.get(name), theirs.get(name)
            if a is not None and b is not None and _is_folder(a) and _is_folder(b):
                if a.mode != b.mode:
                    before[prefix + name + b"/"] = _facts(a)
                    after[prefix + name + b"/"] = _facts(b)
                if a.identity != b.identity:
                    stack.append((prefix + name + b"/", a, b))
            elif a is None or b is None or _facts(a) != _facts(b):
                before.update(_leaves(reader, prefix, a))
                after.update(_leaves(reader, prefix, b))
    return Difference.of(before, after)


def _children(reader: Reader, folder: Entry) -> dict[bytes, Entry]:
    return {entry.name: entry for entry in reader.tree(folder.digest).entries}


def _leaves(reader: Reader, prefix: bytes, entry: Entry | None) -> Iterator[tuple[bytes, tuple[int, int, bytes]]]:
    """What an entry amounts to: itself, or for a folder all below it, or the folder when it is empty."""
    if entry is None:
        return
    if not _is_folder(entry):
        yield prefix + entry.name, _facts(entry)
        return
    below = list(reader.walk(entry))
    if not below:
        yield prefix + entry.name + b"/", _facts(entry)
    filled = {path.rpartition(b"/")[0] for path, _ in below}
    for path, child in below:
        full = prefix + entry.name + b"/" + path
        if not _is_folder(child):
            yield full, _facts(child)
        elif path not in filled:
            yield full + b"/", _facts(child)


def _is_folder(entry: Entry) -> bool:
    return entry.kind is EntryKind.DIRECTORY


def _facts(entry: Entry) -> tuple[int, int, bytes]:
    return int(entry.kind), entry.mode, entry.identity


def _names(paths: Iterator[bytes] | set[bytes]) -> tuple[str, ...]:
    return tuple(os.fsdecode(path) for path in sorted(paths))
