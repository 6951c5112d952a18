"""A view for protocols that know no links, such as WebDAV: links to files are files, `latest` and `best` are folders.

What a link leads to is looked for in the view alone; a link out of it, or to nothing, has no name. Links to folders
that a checkpoint brings have none either: programs walk such a view down to its leaves, and a link to a folder above
would make that endless.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpu_train_fuse.node import Directory, File, Link, Node, Pointer
from gpu_train_fuse.tree import FileTree

MAX_HOPS = 16

_Way = tuple[Directory, ...]
"""The folders from the root down to one."""


class Linkless:
    """A `FileTree` without links. Safe to share between threads."""

    def __init__(self, tree: FileTree) -> None:
        self.tree = tree

    def find(self, path: bytes) -> File | Directory | None:
        """The file or folder at an absolute path, or None.

        Raises:
            Damaged: when a directory on the way cannot be read.
        """
        found = self._find(self._root(), path.split(b"/"), MAX_HOPS)
        return None if found is None else found[1]

    def members(self, path: bytes) -> Iterator[tuple[bytes, File | Directory]]:
        """What is in the folder at a path, by name; nothing if there is no folder.

        Raises:
            Damaged: when that folder, or one on the way, cannot be read.
        """
        found = self._find(self._root(), path.split(b"/"), MAX_HOPS)
        if found is None or not isinstance(found[1], Directory):
            return
        way, folder = (*found[0], found[1]), found[1]
        for name, _ in folder.names():
            member = self._member(way, name, MAX_HOPS)
            if member is not None:
                yield name, member[1]

    def _root(self) -> _Way:
        root = self.tree.lookup(b"/")
        return (root,) if isinstance(root, Directory) else ()

    def _find(self, way: _Way, parts: Iterable[bytes], hops: int) -> tuple[_Way, File | Directory] | None:
        """What lies at a relative path below the last folder of a way, and the way to the folder that it is in."""
        at: tuple[_Way, File | Directory] = way[:-1], way[-1]
        for part in parts:
            if part in (b"", b"."):
                continue
            above, here = at
            if part == b"..":
                if not above:
                    return None
                at = above[:-1], above[-1]
                continue
            if not isinstance(here, Directory):
                return None
            found = self._member((*above, here), part, hops)
            if found is None:
                return None
            at = found
        return at

    def _member(self, way: _Way, name: bytes, hops: int) -> tuple[_Way, File | Directory] | None:
        node: Node | None = way[-1].find(name)
        if isinstance(node, File | Directory):
            return way, node
        if not isinstance(node, Link) or not hops or node.target().startswith(b"/"):
            return None
        found = self._find(way, node.target().split(b"/"), hops - 1)
        if found is None or (isinstance(found[1], Directory) and not isinstance(node, Pointer)):
            return None
        return found
