"""Keeping a file's bytes whatever becomes of its name: by a link in a folder of ours, else by keeping it open.

Links must lie on the file's own mount. The folder for them is the one that the job has for its pins; for another
mount a hidden one is made beside the checkpoints there, or in them. Where there are no links at all (FAT, a protected
system) the file is opened: that keeps the bytes as well, as long as this process lives. Not on FUSE: a file that is
deleted while it is open often stays in its folder there under another name, so that the trainer could not remove that.
"""

from __future__ import annotations

import os
import resource
import stat
import threading
import time
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from gpu_train.capture.watch.snapshot import can_clone
from gpu_train_cas.filesystem import MOUNTINFO

HIDDEN = ".gpu-train-pins-"
"""What the name of a folder begins with that holds pins on another file system; the job's id follows."""

CAUGHT = "caught"
"""The folder in a folder of pins in which the sentry holds files until the agent has pinned them."""

SPARE_FILES = 64
"""Descriptors that are left for everything else."""

DRAFT = b"."
"""What the name of a copy begins with until it is known to be exact."""

_MARK = b"~"
_TOLD_BYTES = 200
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Unheld(Exception):
    """A file's bytes could not be kept. `is_gone` says that there is no file of that name any more.

    `found` is the file itself where it is known to be there all the same.
    """

    def __init__(self, why: str, *, is_gone: bool = False, found: os.stat_result | None = None) -> None:
        super().__init__(why)
        self.is_gone = is_gone
        self.found = found


@dataclass(frozen=True, slots=True)
class Held:
    """What keeps a file's bytes: `path` reads them, `found` is the file itself. `fd` is set when it is kept open."""

    path: str
    found: os.stat_result
    fd: int | None = None


@dataclass(slots=True)
class Place:
    """A folder of ours on one mount, open. `clones` is None until it was tried."""

    path: str
    fd: int
    clones: bool | None = None

    @property
    def can_clone(self) -> bool:
        """Whether files there can be cloned instead of copied."""
        if self.clones is None:
            self.clones = can_clone(self.fd)
        return self.clones


class Holder:
    """Keeps files for one job. Used by one thread. `number` counts the names that were given out."""

    def __init__(self, pins: Path, job_id: str, on_place: Callable[[str], None] = lambda path: None) -> None:
        """`pins` is the job's folder for pins; `on_place` is told of each one made on another mount."""
        self._job_id = job_id
        self._on_place = on_place
        self.number = 0
        self._began_ns = time.time_ns()
        self._open: set[int] = set()
        self._own = f"/proc/{os.getpid()}/fd"
        self.main = _place(pins)
        self._places: dict[int, Place | None] = {mount_of(self.main.fd): self.main}
        self._fuse: dict[int, bool] = {}
        self._unwanted: SimpleQueue[str | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._remove, name="remove", daemon=True)
        self._thread.start()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        self._limit = soft if soft != resource.RLIM_INFINITY else 1 << 20

    def open_place(self, mount: int, top: int) -> None:
        """Make sure that there is a place for links on a mount; `top` is the uppermost folder there, open."""
        if mount not in self._places:
            self._places[mount] = self._make_place(top, mount)

    def take(self, name: bytes, folder: int, mount: int, path: bytes) -> Held:
        """Keep the file `name` of an open folder on that mount; `path` is its own below the root, for `caught_in`.

        Raises:
            Unheld: when it is gone, or cannot be kept.
        """
        place = self._places.get(mount)
        if place is not None:
            try:
                return self._link(place, name, folder, path)
            except FileNotFoundError:
                raise Unheld("it was deleted at once", is_gone=True) from None
            except OSError:  # what it says where there are no links differs: EPERM, ENOSYS, EIO
                pass
        return self._keep_open(name, folder, mount)

    def place_for(self, mount: int) -> Place:
        """Where copies of files on that mount go."""
        return self._places.get(mount) or self.main

    def next_name(self, path: bytes) -> bytes:
        """A name that nothing in our folders has, and which tells the path of what is held."""
        self.number += 1
        told = path.replace(b"%", b"%25").replace(b"/", b"%2F")[-_TOLD_BYTES:]
        return b"%d-%d%s%s" % (self._began_ns, self.number, _MARK, told)

    def let_go(self, path: str) -> None:
        """Give a file back that is held at a path: close it, or remove the link, in the background."""
        folder, _, name = path.rpartition("/")
        if folder != self._own:
            self._unwanted.put(path)
        elif int(name) in self._open:
            self._open.discard(int(name))
            os.close(int(name))

    def close(self) -> None:
        """Close everything that was kept open. Links stay."""
        self._unwanted.put(None)
        self._thread.join()
        for fd in (*self._open, *{place.fd for place in self._places.values() if place is not None}):
            os.close(fd)

    def _remove(self) -> None:
        """Remove links as they come. The last one of a large file takes long, and nobody is to wait for that."""
        while (path := self._unwanted.get()) is not None:
            with suppress(OSError):
                os.unlink(path)  # noqa: PTH108  a path of ours, thousands of times

    def _link(self, place: Place, name: bytes, folder: int, path: bytes) -> Held:
        own = self.next_name(path)
        os.link(name, own, src_dir_fd=folder, dst_dir_fd=place.fd, follow_symlinks=False)
        return Held(f"{place.path}/{os.fsdecode(own)}", os.stat(own, dir_fd=place.fd, follow_symlinks=False))

    def _keep_open(self, name: bytes, folder: int, mount: int) -> Held:
        if mount not in self._fuse:
            self._fuse[mount] = is_fuse(mount)
        if self._fuse[mount]:
            why = "there are no links here, and an open file would be in the way of its folder's removal"
            raise Unheld(why, found=_there(name, folder))
        if len(self._open) + SPARE_FILES >= self._limit:
            raise Unheld("it cannot be linked, and too many files are kept open already")
        try:
            fd = os.open(name, _READ, dir_fd=folder)
        except FileNotFoundError:
            raise Unheld("it was deleted at once", is_gone=True) from None
        except OSError as e:
            raise Unheld(f"it can neither be linked nor opened: {os.strerror(e.errno or 0)}") from None
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise Unheld("it is no regular file")
        self._open.add(fd)
        return Held(f"{self._own}/{fd}", found, fd)

    def _make_place(self, top: int, mount: int) -> Place | None:
        """A folder for links on another mount: beside its uppermost watched folder, else in it."""
        here = Path(os.readlink(f"/proc/self/fd/{top}"))
        for parent in (here.parent, here):
            path = parent / f"{HIDDEN}{self._job_id}"
            try:
                place = _place(path)
            except OSError:
                continue
            if mount_of(place.fd) == mount:
                self._on_place(str(path))
                return place
            os.close(place.fd)
            with suppress(OSError):
                (path / CAUGHT).rmdir()
                path.rmdir()
        return None


def mount_of(fd: int) -> int:
    """The mount that an open folder lies on; links cannot be made from one to another, even of one file system."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as info:
        for line in info:
            if line.startswith(b"mnt_id:"):
                return int(line.split()[1])
    return -1


def is_fuse(mount: int, mountinfo: Path = MOUNTINFO) -> bool:
    """Whether a mount is one of FUSE."""
    lines = (line.split() for line in mountinfo.read_text(errors="surrogateescape").splitlines())
    return any(int(words[0]) == mount and words[words.index("-") + 1].startswith("fuse") for words in lines)


def _there(name: bytes, folder: int) -> os.stat_result:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        raise Unheld("it was deleted at once", is_gone=True) from None
    if not stat.S_ISREG(found.st_mode):
        raise Unheld("it is no regular file")
    return found


def caught_in(folder: Path, before_ns: int, known: Container[str] = ()) -> Iterator[tuple[str, Path]]:
    """What a sentry that began before a moment left behind: files without another name, with the path that they had.

    All else of it, but what is `known`, is removed: it has its place in the checkpoint folder or in a candidate's pin,
    or is the draft of a copy, of which nobody knows whether it is exact.
    """
    try:
        left = sorted(folder.iterdir())
    except OSError:
        return
    for hold in left:
        own, mark, told = os.fsencode(hold.name).partition(_MARK)
        began = own.removeprefix(DRAFT).partition(b"-")[0]
        if str(hold) in known or (began.isdigit() and int(began) >= before_ns):
            continue
        with suppress(FileNotFoundError):  # a sentry that has lost its agent may still be giving things back
            if mark and not own.startswith(DRAFT) and hold.stat(follow_symlinks=False).st_nlink == 1:
                yield os.fsdecode(told.replace(b"%2F", b"/").replace(b"%25", b"%")), hold
            else:
                hold.unlink()


def _place(pins: Path) -> Place:
    path = pins / CAUGHT
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Place(str(path), os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
