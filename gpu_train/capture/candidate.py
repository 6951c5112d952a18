"""A checkpoint that is being watched: what was seen of it, what is pinned, and since when it rests."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path

from gpu_train.capture.finder import FILE, FOLDER, LOOSE, Found, Member, look_inside, member_at
from gpu_train.capture.pin import free, like, link_file
from gpu_train_cas.errors import SourceChanged
from gpu_train_cas.filesystem import replacing

ABOUT = "about.json"
FILES = "files"
NAMELESS = "recovered-{}"


@dataclass(frozen=True, slots=True)
class Commit:
    """What `gpu_train.commit` said, and when.

    `pin` holds links that it made itself, when it could; `id` is for the answer.
    """

    path: str
    pin: str | None = None
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    time_ns: int = 0


class Candidate:
    """One content under one name, from the moment it is first seen until it is stored.

    Every member is linked into the candidate's pin when it is first seen, still open or not. The pin
    holds `about.json` and `files/`, laid out like the checkpoint.

    Attributes:
        found: as it lay in the folder last.
        members: everything seen and still counted in, also what the trainer has deleted since.
        vanished: those of them that have been deleted while the checkpoint itself is still there.
        pinned: those whose bytes are held by a link.
        missed: files that were deleted before they could be linked, with their sizes.
        earlier: what had been handed over under its name before it.
        first_seen_ns: wall clock. first_seen, changed, absent_since: monotonic seconds.
        written_at: its `changed` when a process was found to have it open for writing.
    """

    def __init__(self, found: Found, pin: Path, now: float, now_ns: int) -> None:
        self.found = found
        self.pin = pin
        self.members: dict[str, Member] = {}
        self.vanished: set[str] = set()
        self.pinned: set[str] = set()
        self.missed: dict[str, int] = {}
        self.earlier: Mapping[str, Member] = {}
        self._since: dict[str, float] = {}
        self._rewritten: dict[str, float] = {}
        self.first_seen_ns = now_ns
        self.first_seen = self.changed = self.last_seen = now
        self.absent_since: float | None = None
        self.written_at: float | None = None
        self.commit: Commit | None = None

    @property
    def name(self) -> str:
        """Its path below the checkpoint folder."""
        return self.found.name

    @property
    def key(self) -> tuple[bool, str]:
        """What tells it from all others that lie in the folder at the same time."""
        return key_of(self.found)

    @property
    def lies_there(self) -> bool:
        """Whether all its files still lie where they were, as they are in the pin."""
        for rel, member in self.members.items():
            try:
                if member.is_file and Member.of(os.stat(f"{self.found.base}/{rel}", follow_symlinks=False)) != member:
                    return False
            except OSError:
                return False
        return True

    @property
    def completes_earlier(self) -> bool:
        """Whether it is what was handed over before and some more, such as the file of a rank that came late."""
        return bool(self.earlier) and self.earlier.items() <= self.members.items()

    def note_written(self, is_written: bool) -> bool:
        """Note whether a process has one of its files open for writing as it is now; that answer again."""
        self.written_at = self.changed if is_written else None
        return is_written

    def written_over_after(self, rel: str) -> set[str]:
        """The files that were written over when this one had its present content already."""
        return {other for other, when in self._rewritten.items() if when > self._since.get(rel, when)}

    @property
    def is_held(self) -> bool:
        """Whether links hold the bytes of all that it consists of."""
        return self.pinned >= self.members.keys()

    @property
    def lifetime_s(self) -> float:
        """How long it was seen."""
        return self.last_seen - self.first_seen

    @property
    def files(self) -> set[Member]:
        """The regular files among its members."""
        return {m for m in self.members.values() if m.is_file}

    @property
    def size_bytes(self) -> int:
        """Of the files seen, pinned or missed."""
        return sum(m.size_bytes for m in self.files) + sum(self.missed.values())

    def replaces(self, found: Found) -> bool:
        """Whether what lies under the name now is another file or folder, not this one changed.

        Inode numbers come again: a folder made anew may have its predecessor's, so its files are asked too.
        """
        if self.found.is_loose:
            return False
        if self.found.inode != found.inode:
            return True
        return self.found.shape == FOLDER and bool(self.files) and bool(found.members) and not self.shares_with(found)

    def shares_with(self, found: Found) -> bool:
        """Whether one of its files lies there, changed or not; while it is pinned no other can have its number."""
        own = {(m.dev, m.ino) for m in self.files}
        return any(m.is_file and (m.dev, m.ino) in own for m in (found.members or {}).values())

    def update(self, found: Found, now: float) -> None:
        """Take note of what is there now, and pin what is new."""
        seen = found.members or {}
        if found.signs != self.found.signs:
            self.changed = now
        self.found = found
        self.last_seen = now
        self.absent_since = None
        fresh = [rel for rel, member in seen.items() if self.members.get(rel) != member]
        vanished = self.members.keys() - seen.keys()
        for rel in fresh:
            self._note_content(rel, seen[rel], now)
        if fresh and (self.vanished or vanished):
            # Written to after something was deleted: what was deleted belonged to an earlier content.
            for rel in vanished | self.vanished:
                self._drop(rel)
            vanished = set()
        if fresh or not vanished <= self.vanished:
            self.changed = now
        for rel in vanished - self.pinned:
            self.missed[rel] = self.members.pop(rel).size_bytes
        self.vanished = set(vanished) & self.pinned
        if fresh and not self.pin.exists():
            self._describe()
        for rel in fresh:
            self._pin(rel, seen[rel])

    def _note_content(self, rel: str, member: Member, now: float) -> None:
        """Note since when a file has its present content, and whether it had another one before."""
        earlier, before = self.earlier.get(rel), self.members.get(rel)
        self._since[rel] = -inf if earlier == member else now
        if before is None:
            again = earlier is not None and earlier != member
        else:  # one that has only grown is still being written for the first time
            again = before.ino != member.ino or member.size_bytes <= before.size_bytes
        if again and member.is_file:
            self._rewritten[rel] = now

    def adopt(self, files: Path, pin: Path) -> None:
        """Make links that are there already this candidate's pin; `files` holds them, `pin` is all of it."""
        self._describe()
        (self.pin / FILES).rmdir()
        os.rename(files, self.pin / FILES)
        shutil.rmtree(pin, ignore_errors=True)
        self.pinned = set(self.members)

    def rename(self, found: Found) -> None:
        """The trainer has renamed it."""
        self.found = found
        if self.pin.exists():
            self._describe()

    def forget_vanished(self) -> None:
        """Count out what was deleted while the checkpoint stayed."""
        for rel in list(self.vanished):
            self._drop(rel)
        self.vanished.clear()

    def path_of(self, rel: str) -> str:
        """Where a member's bytes can be read."""
        if rel in self.pinned:
            return str(self.pin / FILES / rel)
        return f"{self.found.base}/{rel}"

    def base(self) -> Path:
        """The folder to read all members from: the pin, or the trainer's own where links do not work."""
        if not self.is_held:
            return Path(self.found.base)
        if self.found.shape != FILE:
            self._dress()
        return self.pin / FILES

    @property
    def is_as_seen(self) -> bool:
        """Whether none of its files has changed since they were looked at."""
        return all(member_at(self.path_of(rel)) == member for rel, member in self.members.items() if member.is_file)

    def check(self, base: Path) -> None:
        """Make sure that what lies below `base` still is what was judged.

        Raises:
            SourceChanged: naming the first file that is not.
        """
        for rel, member in self.members.items():
            try:
                now = Member.of(os.stat(base / rel, follow_symlinks=False))
            except OSError:
                raise SourceChanged(f"{self.name}: {rel} vanished while it was being stored") from None
            if member.is_file and now != member:
                raise SourceChanged(f"{self.name}: {rel} changed while it was being stored")

    def discard(self) -> None:
        """Free the pin."""
        free(self.pin)

    def _drop(self, rel: str) -> None:
        member = self.members.pop(rel, None)
        self.pinned.discard(rel)
        if member is not None and not member.is_folder:
            (self.pin / FILES / rel).unlink(missing_ok=True)

    def _describe(self) -> None:
        """Note beside the links what they are, for an agent that comes after this one."""
        with suppress(OSError):  # a full disk: links may still work, and need nobody to come after us
            self._write_about()

    def _write_about(self) -> None:
        self.pin.mkdir(parents=True, exist_ok=True)
        about = {
            "name": self.name, "path": self.found.path, "shape": self.found.shape,
            "inode": self.found.inode, "first_seen_ns": self.first_seen_ns,
            "commit": asdict(self.commit) if self.commit else None,
        }  # fmt: skip
        with replacing(self.pin / ABOUT, durable=False) as file:
            file.write(json.dumps(about).encode())
        (self.pin / FILES).mkdir(exist_ok=True)

    def _pin(self, rel: str, member: Member) -> None:
        source, target = f"{self.found.base}/{rel}", self.pin / FILES / rel
        self._drop(rel)
        try:
            if member.is_folder:
                target.mkdir(parents=True, exist_ok=True)
                held = True
            elif stat.S_ISLNK(member.mode):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(os.readlink(source))
                held = True
            else:
                held = link_file(source, target)
                if held:
                    # What is pinned counts: the name may have come to stand for another file since it was listed.
                    member = Member.of(os.stat(target, follow_symlinks=False))
        except OSError:
            held = False
        if not held and not os.path.lexists(source):
            self.missed[rel] = member.size_bytes
            return
        self.members[rel] = member
        self.missed.pop(rel, None)
        if held:
            self.pinned.add(rel)

    def _dress(self) -> None:
        """Give the pin's folders the modes and times of the checkpoint's, innermost first."""
        folders = [rel for rel, m in self.members.items() if m.is_folder]
        for rel in [*sorted(folders, reverse=True), ""]:
            try:
                like(os.stat(f"{self.found.base}/{rel}"), self.pin / FILES / rel)
            except OSError:  # the trainer has deleted it, and with it these two facts
                continue


def key_of(found: Found) -> tuple[bool, str]:
    """What tells a checkpoint from all others that lie in the folder at the same time."""
    return found.is_loose, f"{found.path}/" if found.shape == LOOSE else found.path


def name_at(path: str, root: Path) -> str:
    """What a checkpoint at a path is called: its path below the checkpoint folder, outside of it its own name."""
    name = os.path.relpath(path, root)
    return os.path.basename(path) if name.startswith("..") else name


def recover(pin: Path, root: Path, now: float) -> Candidate | None:
    """The candidate that an earlier agent left in a pin; None when there is nothing in it.

    `root` is the checkpoint folder, which may have been moved since. After a crash of the machine the links may be
    there without a word on what they are; then the candidate is named after its pin.
    """
    members, _ = look_inside(str(pin / FILES))
    try:
        about = json.loads((pin / ABOUT).read_bytes())
        name, shape = str(about["name"]), str(about["shape"])
        commit = Commit(**about["commit"]) if about["commit"] else None
        path = commit.path if commit else str(root / name if shape != LOOSE else (root / name).parent)
        found = Found(name, path, shape, {}, tuple(about["inode"]))
        candidate = Candidate(found, pin, now, int(about["first_seen_ns"]))
        candidate.commit = commit
    except (OSError, ValueError, KeyError, TypeError):
        name = NAMELESS.format(pin.name)
        found = Found(name, str(root / name), FOLDER, {}, (0, 0))
        candidate = Candidate(found, pin, now, time.time_ns())
        members = {rel: m for rel, m in members.items() if _is_last_link(pin / FILES / rel)}
        candidate.missed["a note of what it is"] = 0  # nor is there one of what belongs to it
    candidate.members = members
    candidate.pinned = set(members)
    return candidate if candidate.files else None


def _is_last_link(path: Path) -> bool:
    """Whether a pin is all that holds a file: the others are found where they are."""
    return os.lstat(path).st_nlink == 1
