"""A checkpoint that is being watched: what was seen of it, what is pinned, and since when it rests."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Protocol

from gpu_train.capture.commit import Commit
from gpu_train.capture.finder import FILE, FOLDER, LOOSE, Found, Member, member_at
from gpu_train.capture.pin import free, like, link_file
from gpu_train_cas.errors import SourceChanged
from gpu_train_cas.filesystem import replacing

Key = tuple[bool, str]
"""What tells a checkpoint from all others that lie in the folder at the same time: whether it is loose, its path."""

ABOUT = "about.json"
FILES = "files"


class Holds(Protocol):
    """Knows what is held of files beside the candidates' own pins."""

    def source(self, path: str) -> str:
        """Where the bytes of the file at a path can be had."""

    def is_coming(self, inode: tuple[int, int]) -> bool:
        """Whether a copy of a file is being made, which will be given to its candidate."""


class Candidate:
    """One content under one name, from the moment it is first seen until it is stored.

    Every member is linked into the candidate's pin when it is first seen, still open or not. The pin
    holds `about.json` and `files/`, laid out like the checkpoint.

    Attributes:
        found: as it lay in the folder last.
        members: everything seen and still counted in, also what the trainer has deleted since.
        vanished: those of them that have been deleted while the checkpoint itself is still there.
        pinned: what holds their bytes in the pin, a link (the file itself) or a copy.
        copied: those for which it is a copy, so that writing over the file does not reach it.
        missed: files that were deleted before they could be linked, with their sizes.
        earlier: what had been handed over under its name before it.
        doubt: what else may have been missed, in words.
        was_let_go: whether it was pinned and is not any more, while it waits to be stored.
        is_overwritten: whether its file has another content by now; only copies of it are left.
        first_seen_ns: wall clock. first_seen, changed, absent_since: monotonic seconds.
        written_at: its `changed` when a process was found to have it open for writing.
    """

    def __init__(self, found: Found, pin: Path, now: float, now_ns: int, holds: Holds) -> None:
        self.found = found
        self.pin = pin
        self.members: dict[str, Member] = {}
        self.vanished: set[str] = set()
        self.pinned: dict[str, Member] = {}
        self.copied: set[str] = set()
        self.missed: dict[str, int] = {}
        self.earlier: Mapping[str, Member] = {}
        self._since: dict[str, float] = {}
        self._rewritten: dict[str, float] = {}
        self.doubt = ""
        self.is_overwritten = self.was_let_go = False
        self._holds = holds
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
    def key(self) -> Key:
        """What tells it from all others."""
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
        """Whether links and copies hold the bytes of all that it consists of."""
        return self.pinned.keys() >= self.members.keys()

    @property
    def awaits_copies(self) -> bool:
        """Whether copies of its files are being made."""
        return any(self._holds.is_coming((m.dev, m.ino)) for m in self.files)

    @property
    def lifetime_s(self) -> float:
        """How long it was seen."""
        return self.last_seen - self.first_seen

    @property
    def files(self) -> set[Member]:
        """The regular files among its members."""
        return {m for m in self.members.values() if m.is_file}

    @property
    def modified_ns(self) -> int:
        """When the newest of its files was written to last."""
        return max((m.mtime_ns for m in self.files), default=0)

    @property
    def size_bytes(self) -> int:
        """Of the files seen, pinned or missed."""
        return sum(m.size_bytes for m in self.files) + sum(self.missed.values())

    def replaces(self, found: Found) -> bool:
        """Whether what lies under the name now is another file or folder, not this one changed.

        A file of which there is a copy is another one as soon as it changes.

        Inode numbers come again: a folder made anew may have its predecessor's, so its files are asked too.
        """
        if self.found.is_loose:
            return False
        if self.found.inode != found.inode:
            return True
        if self.found.shape == FILE:
            return any(self.members.get(rel) != (found.members or {}).get(rel) for rel in self.copied)
        has_files = any(m.is_file for m in (found.members or {}).values())
        return self.found.shape == FOLDER and bool(self.files) and has_files and not self.shares_with(found)

    def shares_with(self, found: Found) -> bool:
        """Whether one of its files lies there, changed or not; while it is pinned no other can have its number."""
        own = {(m.dev, m.ino) for m in self.files}
        return any(m.is_file and (m.dev, m.ino) in own for m in (found.members or {}).values())

    def update(self, found: Found, now: float, doubt: str = "") -> None:
        """Take note of what is there now, and pin what is new; `doubt` says what may have been missed of it."""
        if found.signs != self.found.signs:
            self.changed = now
        rewritten = self.refresh(now)
        seen = {rel: self._as_pinned(rel, member) for rel, member in (found.members or {}).items()}
        self.found = found
        self.last_seen = now
        self.absent_since = None
        new = [
            rel for rel, m in seen.items() if self.members.get(rel) != m and not (m.is_unseen and rel in self.missed)
        ]
        fresh = [*new, *(rewritten.keys() & seen.keys())]
        vanished = self.members.keys() - seen.keys()
        for rel in fresh:
            self._note_content(rel, seen[rel], rewritten.get(rel, self.members.get(rel)), now)
        if fresh and (self.vanished or vanished):
            # Written to after something was deleted: what was deleted belonged to an earlier content.
            for rel in vanished | self.vanished:
                self._drop(rel)
            vanished = set()
        # A part that was doubtful takes the doubt along when it goes; once something is written, it was no part.
        self.doubt = doubt if fresh or not vanished else doubt or self.doubt
        if fresh:
            self.missed = {rel: size for rel, size in self.missed.items() if rel in seen}
        if fresh or not vanished <= self.vanished:
            self.changed = now
        for rel in vanished - self.pinned.keys():
            if not self._holds.is_coming((self.members[rel].dev, self.members[rel].ino)):
                self.miss(rel)
        self.vanished = set(vanished) & self.members.keys()
        if fresh and not self.pin.exists():
            self._describe()
        for rel in new:
            self._pin(rel, seen[rel])

    def _note_content(self, rel: str, member: Member, before: Member | None, now: float) -> None:
        """Note since when a file has its present content, and whether it had another one before."""
        earlier = self.earlier.get(rel)
        self._since[rel] = -inf if earlier == member else now
        if before is None:
            again = earlier is not None and earlier != member
        else:  # one that has only grown is still being written for the first time
            again = before.ino != member.ino or member.size_bytes <= before.size_bytes
        if again and member.is_file:
            self._rewritten[rel] = now

    def refresh(self, now: float) -> dict[str, Member]:
        """Take note of what has become of linked files, whether they still have their names or not.

        Those that have changed are returned, as they were before.
        """
        changed = {}
        for rel in self.members.keys() & self.pinned.keys() - self.copied:
            if self.members[rel].is_file:
                with suppress(OSError):
                    member = Member.of(os.stat(self.pin / FILES / rel, follow_symlinks=False))
                    if member != self.members[rel]:
                        changed[rel] = self.members[rel]
                        self.members[rel] = self.pinned[rel] = member
                        self.changed = now
        return changed

    def _as_pinned(self, rel: str, seen: Member) -> Member:
        """What was seen of a member; of one that is linked the link tells more, also when its name is gone by now."""
        own = self.members.get(rel)
        linked = own is not None and rel in self.pinned and rel not in self.copied
        return own if linked and own is not None and (own.dev, own.ino) == (seen.dev, seen.ino) else seen

    def adopt(self, files: Path, pin: Path) -> None:
        """Make links that are there already this candidate's pin; `files` holds them, `pin` is all of it."""
        self._describe()
        (self.pin / FILES).rmdir()
        os.rename(files, self.pin / FILES)
        shutil.rmtree(pin, ignore_errors=True)
        self.pinned = dict(self.members)

    def give(self, rel: str, copy: Path) -> bool:
        """Hold a member by a copy of its present content, which gets a second name in the pin; whether that worked."""
        target = self.pin / FILES / rel
        try:
            if not self.pin.exists():
                self._write_about()
            target.unlink(missing_ok=True)
            if not link_file(copy, target):
                return False
            self.pinned[rel] = Member.of(target.stat(follow_symlinks=False))
        except OSError:
            return False
        self.copied.add(rel)
        return True

    def inherit(self, earlier: Candidate) -> None:
        """Take over the copies that another candidate has of files that are the same here, and free the rest of it."""
        for rel in earlier.copied & self.members.keys():
            if earlier.members[rel] == self.members[rel]:
                self.give(rel, earlier.pin / FILES / rel)
        earlier.discard()

    def miss(self, rel: str) -> None:
        """Count a member out whose bytes are gone."""
        self.missed[rel] = self.members.pop(rel).size_bytes
        self.vanished.discard(rel)

    def rel_of(self, path: str) -> str | None:
        """The path below the checkpoint of a member that lies at `path`; None when none does."""
        before = f"{self.found.base}/"
        rel = path.removeprefix(before)
        return rel if path.startswith(before) and rel in self.members else None

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
        self.missed.clear()
        self.doubt = ""

    def path_of(self, rel: str) -> str:
        """Where a member's bytes can be read."""
        if rel in self.pinned:
            return str(self.pin / FILES / rel)
        return self._holds.source(f"{self.found.base}/{rel}")

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
        files = {rel: self.pinned.get(rel, member) for rel, member in self.members.items() if member.is_file}
        return all(member_at(self.path_of(rel)) == member for rel, member in files.items())

    def check(self, base: Path) -> None:
        """Make sure that what lies below `base` still is what was judged.

        Raises:
            SourceChanged: naming the first file that is not.
        """
        expected = self.members if base == Path(self.found.base) else self.pinned
        for rel, member in expected.items():
            try:
                now = Member.of(os.stat(base / rel, follow_symlinks=False))
            except OSError:
                raise SourceChanged(f"{self.name}: {rel} vanished while it was being stored") from None
            if member.is_file and now != member:
                raise SourceChanged(f"{self.name}: {rel} changed while it was being stored")

    def let_go(self) -> None:
        """Hold it no more, while it lies there: it is read from the trainer's own files then."""
        free(self.pin)
        self.pinned.clear()
        self.was_let_go = True

    def hold_again(self) -> None:
        """Pin what was let go, if all of it still lies there as it was seen."""
        self._describe()
        for rel, member in self.members.items():
            target = self.pin / FILES / rel
            try:
                if member.is_folder:
                    target.mkdir(parents=True, exist_ok=True)
                elif stat.S_ISLNK(member.mode):
                    target.symlink_to(os.readlink(f"{self.found.base}/{rel}"))
                elif not link_file(f"{self.found.base}/{rel}", target) or member_at(str(target)) != member:
                    break
            except OSError:
                break
        else:
            self.pinned = dict(self.members)
            self.was_let_go = False
            return
        free(self.pin)

    def discard(self) -> None:
        """Free the pin."""
        free(self.pin)

    def _drop(self, rel: str) -> None:
        member = self.members.pop(rel, None)
        self.pinned.pop(rel, None)
        self.copied.discard(rel)
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
        lies_at, target = f"{self.found.base}/{rel}", self.pin / FILES / rel
        source = self._holds.source(lies_at)
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
        if not held and not os.path.lexists(source) and not os.path.lexists(lies_at):
            self.missed[rel] = member.size_bytes
            return
        self.members[rel] = member
        self.missed.pop(rel, None)
        if held:
            self.pinned[rel] = member

    def _dress(self) -> None:
        """Give the pin's folders the modes and times of the checkpoint's, innermost first."""
        folders = [rel for rel, m in self.members.items() if m.is_folder]
        for rel in [*sorted(folders, reverse=True), ""]:
            try:
                like(os.stat(f"{self.found.base}/{rel}"), self.pin / FILES / rel)
            except OSError:  # the trainer has deleted it, and with it these two facts
                continue


def key_of(found: Found) -> Key:
    """What tells a checkpoint from all others."""
    return found.is_loose, f"{found.path}/" if found.shape == LOOSE else found.path
