"""A tree of names: what was seen in folders, without a look at the disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_train.capture.shape import is_never

FILE, FOLDER, OTHER = stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK
Inode = tuple[int, int]


@dataclass(eq=False, slots=True)
class Node:
    """A name, and what it is: FILE, FOLDER or OTHER.

    Attributes:
        inode: device and inode, None when nobody could look.
        children: what is in a folder.
        found: what the last stat of it said.
        why: what may have been missed of it, in words.
        is_gone: whether it had left its name before anybody could look at it; what is there now is another one.
        stamp: changes with the names in a folder and below it, and when a file there is closed.
        listed: the inode number in the disk's listing. seen_ns: a folder's own time when the disk was last listed.
        round: the last telling of everything that it came in.
        since: when it came, in monotonic seconds; None when nobody told.
    """

    name: str
    kind: int
    parent: Node | None = None
    inode: Inode | None = None
    children: dict[str, Node] = field(default_factory=dict)
    found: os.stat_result | None = None
    why: str = ""
    is_gone: bool = False
    stamp: int = 1
    listed: int = 0
    seen_ns: int = 0
    round: int = 0
    since: float | None = None

    def hang(self, node: Node) -> Node:
        """Put a node into this folder, in place of what has its name there."""
        node.parent = self
        self.children[node.name] = node
        self.touch()
        return node

    def unhang(self) -> None:
        """Take it out of its folder, unless something else has its place by now."""
        if self.parent is not None and self.parent.children.get(self.name) is self:
            del self.parent.children[self.name]
            self.parent.touch()

    def touch(self) -> None:
        """Change its stamp, and those of all folders above."""
        node: Node | None = self
        while node is not None:
            node.stamp += 1
            node = node.parent

    def above(self) -> Iterator[Node]:
        """The node itself and all folders above it."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def hangs_below(self, top: Node) -> bool:
        """Whether it can be reached from `top`."""
        for node in self.above():
            if node is top:
                return True
            if node.parent is not None and node.parent.children.get(node.name) is not node:
                return False
        return False

    @property
    def is_temporary(self) -> bool:
        """Whether its name, or that of a folder above it below the root, is one that is never taken."""
        return any(is_never(node.name) for node in self.above() if node.parent is not None and node.parent.parent)

    @property
    def doubt(self) -> str:
        """What may have been missed in a folder or below it, in words; empty when nothing was."""
        below = (child.doubt for child in self.children.values() if child.kind == FOLDER)
        return self.why or next(filter(None, below), "")

    def find(self, rel: str) -> Node | None:
        """What has that path below it."""
        node: Node | None = self
        for part in rel.split("/"):
            node = None if node is None else node.children.get(part)
        return node
