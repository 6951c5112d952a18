"""The folders that the sentry watches: open, numbered by their watches, known by where they hang, not by paths."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

from gpu_train.capture.watch import inotify
from gpu_train.capture.watch.hold import mount_of
from gpu_train.capture.watch.inotify import Inotify
from gpu_train.capture.watch.sighting import Version

NAMES = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO
FILES = inotify.CLOSE_WRITE | inotify.OPEN
"""Openings are only there to keep closings apart: of equal events in a row the kernel makes one."""

ABOVE = 0
"""The number of the folder that holds the root, as it is told to others."""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
_SYSCTL = Path("/proc/sys/fs/inotify")


@dataclass(slots=True)
class File:
    """A file under a name, as it was caught.

    Attributes:
        inode: device and inode; None when it could not be caught.
        hold: a path that reads its bytes; `is_open` when that is a descriptor of this process, not a link.
        version: what it was when it was last closed after writing.
        closes: how often that was, and `round` in which of the sentry's rounds last. is_rewritten: whether two differ.
        is_early: whether it was found under its name before it was told that it had come there.
        caught: in which of the sentry's rounds it was caught first.
    """

    inode: tuple[int, int] | None
    hold: str = ""
    is_open: bool = False
    version: Version | None = None
    closes: int = 0
    round: int = 0
    is_rewritten: bool = False
    is_early: bool = False
    caught: int = 0


@dataclass(slots=True)
class Folder:
    """An open folder.

    Attributes:
        number: its watch's; one without a watch has a negative number. told: the number by which others know it.
        parent, name: where it hangs.
        inode: device and inode.
        mount: the mount that it lies on.
        files, folders: what is known to be in it.
        suspect_until: a removal before that (monotonic seconds) may not be the first one.
    """

    number: int
    told: int
    parent: int
    name: bytes
    fd: int
    inode: tuple[int, int]
    mount: int
    files: dict[bytes, File] = field(default_factory=dict)
    folders: dict[bytes, int] = field(default_factory=dict)
    suspect_until: float = 0.0


class Folders:
    """All folders from the one that holds the root on, and the queue of what happens in them.

    Attributes:
        inotify: the queue; None when the kernel gives none.
        above: the folder that holds the root. control: the number of the job's control folder.
        blind: why some folders are not watched, and what to do about it; empty when all are.
    """

    def __init__(self, root: Path, control: Path) -> None:
        self.blind = ""
        self.inotify: Inotify | None = None
        self._known: dict[int, Folder] = {}
        self._unwatched = 0
        try:
            self.inotify = Inotify()
        except OSError as e:
            self.blind = _advice(e, "max_user_instances")
        self.control = self._watch_only(control)
        self.above = self._add(os.open(root.parent, _FLAGS), ABOVE, b"", NAMES)
        self.above.told = ABOVE

    def get(self, number: int) -> Folder | None:
        """The folder of that number, if it still is one of ours."""
        return self._known.get(number)

    def enter(self, parent: Folder, name: bytes, *, follow: bool = False) -> tuple[Folder, bool]:
        """Open and watch a folder, and whether it was not watched before, perhaps under another name.

        Raises:
            OSError: FileNotFoundError when it is gone, ENOTDIR or ELOOP when it is none (any more).
        """
        try:
            fd = os.open(name, _FLAGS | (0 if follow else os.O_NOFOLLOW), dir_fd=parent.fd)
        except OSError as e:
            if e.errno in (errno.EMFILE, errno.ENFILE):
                self.blind = self.blind or f"too many files are open; raise the limit: ulimit -n ({e.strerror})"
            raise
        before = len(self._known)
        folder = self._add(fd, parent.number, name, NAMES | FILES)
        is_new = len(self._known) > before
        if not is_new:
            self.take_out(folder)
            folder.parent, folder.name = parent.number, name
        parent.folders[name] = folder.number
        return folder, is_new

    def take_out(self, folder: Folder) -> None:
        """Have it hang nowhere; `move` hangs it up again."""
        parent = self._known.get(folder.parent)
        if parent is not None and parent.folders.get(folder.name) == folder.number:
            del parent.folders[folder.name]

    def move(self, folder: Folder, parent: Folder, name: bytes) -> None:
        """Hang it up under another name."""
        self.take_out(folder)
        folder.parent, folder.name = parent.number, name
        parent.folders[name] = folder.number

    def drop(self, folder: Folder) -> None:
        """Forget a folder and all below it."""
        self.take_out(folder)
        for number in list(folder.folders.values()):
            child = self._known.get(number)
            if child is not None:
                self.drop(child)
        if self._known.pop(folder.number, None) is not None:
            if self.inotify is not None and folder.number > 0:
                self.inotify.remove(folder.number)
            os.close(folder.fd)

    def top_of(self, folder: Folder) -> Folder:
        """The uppermost folder on the same mount."""
        while (parent := self._known.get(folder.parent)) is not None and parent.mount == folder.mount:
            folder = parent
        return folder

    def path_of(self, folder: Folder) -> bytes:
        """Its path below the root, empty for the root itself."""
        parts: list[bytes] = []
        while (parent := self._known.get(folder.parent)) is not None:
            parts.append(folder.name)
            folder = parent
        return b"/".join(reversed(parts[:-1]))

    def close(self) -> None:
        """Give everything back."""
        for folder in self._known.values():
            os.close(folder.fd)
        self._known.clear()
        if self.inotify is not None:
            self.inotify.close()

    def _add(self, fd: int, parent: int, name: bytes, mask: int) -> Folder:
        try:
            number, mount, found = self._watch(fd, mask), mount_of(fd), os.fstat(fd)
        except OSError:
            os.close(fd)
            raise
        known = self._known.get(number)
        if known is not None:
            os.close(fd)
            return known
        self._known[number] = Folder(
            number, number, parent, name, fd, (found.st_dev, found.st_ino), mount
        )  # fmt: skip
        return self._known[number]

    def _watch_only(self, path: Path) -> int:
        """Watch a folder for what is written in it, without keeping it open; its number."""
        fd = os.open(path, _FLAGS)
        try:
            return self._watch(fd, inotify.CREATE | inotify.MODIFY)
        finally:
            os.close(fd)

    def _watch(self, fd: int, mask: int) -> int:
        try:
            if self.inotify is not None:
                return self.inotify.add(fd, mask)
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.ENOMEM):
                raise
            self.blind = self.blind or _advice(e, "max_user_watches")
        self._unwatched -= 1
        return self._unwatched


def _advice(error: OSError, limit: str) -> str:
    """What is in the way, and which setting of the system is to be raised."""
    try:
        now = int((_SYSCTL / limit).read_text())
    except (OSError, ValueError):
        return f"the kernel does not watch folders here: {error}"
    return f"fs.inotify.{limit} is {now}, all in use; raise it: sysctl fs.inotify.{limit}={max(2 * now, 1 << 19)}"
