"""Comparing what is known of folders with the real disk: for what nobody told."""

from __future__ import annotations

import os
import stat
import time

from gpu_train.capture.watch.hold import HIDDEN
from gpu_train.capture.watch.names import FILE, FOLDER, OTHER, Node

FRESH_NS = 2_000_000_000
"""A folder changed so lately may change again without its time showing it."""

RESTED_NS = 1_000_000_000
"""A folder found on the disk that has not changed for so long is not in the middle of its removal."""

UNSEEN = "something in it may have been deleted before it was first looked at"


class Comparison:
    """What one look at the real disk brought.

    Attributes:
        was_news: whether there was anything new.
        missing: what was not there.
    """

    def __init__(self, turn: int) -> None:
        """`turn` is the last telling of everything, to which what is found is added (`Node.round`)."""
        self.was_news = False
        self.missing: list[Node] = []
        self._turn = turn
        self._now_ns = time.time_ns()

    def compare(self, node: Node, path: str, *, follow: bool = False) -> None:
        """Look at a folder and all below it, and hang in what is new."""
        found = stat_of(path, follow=follow)
        if found is None or not stat.S_ISDIR(found.st_mode):
            self.missing.append(node)
            return
        node.inode = found.st_dev, found.st_ino
        age_ns = self._now_ns - found.st_mtime_ns
        if node.why == UNSEEN and age_ns > RESTED_NS:
            node.why = ""
        if node.seen_ns != found.st_mtime_ns or age_ns < FRESH_NS:
            self._list(node, path)
            node.seen_ns = found.st_mtime_ns
        for child in list(node.children.values()):
            if child.kind == FOLDER:
                self.compare(child, f"{path}/{child.name}")

    def _list(self, node: Node, path: str) -> None:
        """Compare the names in one folder."""
        try:
            with os.scandir(path) as entries:
                there = {entry.name: entry for entry in entries if not entry.name.startswith(HIDDEN)}
        except OSError:
            return  # it is being deleted, or is not ours to read
        self.missing += [child for name, child in node.children.items() if name not in there]
        has_grown = False
        for name, entry in there.items():
            child = node.children.get(name)
            if child is None or _is_other(child, entry):
                child = node.hang(Node(name, _kind_of(entry), round=self._turn))
                if child.kind == FOLDER and self._is_fresh(entry):
                    child.why = UNSEEN
                self.was_news = has_grown = True
            child.listed = entry.inode()
        if has_grown and node.seen_ns and node.why == UNSEEN:
            node.why = ""  # it is still being written

    def _is_fresh(self, entry: os.DirEntry[str]) -> bool:
        found = stat_of(entry.path)
        return found is None or self._now_ns - found.st_mtime_ns < RESTED_NS


def stat_of(path: str, *, follow: bool = False) -> os.stat_result | None:
    """What a name is; None when nothing is there, or nobody may ask."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except OSError:
        return None


def _is_other(node: Node, entry: os.DirEntry[str]) -> bool:
    """Whether what the disk lists under a name is not what the node is."""
    if node.kind != _kind_of(entry):
        return True
    is_as_listed = node.listed == entry.inode()
    if node.kind != FILE or (is_as_listed and (node.inode is None or node.inode[1] == node.listed)):
        return False
    # Some file systems list other numbers than they give when they are asked; those on a network may for a while
    # give those of the file before.
    found = stat_of(entry.path) if node.inode is not None else None
    return node.listed != 0 and not is_as_listed if found is None else (found.st_dev, found.st_ino) != node.inode


def _kind_of(entry: os.DirEntry[str]) -> int:
    try:
        if entry.is_dir(follow_symlinks=False):
            return FOLDER
        return FILE if entry.is_file(follow_symlinks=False) else OTHER
    except OSError:  # its file system does not list what it is, and does not say it any more
        return OTHER
