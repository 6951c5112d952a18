"""One look at the checkpoint folder: which checkpoints are there and what each consists of at this moment."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from gpu_train.capture.disk import Disk, Entry, NowOnDisk
from gpu_train.capture.frameworks import KNOWN
from gpu_train.capture.rules import Rulebook
from gpu_train.capture.shape import (
    FINAL,
    is_checkpoint_folder,
    is_never,
    is_weights,
    loose_group,
    single_files,
)  # fmt: skip

FOLDER = "folder"
FILE = "file"
LOOSE = "loose"
GROUP = "group"
TEXT_LIMIT_BYTES = 4096
"""Of a text file that names checkpoints."""

MAX_CONTAINERS = 4
"""How many folders deep checkpoints are looked for: `lightning_logs/version_0/checkpoints/x.ckpt` is three."""

MAX_DEPTH = 32
_NOW = NowOnDisk()
_LEFT_BY_NFS = ".nfs"
_LOCKS = (".lock", ".__lock")
"""Such files are no part of a checkpoint and say nothing about it."""


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

    @property
    def is_unseen(self) -> bool:
        """Whether only its name was seen: it was gone before anybody could look at it."""
        return self.ino == 0


class Beside(NamedTuple):
    """What lies next to a checkpoint, as it was before the checkpoint itself was looked at.

    A sign that is seen here was there before anything that the look inside did not find.

    Attributes:
        signs: names there that say of one beside them that it is being written.
        texts: the content of the text files that name checkpoints which are whole.
    """

    signs: frozenset[str] = frozenset()
    texts: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, folder: str, names: Collection[str], rules: Rulebook, disk: Disk = _NOW) -> Self:
        """What lies in a folder in which those names were seen."""
        read = ((name, text_in(disk.source(f"{folder}/{name}"))) for name in sorted(rules.text_files & set(names)))
        return cls(frozenset(rules.signs_beside(names)), {name: text for name, text in read if text is not None})


@dataclass(slots=True)
class Found:
    """One checkpoint as it lies in the folder now.

    Attributes:
        name: its path below the checkpoint folder; for loose files the container's path and "final".
        path: where it is; for loose files the container, for a group what its files' names have in common.
        shape: "folder", "file", "loose" or "group".
        members: path below `base` -> what is there; for a file one member under its own name.
        inode: device and inode of `path`, by which a renamed one is known again.
        stamp: a folder's stamp (`Disk.stamp`), as it was before its members were looked at.
        busy: what says that it is being written: a file inside, a name beside it, its own; empty when nothing does.
        beside: what lies next to it.
        is_temporary: whether its name is one that it has until it is whole.
    """

    name: str
    path: str
    shape: str
    members: dict[str, Member] | None
    inode: tuple[int, int]
    stamp: int = 0
    busy: str = ""
    beside: Beside = field(default_factory=Beside)
    is_temporary: bool = False

    @property
    def base(self) -> str:
        """The folder that the members' paths are relative to."""
        return self.path.rpartition("/")[0] if self.shape in (FILE, GROUP) else self.path

    @property
    def is_loose(self) -> bool:
        """Whether it is some files among others, with no inode of its own."""
        return self.shape in (LOOSE, GROUP)

    @property
    def signs(self) -> tuple[str, Mapping[str, str]]:
        """What was seen of its state beside its files."""
        return self.busy, self.beside.texts


class Listing:
    """The names in one folder, by what they are; temporary and hidden ones are only in `names`."""

    def __init__(self, path: str, disk: Disk = _NOW) -> None:
        self.names: set[str] = set()
        self.files: set[str] = set()
        self.folders: set[str] = set()
        try:
            for entry in disk.entries(path):
                self._take(entry)
        except OSError:
            return  # it is being deleted, or is not ours to read

    def _take(self, entry: Entry) -> None:
        self.names.add(entry.name)
        if entry.is_symlink():
            return  # last, latest, best: aliases of what is found under its own name
        if entry.is_dir():
            self.folders.add(entry.name)
        elif entry.is_file():
            self.files.add(entry.name)


Known = Mapping[str, tuple[int, int, int]]
"""Paths of folders, and device, inode and stamp that they had when they were looked at."""


def find(
    root: Path | str, known: Known | None = None, rules: Rulebook = KNOWN, disk: Disk = _NOW
) -> Iterator[Found]:  # fmt: skip
    """The checkpoints below a folder, in no order; each is looked at only when it is asked for.

    Folders that are still as `known` says are given with `members` None: nothing was read.
    """
    yield from _Look(known or {}, rules, disk).container(str(root), "", 0)


def find_one(path: Path | str, rules: Rulebook = KNOWN) -> Found | None:
    """The folder or file at `path` as one checkpoint, whatever it looks like; None when nothing is there."""
    text = str(path)
    folder, name = folder_of(text), os.path.basename(text)
    beside = Beside.of(folder, Listing(folder).names, rules)
    try:
        found = os.stat(text, follow_symlinks=False)
    except OSError:
        return None
    inode = (found.st_dev, found.st_ino)
    busy = rules.writing_beside(name, beside.signs)
    if stat.S_ISDIR(found.st_mode):
        members, inside = look_inside(text, rules)
        return Found(name, text, FOLDER, members, inode, found.st_mtime_ns, busy or inside, beside)
    return Found(name, text, FILE, {name: Member.of(found)}, inode, 0, busy, beside)


def find_loose(path: Path | str, rules: Rulebook = KNOWN) -> Iterator[Found]:
    """What at a path is one checkpoint among others without a folder or file of its own: loose files, or a group."""
    yield from _Look({}, rules, _NOW).without_own_name(str(path))


class _Look:
    """One look at a tree of folders."""

    def __init__(self, known: Known, rules: Rulebook, disk: Disk) -> None:
        self._known = known
        self._rules = rules
        self._disk = disk

    def container(self, path: str, prefix: str, depth: int) -> Iterator[Found]:
        """All checkpoints in a folder that is none itself."""
        listing = Listing(path, self._disk)
        beside = Beside.of(path, listing.names, self._rules, self._disk)
        loose = self._loose(path, prefix, listing, beside)
        within = loose.members or {} if loose else {}
        for name in sorted(listing.folders - within.keys()):
            yield from self._folder(f"{path}/{name}", prefix, beside, depth)
        groups = self._groups(listing.files - within.keys())
        for name, files in sorted(groups.items()):
            yield self._group(path, prefix, name, files, beside)
        grouped = {file for files in groups.values() for file in files}
        for name in sorted(single_files(listing.files - within.keys() - grouped)):
            member = member_at(f"{path}/{name}", self._disk)
            if member is not None:
                busy = self._rules.writing_beside(name, beside.signs)
                inode = (member.dev, member.ino)
                yield Found(prefix + name, f"{path}/{name}", FILE, {name: member}, inode, 0, busy, beside)
        if loose:
            yield loose

    def without_own_name(self, path: str) -> Iterator[Found]:
        """See `find_loose`."""
        loose = self._loose(path, "", Listing(path, self._disk), Beside())
        if loose:
            yield loose
        folder, name = folder_of(path), os.path.basename(path)
        files = self._groups(Listing(folder, self._disk).files).get(name)
        if files:
            yield self._group(folder, "", name, files, Beside())

    def _groups(self, files: Collection[str]) -> Mapping[str, Collection[str]]:
        return self._rules.groups({f for f in files if not is_never(f)})

    def _group(self, folder: str, prefix: str, name: str, files: Collection[str], beside: Beside) -> Found:
        busy = self._rules.writing_beside(name, beside.signs)
        members = _members(folder, files, self._disk)
        return Found(prefix + name, f"{folder}/{name}", GROUP, members, (0, 0), 0, busy, beside)

    def _loose(self, path: str, prefix: str, listing: Listing, beside: Beside) -> Found | None:
        """The files and folders of one model that lie among others, if there are any."""
        parts = self._rules.parts(listing.folders, listing.files)
        members = _members(path, loose_group(listing.files, parts), self._disk)
        busy = _first(listing.names, self._rules)
        for name in sorted(parts):
            busy = self._walk(f"{path}/{name}", f"{name}/", members) or busy
        if not any(m.is_file for m in members.values()):
            return None
        if parts and not any(is_weights(rel) for rel in members):
            return None
        members |= _members(path, parts, self._disk)
        return Found(prefix + FINAL, path, LOOSE, dict(sorted(members.items())), (0, 0), 0, busy, beside)

    def _walk(self, path: str, prefix: str, members: dict[str, Member]) -> str:
        inside, busy = look_inside(path, self._rules, self._disk)
        members.update({prefix + rel: member for rel, member in inside.items()})
        return busy

    def _folder(self, path: str, prefix: str, beside: Beside, depth: int) -> Iterator[Found]:
        """The checkpoint that a folder is, or those in it."""
        name = os.path.basename(path)
        final = self._rules.final_name(name)
        if final is None and is_never(name):
            return
        try:
            own = self._disk.stat(path)
        except OSError:
            return
        inode, stamp = (own.st_dev, own.st_ino), self._disk.stamp(path, own)
        if self._known.get(path) == (*inode, stamp):
            yield Found(prefix + name, path, FOLDER, None, inode, stamp, beside=beside)
            return
        busy = name if final is not None else self._rules.writing_beside(name, beside.signs)
        listing = Listing(path, self._disk)
        if is_checkpoint_folder(final or name, listing.files, listing.folders, self._rules):
            members, inside = look_inside(path, self._rules, self._disk)
            yield Found(prefix + name, path, FOLDER, members, inode, stamp, busy or inside, beside, final is not None)
        elif final is None and depth < MAX_CONTAINERS:
            yield from self.container(path, f"{prefix}{name}/", depth + 1)


def look_inside(path: str, rules: Rulebook = KNOWN, disk: Disk = _NOW) -> tuple[dict[str, Member], str]:
    """Everything below a folder by relative path, parents first, and a file that says that it is being written."""
    members: dict[str, Member] = {}
    busy = _walk(path, "", members, 0, rules, disk)
    return members, busy


def _walk(path: str, prefix: str, members: dict[str, Member], depth: int, rules: Rulebook, disk: Disk) -> str:
    busy = ""
    folders = []
    try:
        for entry in disk.entries(path):
            if rules.writing_inside.fullmatch(entry.name):
                busy = prefix + entry.name
                continue
            if entry.name.startswith(_LEFT_BY_NFS) or entry.name.endswith(_LOCKS):
                continue
            member = member_at(entry.path, disk)
            if member is None or not (member.is_file or member.is_folder or stat.S_ISLNK(member.mode)):
                continue
            members[prefix + entry.name] = member
            if member.is_folder and depth < MAX_DEPTH:
                folders.append(entry.name)
    except OSError:
        return busy
    for name in folders:
        busy = _walk(f"{path}/{name}", f"{prefix}{name}/", members, depth + 1, rules, disk) or busy
    return busy


def _first(names: Collection[str], rules: Rulebook) -> str:
    """A name that says that what lies there is being written."""
    return next((name for name in sorted(names) if rules.writing_inside.fullmatch(name)), "")


def _members(folder: str, names: Collection[str], disk: Disk) -> dict[str, Member]:
    return {name: m for name in sorted(names) if (m := member_at(f"{folder}/{name}", disk)) is not None}


def member_at(path: str, disk: Disk = _NOW) -> Member | None:
    """What lies at a path; None when nothing does."""
    try:
        return Member.of(disk.stat(path))
    except OSError:
        return None


def folder_of(path: str) -> str:
    """The folder in which something lies."""
    folder, slash, _ = path.rpartition("/")
    return folder or slash or "."


def text_in(path: str) -> str | None:
    """The text of a small file; None when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(TEXT_LIMIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def fingerprint_of(members: Mapping[str, Member]) -> str:
    """A digest of files' names, inodes, sizes and times: equal when nothing was touched."""
    from hashlib import blake2b  # noqa: PLC0415  loads OpenSSL, which a look does without

    digest = blake2b(digest_size=16)
    for rel, member in sorted(members.items()):
        if not member.is_folder:
            line = (os.fsencode(rel), member.dev, member.ino, member.size_bytes, member.mtime_ns)
            digest.update(repr(line).encode())
    return digest.hexdigest()
