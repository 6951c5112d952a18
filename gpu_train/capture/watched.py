"""The candidates of one job that are not decided yet, and where each one's pin is."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gpu_train.capture.candidate import Candidate, Key
from gpu_train.capture.finder import FILE, Found, Member
from gpu_train.capture.watch.hold import CAUGHT
from gpu_train.capture.watch.view import View


class Watched:
    """Candidates by what has become of their names. Used by one thread.

    Attributes:
        open: those that lie in the folder, or did when it was looked at last.
        left: those whose name is gone, or stands for something else by now.
        committed: those that were committed and wait for copies of their files.
    """

    def __init__(self, pins: Path, view: View) -> None:
        self.open: dict[Key, Candidate] = {}
        self.left: list[Candidate] = []
        self.committed: list[Candidate] = []
        self._pins = pins
        self._view = view
        self._next = 1 + max((int(p.name) for p in folders_in(pins) if p.name.isdecimal()), default=0)

    @property
    def all(self) -> list[Candidate]:
        """Everything that is not decided yet, first seen first."""
        every = [*self.committed, *self.left, *self.open.values()]
        return sorted(every, key=lambda candidate: (candidate.first_seen, candidate.first_seen_ns))

    def new(self, found: Found, now: float) -> Candidate:
        """A candidate for what was found; it is not watched yet."""
        candidate = Candidate(found, self._pin_path(found), now, time.time_ns(), self._view)
        candidate.first_seen = min(now, self._view.since(found.path) or now)
        return candidate

    def file_at(self, path: str) -> Candidate | None:
        """The file with that path, if it is a checkpoint by itself."""
        candidate = self.open.get((False, path))
        return candidate if candidate is not None and candidate.found.shape == FILE else None

    def renamed(self, found: Found) -> Candidate | None:
        """The candidate that was found under a name that is not there any more; it is not watched meanwhile."""
        for candidate in self.all:
            same = candidate.found.shape == found.shape and not found.is_loose and candidate.found.inode == found.inode
            if same and candidate.shares_with(found) and not self._view.exists(candidate.found.path):
                self.remove(candidate)
                candidate.rename(found)
                return candidate
        return None

    def leave(self, key: Key) -> None:
        """Move a candidate whose name is gone to those left over."""
        candidate = self.open.pop(key)
        if not candidate.found.is_loose and self._view.inode(candidate.found.path) == candidate.found.inode:
            candidate.discard()  # still there, but seen to be part of something larger, or a container
            return
        self.left.append(candidate)

    def replaced(self, key: Key, now: float) -> None:
        """Something else has a candidate's name."""
        candidate = self.open.pop(key)
        candidate.absent_since = now
        candidate.last_seen = self._view.ended(candidate.found.path) or candidate.last_seen
        self.left.append(candidate)

    def remove(self, candidate: Candidate) -> None:
        """Watch a candidate no more."""
        if self.open.get(candidate.key) is candidate:
            del self.open[candidate.key]
        elif candidate in self.left:
            self.left.remove(candidate)

    def watch_copy(self, found: Found, member: Member, copy: Path, now: float) -> bool:
        """Watch what only a copy is left of, since its file has been written over; whether that worked."""
        candidate = self.new(found, now)
        later = self.file_at(found.path)
        if later is not None:  # it was seen before what has its name now
            candidate.first_seen, candidate.first_seen_ns = later.first_seen, later.first_seen_ns
            later.first_seen, later.first_seen_ns = now, time.time_ns()
        rel = os.path.basename(found.path)
        candidate.members[rel] = member
        candidate.is_overwritten = True
        candidate.absent_since = now
        if candidate.give(rel, copy):
            self.left.append(candidate)
        return bool(candidate.pinned)

    def copy_before(self, path: str, time_ns: int) -> Candidate | None:
        """The copy of the last version that a file had before a moment, if its file has been written over since."""
        copies = [c for c in self.left if c.is_overwritten and c.found.path == path and c.modified_ns <= time_ns]
        return max(copies, key=lambda c: c.modified_ns, default=None)

    def make_way(self, committed: Candidate, live: Found | None, now: float) -> None:
        """Stop watching what a commit of this name is the last word on; what is there now may be newer than that."""
        members = committed.members
        inodes = {(m.dev, m.ino) for m in members.values()}

        def is_part(candidate: Candidate) -> bool:  # the same files, perhaps seen while they were being written
            if candidate.is_overwritten:  # an earlier content of them
                return candidate.files <= set(members.values())
            files = {(m.dev, m.ino) for m in candidate.files}
            missed = candidate.missed.items()
            return (
                bool(files or missed or candidate.doubt)  # of one that was deleted at once only its name is known
                and files <= inodes
                and all(rel in members and size <= members[rel].size_bytes for rel, size in missed)
            )

        for candidate in [c for c in self.left if c.key == committed.key and is_part(c)]:
            self.left.remove(candidate)
            committed.inherit(candidate)
        earlier = self.open.get(committed.key)
        is_newer = live and not set(members.values()).issuperset((live.members or {}).values())
        if earlier is None or (live and is_newer and earlier.shares_with(live)):
            return
        if is_part(earlier):
            del self.open[committed.key]
            committed.inherit(earlier)
        else:
            self.replaced(committed.key, now)

    def _pin_path(self, found: Found) -> Path:
        """Where to pin a checkpoint: on its own file system, so where the sentry holds its files."""
        self._next += 1
        for rel in found.members or {}:
            hold = Path(self._view.source(f"{found.base}/{rel}"))
            if hold.parent.name == CAUGHT:
                return hold.parent.with_name(str(self._next - 1))
        return self._pins / str(self._next - 1)


def folders_in(path: Path) -> list[Path]:
    """The folders in a folder, by name; none when it cannot be read."""
    try:
        return sorted(p for p in path.iterdir() if p.is_dir())
    except OSError:
        return []
