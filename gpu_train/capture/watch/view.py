"""What is where in the checkpoint folder, as far as the sentry has told.

The finder looks at it as at a disk (`capture.disk`), but at the moment that the last sighting taken in belongs to: what
has been deleted since is still there, and its bytes can be read by what the sentry held. `rescan` compares it with
the real disk, for file systems and folders whose changes nobody tells.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from gpu_train.capture.watch import sighting
from gpu_train.capture.watch.comparison import UNSEEN, Comparison, stat_of
from gpu_train.capture.watch.folders import ABOVE
from gpu_train.capture.watch.names import FILE, FOLDER, OTHER, Inode, Node
from gpu_train.capture.watch.sighting import Sighting, Version

LIMBO_S = 0.5
"""How long what was moved away is waited for under another name."""


class ViewEntry:
    """A name in a folder of the view, as the finder asks for it."""

    __slots__ = ("_kind", "name", "path")

    def __init__(self, node: Node, folder: str) -> None:
        self.name = node.name
        self.path = f"{folder}/{node.name}"
        self._kind = node.kind

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self._kind == OTHER

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self._kind == FOLDER

    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self._kind == FILE


class View:
    """The names below one folder. Used by one thread.

    Attributes:
        root: the folder's path.
        is_fresh: whether something has come that nobody has looked at; whoever looks sets it back.
        is_told: whether there is a sentry that tells what happens.
        drop: gives back what a sentry holds.
    """

    def __init__(self, root: Path, drop: Callable[[str], None] = lambda hold: None) -> None:
        self.root = str(root)
        self.is_fresh = False
        self.is_told = False
        self.drop = drop
        self._above = Node("", FOLDER)
        self._numbers: dict[int, Node] = {ABOVE: self._above}
        self._limbo: dict[int, tuple[float, Node]] = {}
        self._holds: dict[Inode, tuple[str, Node]] = {}
        self._coming: Counter[Inode] = Counter()
        self._ended: dict[str, float] = {}
        self._round = 0
        self._is_telling_all = False

    # As a disk

    def entries(self, path: str) -> Iterable[ViewEntry]:
        """See `Disk.entries`."""
        return [ViewEntry(child, path) for child in self._node(path).children.values()]

    def stat(self, path: str) -> os.stat_result:
        """See `Disk.stat`. What has no name on the real disk any more is asked for by what holds it."""
        node = self._node(path)
        found = None if node.is_gone else stat_of(path)
        if found is None or (node.inode is not None and (found.st_dev, found.st_ino) != node.inode):
            held = self._holds.get(node.inode) if node.inode is not None else None
            found = (stat_of(held[0], follow=True) if held is not None else None) or node.found
        if found is None:
            dev, ino = node.inode or (0, 0)
            return os.stat_result((node.kind | 0o700, ino, dev, 1, 0, 0, 0, 0, 0, 0), {"st_mtime_ns": 0})
        node.found, node.inode = found, (found.st_dev, found.st_ino)
        return found

    def stamp(self, path: str, found: os.stat_result) -> int:
        """See `Disk.stamp`."""
        return self._node(path).stamp

    def exists(self, path: str) -> bool:
        """Whether there is such a name."""
        return self._find(path) is not None

    def inode(self, path: str) -> Inode | None:
        """Device and inode of what has that name, None when nothing does."""
        node = self._find(path)
        return None if node is None else node.inode

    def since(self, path: str) -> float | None:
        """When what has that name came there, in monotonic seconds; None when nobody told."""
        node = self._find(path)
        return None if node is None else node.since

    def ended(self, path: str) -> float | None:
        """When what had that name last went, in monotonic seconds; None when nobody told of late."""
        return self._ended.get(path)

    # What is held

    def source(self, path: str) -> str:
        """Where the bytes of a file can be had: the sentry's hold, else the path itself."""
        node = self._find(path)
        held = self._holds.get(node.inode) if node is not None and node.inode is not None else None
        return path if held is None else held[0]

    def is_coming(self, inode: Inode) -> bool:
        """Whether a copy of a file is being made."""
        return inode in self._coming

    def doubt(self, path: str) -> str:
        """What may have been missed in a folder, in words; empty when nothing was."""
        node = self._find(path)
        return "" if node is None or node.kind != FOLDER else node.doubt

    def release(self, is_needed: Callable[[Inode], bool]) -> None:
        """Give back what is held of files that have been looked at and nobody needs.

        What has a temporary name may be renamed to a real one with its whole folder, so it stays held.
        """
        self._ended.clear()
        for inode, (hold, node) in list(self._holds.items()):
            is_moving = any(one is node for _, one in self._limbo.values())
            if is_needed(inode) or is_moving or (node.hangs_below(self._above) and node.is_temporary):
                continue
            del self._holds[inode]
            self.drop(hold)

    def holds(self) -> set[str]:
        """All paths by which a sentry holds files that are known."""
        return {hold for hold, _ in self._holds.values()}

    def _forget_sentry(self) -> None:
        """The sentry has died: what it kept open and what it was copying is lost. Links stay."""
        self.is_told = False
        self._coming.clear()
        for inode, (hold, _) in list(self._holds.items()):
            if stat_of(hold, follow=True) is None:
                del self._holds[inode]

    # What is told

    def path_of(self, seen: Sighting) -> str | None:
        """The path of the name that a sighting is about."""
        folder = self._numbers.get(seen.folder)
        return None if folder is None else f"{self._path(folder)}/{seen.name}"

    def loses(self, seen: Sighting) -> bool:
        """Whether taking a sighting in takes something away."""
        if seen.kind == sighting.BEGIN:
            return True
        folder = self._numbers.get(seen.folder)
        there = None if folder is None else folder.children.get(seen.name)
        if there is None:
            return False
        replaced = seen.kind in (sighting.FILE, sighting.FOLDER, sighting.OTHER) and there.inode != seen.inode
        return replaced or seen.kind in (sighting.DELETED, sighting.MOVED)

    def apply(self, seen: Sighting) -> None:
        """Take a sighting in."""
        if seen.kind == sighting.BEGIN:
            self.is_told = True
            self._round += 1
            self._is_telling_all = True
            self._numbers = {ABOVE: self._above}
            self._limbo.clear()
            return
        if seen.kind == sighting.END:
            self._is_telling_all = False
            self._prune(self._above)
            return
        if seen.kind == sighting.DIED:
            self._forget_sentry()
            return
        if seen.kind in (sighting.KEPT, sighting.OVERWRITTEN):
            self._came(seen.version)
            return
        folder = self._numbers.get(seen.folder)
        if folder is None:
            return  # of a folder that is gone by now
        if seen.kind in (sighting.FILE, sighting.OTHER):
            self._file(folder, seen)
        elif seen.kind == sighting.FOLDER:
            self._folder(folder, seen)
        elif seen.kind in (sighting.DELETED, sighting.MOVED):
            self._gone(folder, seen)
        elif seen.kind == sighting.CLOSED:
            folder.touch()
            if seen.coming and seen.inode is not None:
                self._coming[seen.inode] += 1
        for cookie, (since, _) in list(self._limbo.items()):
            if seen.at - since > LIMBO_S:
                del self._limbo[cookie]

    def _file(self, folder: Node, seen: Sighting) -> None:
        self._limbo.pop(seen.cookie, None)
        node = folder.children.get(seen.name)
        kind = FILE if seen.kind == sighting.FILE else OTHER
        if node is None or node.kind != kind or node.inode != seen.inode:
            if node is not None:
                self._ended[self._path(node)] = seen.at
            node = self._hang(folder, Node(seen.name, kind, inode=seen.inode, since=self._told_at(seen)))
        node.why, node.is_gone, node.round = seen.why, seen.gone, self._round
        if seen.inode is None or not seen.hold:
            return
        earlier = self._holds.get(seen.inode)
        if earlier is None:
            self._holds[seen.inode] = seen.hold, node
        else:
            if seen.hold != earlier[0]:
                self.drop(seen.hold)
            self._holds[seen.inode] = earlier[0], node

    def _folder(self, folder: Node, seen: Sighting) -> None:
        node = None
        if seen.cookie and seen.cookie in self._limbo:
            node = self._limbo.pop(seen.cookie)[1]
        elif seen.child and seen.child in self._numbers:
            node = self._numbers[seen.child]
        else:
            there = folder.children.get(seen.name)
            if there is not None and there.kind == FOLDER and there.inode in (None, seen.inode):
                node = there
        if node is None or node.kind != FOLDER:
            node = Node(seen.name, FOLDER, since=self._told_at(seen))
        if node.parent is not folder or node.name != seen.name:
            node.unhang()
            node.name = seen.name
            self._hang(folder, node)
        if seen.child and (node.is_gone or node.why == UNSEEN):
            node.why = ""  # it is looked into under another name than its first; or the sentry has seen more of it
        node.is_gone = seen.gone
        node.inode, node.round = seen.inode, self._round
        if seen.why and seen.why != node.why:
            node.why = seen.why
            node.touch()
            self.is_fresh = True
        if seen.child:
            self._numbers[seen.child] = node

    def _gone(self, folder: Node, seen: Sighting) -> None:
        node = folder.children.get(seen.name)
        if node is None:
            return
        path = f"{self._path(folder)}/{seen.name}"
        found = stat_of(path)
        if found is not None and (found.st_dev, found.st_ino) == node.inode:
            return  # a rescan has brought what came after it
        node.unhang()
        self._ended[path] = seen.at
        if seen.kind == sighting.MOVED:
            self._limbo[seen.cookie] = seen.at, node

    def _told_at(self, seen: Sighting) -> float | None:
        """When what is told came; of what was there before nobody knows."""
        return None if self._is_telling_all else seen.at

    def _came(self, version: Version | None) -> None:
        inode = (version or (0, 0, 0, 0))[:2]
        self._coming[inode] -= 1
        if self._coming[inode] <= 0:
            del self._coming[inode]

    def _prune(self, folder: Node) -> None:
        for child in list(folder.children.values()):
            if child.round < self._round:
                child.unhang()
            else:
                self._prune(child)

    # What is there

    def rescan(self) -> Comparison:
        """Look at the real disk, and take in what is there and was not told.

        What is not there is only given back: it may be that its end has not been told yet, and neither that anything
        happened to it before; once all of that has been taken in, `remove` it.
        """
        comparison = Comparison(self._round)
        name = os.path.basename(self.root)
        node = self._above.children.get(name)
        if node is None and os.path.isdir(self.root):
            node = self._above.hang(Node(name, FOLDER, round=self._round))
            comparison.was_news = True
        if node is not None:
            comparison.compare(node, self.root, follow=True)
        self.is_fresh |= comparison.was_news
        return comparison

    def remove(self, missing: Iterable[Node]) -> None:
        """Take out what is still not on the disk."""
        for node in missing:
            if node.hangs_below(self._above) and stat_of(self._path(node)) is None:
                node.unhang()

    def revive(self, rel: str, hold: str) -> None:
        """Put a file in its old place that has no name any more, but whose bytes are held."""
        found = stat_of(hold, follow=True)
        root = self._above.children.get(os.path.basename(self.root))
        if found is None or root is None:
            return
        node, (*folders, name) = root, rel.split("/")
        for part in folders:
            below = node.children.get(part)
            node = self._hang(node, Node(part, FOLDER)) if below is None else below
        if name not in node.children:
            inode = found.st_dev, found.st_ino
            self._holds[inode] = hold, self._hang(node, Node(name, FILE, inode=inode, found=found))

    # Finding

    def _find(self, path: str) -> Node | None:
        name = os.path.basename(self.root)
        if path == self.root:
            return self._above.children.get(name)
        return self._above.find(name + path[len(self.root) :]) if path.startswith(self.root + "/") else None

    def _node(self, path: str) -> Node:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _path(self, node: Node) -> str:
        names = [one.name for one in node.above() if one.parent is not None]
        return "/".join([self.root.rpartition("/")[0], *reversed(names)])

    def _hang(self, folder: Node, node: Node) -> Node:
        self.is_fresh = True
        return folder.hang(node)
