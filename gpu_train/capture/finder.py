"""One look at the checkpoint folder: which checkpoints are there and what each consists of at this moment."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpu_train.capture.rules import NEVER_INSIDE, matcher
from gpu_train.capture.shape import FINAL, is_checkpoint_folder, is_never, loose_group, single_files

FOLDER = "folder"
FILE = "file"
LOOSE = "loose"
MAX_CONTAINERS = 4
"""How many folders deep checkpoints are looked for: `lightning_logs/version_0/checkpoints/x.ckpt` is three."""

MAX_DEPTH = 32
_NEVER_INSIDE = matcher(NEVER_INSIDE)


class Member(NamedTuple):
    """A file, link or folder inside a checkpoint, as it was seen.

    Two that are equal hold the same bytes, as far as inode, size and modification time can tell.
    """

    kind: int
    dev: int
    ino: int
    size_bytes: int
    mtime_ns: int
    mode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Member:
        """From a stat that did not follow links. A folder's own times and size say nothing of its content."""
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            return cls(kind, found.st_dev, found.st_ino, 0, 0, found.st_mode)
        return cls(kind, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.kind == stat.S_IFREG

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.kind == stat.S_IFDIR


@dataclass(slots=True)
class Found:
    """One checkpoint as it lies in the folder now.

    Attributes:
        name: its path below the checkpoint folder; for loose files the container's path and "final".
        path: where it is; for loose files the container.
        shape: "folder", "file" or "loose".
        members: path below `path` -> what is there; for a file one member under its own name.
        inode: device and inode of `path`, by which a renamed one is known again.
        mtime_ns: a folder's own modification time, as it was before its members were looked at.
        busy: whether files inside say that it is being written.
        beside: the names next to it, which may say that it is unfinished.
    """

    name: str
    path: str
    shape: str
    members: dict[str, Member] | None
    inode: tuple[int, int]
    mtime_ns: int = 0
    busy: bool = False
    beside: frozenset[str] = frozenset()

    @property
    def base(self) -> str:
        """The folder that the members' paths are relative to."""
        return self.path.rpartition("/")[0] if self.shape == FILE else self.path


class Listing:
    """The names in one folder, by what they are; temporary and hidden ones are only in `names`."""

    def __init__(self, path: str) -> None:
        self.names: set[str] = set()
        self.files: set[str] = set()
        self.folders: set[str] = set()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    self._take(entry)
        except OSError:
            return  # it is being deleted, or is not ours to read

    def _take(self, entry: os.DirEntry[str]) -> None:
        self.names.add(entry.name)
        if entry.is_symlink():
            return  # last, latest, best: aliases of what is found under its own name
        if entry.is_dir():
            self.folders.add(entry.name)
        elif entry.is_file():
            self.files.add(entry.name)


Known = Mapping[str, tuple[int, int, int]]
"""Paths of folders, and device, inode and modification time that they had when they were looked at."""


def find(root: Path | str, known: Known | None = None) -> Iterator[Found]:
    """The checkpoints below a folder, in no order; each is looked at only when it is asked for.

    Folders that are still as `known` says are given with `members` None: nothing was read.
    """
    yield from _container(str(root), "", known or {}, 0)


def find_one(path: Path | str) -> Found | None:
    """The folder or file at `path` as one checkpoint, whatever it looks like; None when nothing is there."""
    text = str(path)
    try:
        found = os.stat(text, follow_symlinks=False)
    except OSError:
        return None
    name = os.path.basename(text)
    if stat.S_ISDIR(found.st_mode):
        members, busy = look_inside(text)
        return Found(name, text, FOLDER, members, (found.st_dev, found.st_ino), found.st_mtime_ns, busy)
    return Found(name, text, FILE, {name: Member.of(found)}, (found.st_dev, found.st_ino))


def _container(path: str, prefix: str, known: Known, depth: int) -> Iterator[Found]:
    listing = Listing(path)
    beside = frozenset(listing.names)
    for name in sorted(listing.folders):
        if not is_never(name):
            yield from _folder(f"{path}/{name}", prefix, known, beside, depth)
    for name in sorted(single_files(listing.files)):
        member = _member(f"{path}/{name}")
        if member is not None:
            inode = (member.dev, member.ino)
            yield Found(prefix + name, f"{path}/{name}", FILE, {name: member}, inode, beside=beside)
    loose = loose_group(listing.files)
    if loose:
        members = {name: m for name in sorted(loose) if (m := _member(f"{path}/{name}")) is not None}
        yield Found(prefix + FINAL, path, LOOSE, members, (0, 0), 0, _busy(listing.names), beside)


def _folder(path: str, prefix: str, known: Known, beside: frozenset[str], depth: int) -> Iterator[Found]:
    """The checkpoint that a folder is, or those in it."""
    try:
        own = os.stat(path, follow_symlinks=False)
    except OSError:
        return
    name = os.path.basename(path)
    inode = (own.st_dev, own.st_ino)
    if known.get(path) == (*inode, own.st_mtime_ns):
        yield Found(prefix + name, path, FOLDER, None, inode, own.st_mtime_ns, beside=beside)
        return
    listing = Listing(path)
    if is_checkpoint_folder(name, listing.files, listing.folders):
        members, busy = look_inside(path)
        yield Found(prefix + name, path, FOLDER, members, inode, own.st_mtime_ns, busy, beside)
    elif depth < MAX_CONTAINERS:
        yield from _container(path, f"{prefix}{name}/", known, depth + 1)


def look_inside(path: str) -> tuple[dict[str, Member], bool]:
    """Everything below a folder by relative path, parents first, and whether a temporary file is there."""
    members: dict[str, Member] = {}
    busy = _walk(path, "", members, 0)
    return members, busy


def _walk(path: str, prefix: str, members: dict[str, Member], depth: int) -> bool:
    busy = False
    folders = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if _NEVER_INSIDE.match(entry.name):
                    busy = busy or _busy({entry.name})
                    continue
                member = _member(entry.path)
                if member is None or not (member.is_file or member.is_folder or stat.S_ISLNK(member.mode)):
                    continue
                members[prefix + entry.name] = member
                if member.is_folder and depth < MAX_DEPTH:
                    folders.append(entry.name)
    except OSError:
        return busy
    for name in folders:
        busy = _walk(f"{path}/{name}", f"{prefix}{name}/", members, depth + 1) or busy
    return busy


def _busy(names: set[str]) -> bool:
    return any(_NEVER_INSIDE.match(n) and not n.startswith(".nfs") and not n.endswith(".lock") for n in names)


def _member(path: str) -> Member | None:
    try:
        return Member.of(os.stat(path, follow_symlinks=False))
    except OSError:
        return None
