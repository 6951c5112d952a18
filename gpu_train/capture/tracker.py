"""Watching the checkpoint folder: from one look to the next, what is new, what rests, what is gone."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_train.capture.candidate import Candidate, Commit, key_of, name_at, recover
from gpu_train.capture.finder import FILE, FOLDER, Beside, Found, Listing, Member, find, find_one, folder_of
from gpu_train.capture.frameworks import KNOWN
from gpu_train.capture.judge import EXPLICIT, Judge, Moment, Verdict
from gpu_train.capture.openfiles import any_open_for_writing, world_size_of
from gpu_train.capture.pin import FREED, free
from gpu_train.capture.rules import Rulebook

ABSENT_S = 0.25
"""How long a checkpoint must be missing before it counts as deleted: one look may fall into a rename."""

FORGET_S = 30.0
Key = tuple[bool, str]


@dataclass(slots=True)
class Decision:
    """A candidate whose fate is known: to be stored as whole or as incomplete, or gone."""

    candidate: Candidate
    verdict: Verdict
    gone: bool = False


@dataclass(slots=True)
class _Done:
    """What was last handed over under a name."""

    members: dict[str, Member]
    inode: tuple[int, int]
    mtime_ns: int
    seen: float


class Tracker:
    """All candidates of one job. Used by one thread; `look` sees and pins, `decide` judges."""

    def __init__(
        self, root: Path, pins: Path, *, settle_s: float, processes: Callable[[], set[int]] = set,
        clock: Callable[[], float] = time.monotonic, rules: Rulebook = KNOWN,
    ) -> None:  # fmt: skip
        self.root = root
        self.pins = pins
        self.settle_s = settle_s
        self._processes = processes
        self._clock = clock
        self._rules = rules
        self._judge = Judge(rules)
        self._looked = clock()
        self._open: dict[Key, Candidate] = {}
        self._left: list[Candidate] = []
        self._done: dict[Key, _Done] = {}
        self._done_files: dict[Member, str] = {}
        self._superseded: list[Path] = []
        self._turn = 0
        self._next = 1 + max((int(p.name) for p in _folders(pins) if p.name.isdecimal()), default=0)

    def recover(self) -> list[Decision]:
        """Take over what an earlier agent had pinned: what was committed, and what has been deleted or replaced since.

        The pins of what is still there are freed by the first look, when it has pinned all that anew.
        """
        now = self._clock()
        made = []
        for pin in _folders(self.pins):
            if pin.name.startswith(FREED):
                shutil.rmtree(pin, ignore_errors=True)
            if not pin.name.isdecimal():
                continue  # what `commit` pinned is taken with its line
            candidate = recover(pin, self.root, now)
            if candidate is not None and candidate.commit is not None:
                self._hand_over(candidate)
                made.append(Decision(candidate, Verdict(EXPLICIT)))
            elif candidate is None or candidate.lies_there:
                self._superseded.append(pin)
            else:
                candidate.absent_since = now - ABSENT_S
                self._left.append(candidate)
        return made

    @property
    def watched(self) -> list[Candidate]:
        """Everything that is not decided yet."""
        return [*self._left, *self._open.values()]

    def look(self) -> None:
        """See what is there, and pin what is new."""
        now = self._looked = self._clock()
        present: set[Key] = set()
        for found in find(self.root, self._known(), self._rules):
            key = key_of(found)
            present.add(key)
            if found.members is not None and not self._is_done(key, found, now):
                self._see(key, found, now)
        for key in self._open.keys() - present:
            candidate = self._open[key]
            candidate.absent_since = candidate.absent_since or now
            if now - candidate.absent_since >= ABSENT_S:
                self._leave(key)
        self._forget(present, now)
        while self._superseded:
            free(self._superseded.pop())

    def take_commit(self, commit: Commit) -> Decision | None:
        """The decision that an explicit commit is; None when nothing is left of what it names."""
        pin = commit.pin and self.pins / os.path.basename(commit.pin)  # the home may have been moved since
        source = find_one(f"{pin}/{os.path.basename(commit.path)}", self._rules) if pin else None
        live = find_one(commit.path, self._rules)
        found = source or live
        if not found or not found.members:
            return None
        now = self._clock()
        inode = live.inode if live else found.inode
        known = Found(name_at(commit.path, self.root), commit.path, found.shape, found.members, inode)
        self._make_way(key_of(known), found.members, live, now)
        candidate = Candidate(known, self._pin_path(), now, time.time_ns())
        candidate.commit = commit
        if source and pin:
            candidate.members = dict(found.members)
            candidate.adopt(Path(source.base), pin)
        else:
            candidate.update(known, now)
        self._hand_over(candidate)
        return Decision(candidate, Verdict(EXPLICIT))

    def decide(self, *, ended: bool = False, clean_end: bool = False, lived_ns: int = 0) -> list[Decision]:
        """The candidates whose fate is known now; they are not watched any more.

        When the job has ended that is all of them. `lived_ns` is when it still lived (wall clock): files
        last modified well before that had come to rest while it did.
        """
        now = self._clock()
        if ended:  # no other look follows that could tell a name that is gone from one in a rename
            for key in [key for key, candidate in self._open.items() if candidate.absent_since is not None]:
                self._leave(key)
        made = []
        written = _Written(self._processes)
        for candidate in self.watched:
            deleted = candidate.absent_since is not None
            if not ended and (self._is_vanishing(candidate) or self._comes_after_one(candidate)):
                continue
            decision = self._decide_one(candidate, now, deleted, ended, clean_end, written, lived_ns)
            if decision is not None:
                made.append(decision)
        return made

    def _is_vanishing(self, candidate: Candidate) -> bool:
        """Whether it was missing in the last look, which may have fallen into a rename."""
        return candidate.absent_since is not None and candidate not in self._left

    def _comes_after_one(self, candidate: Candidate) -> bool:
        """Whether an earlier one of its kind vanishes: it is about to be decided, and must not become the latest."""
        return any(
            self._is_vanishing(other) and other.first_seen < candidate.first_seen
            and self._judge.families.are_akin(other.name, candidate.name)
            for other in self._open.values()
        )  # fmt: skip

    def look_again(self, candidate: Candidate) -> None:
        """What was handed over turned out to have changed: whatever lies there now is new."""
        done = self._done.get(candidate.key)
        if done is not None and done.members == candidate.members:
            del self._done[candidate.key]
        for member in candidate.files:
            self._done_files.pop(member, None)
        candidate.discard()

    def clear(self) -> None:
        """Free pins that `commit` made but, killed in between, never told of. Only when the job is over."""
        for pin in _folders(self.pins):
            if not pin.name.isdecimal():
                shutil.rmtree(pin, ignore_errors=True)

    def _make_way(self, key: Key, committed: Mapping[str, Member], live: Found | None, now: float) -> None:
        """Stop watching what a commit of this name is the last word on; what is there now may be newer than that."""
        inodes = {(m.dev, m.ino) for m in committed.values()}

        def is_part(candidate: Candidate) -> bool:  # the same files, perhaps seen while they were being written
            files = {(m.dev, m.ino) for m in candidate.files}
            missed = candidate.missed.items()
            return (
                bool(files or missed)
                and files <= inodes
                and all(rel in committed and size <= committed[rel].size_bytes for rel, size in missed)
            )

        for candidate in [c for c in self._left if c.key == key and is_part(c)]:
            self._left.remove(candidate)
            candidate.discard()
        earlier = self._open.get(key)
        is_newer = live and not set(committed.values()).issuperset((live.members or {}).values())
        if earlier is None or (live and is_newer and earlier.shares_with(live)):
            return
        del self._open[key]
        if is_part(earlier):
            earlier.discard()
        else:
            earlier.absent_since = now
            self._left.append(earlier)

    def _known(self) -> dict[str, tuple[int, int, int]]:
        """Folders that need no look inside; by turns one of them gets it all the same."""
        known = {
            path: (*done.inode, done.mtime_ns)
            for (loose, path), done in self._done.items()
            if not loose and done.mtime_ns
        }
        if known:
            self._turn = (self._turn + 1) % len(known)
            known.pop(list(known)[self._turn])
        return known

    def _is_done(self, key: Key, found: Found, now: float) -> bool:
        """Whether all that lies there was handed over already, under this name or before a rename."""
        members = found.members or {}
        done = self._done.get(key)
        if done is not None and members.items() <= done.members.items():
            done.seen, done.mtime_ns = now, found.mtime_ns
            return True
        if found.shape == FILE:
            member = next(iter(members.values()))
            earlier = self._done_files.get(member)
            return earlier is not None and earlier != found.path  # renamed, or a second link: an alias
        for other, earlier_done in self._done.items():
            moved = found.shape == FOLDER and earlier_done.inode == found.inode and other != key
            if moved and members and members.items() <= earlier_done.members.items():
                self._done[key] = _Done(members, found.inode, found.mtime_ns, now)
                return True
        return False

    def _see(self, key: Key, found: Found, now: float) -> None:
        candidate = self._open.get(key)
        if candidate is not None and candidate.replaces(found):
            candidate.absent_since = now
            self._left.append(self._open.pop(key))
            candidate = None
        if candidate is None:
            candidate = self._renamed(found) or Candidate(found, self._pin_path(), now, time.time_ns())
            candidate.earlier = self._done[key].members if key in self._done else {}
            self._judge.families.begin(candidate.name, now)
            self._open[key] = candidate
        candidate.update(found, now)

    def _renamed(self, found: Found) -> Candidate | None:
        """The candidate that had this inode under a name that is not there any more."""
        for candidate in self.watched:
            same = candidate.found.shape == found.shape and not found.is_loose and candidate.found.inode == found.inode
            if same and candidate.shares_with(found) and not os.path.lexists(candidate.found.path):
                self._remove(candidate)
                candidate.rename(found)
                return candidate
        return None

    def _leave(self, key: Key) -> None:
        """Move a candidate whose name is gone to those left over."""
        candidate = self._open.pop(key)
        if not candidate.found.is_loose and _inode(candidate.found.path) == candidate.found.inode:
            candidate.discard()  # still there, but seen to be part of something larger, or a container
            return
        self._left.append(candidate)

    def _forget(self, present: set[Key], now: float) -> None:
        for key in [k for k, d in self._done.items() if k not in present and now - d.seen > FORGET_S]:
            for member in self._done.pop(key).members.values():
                self._done_files.pop(member, None)
        for key in present & self._done.keys():
            self._done[key].seen = now

    def _decide_one(
        self, candidate: Candidate, now: float, deleted: bool, ended: bool, clean_end: bool, written: _Written,
        lived_ns: int,
    ) -> Decision | None:  # fmt: skip
        if deleted and candidate.found.is_temporary:  # given up, or copied: nobody ever called it a checkpoint
            self._remove(candidate)
            candidate.discard()
            return None
        rest = self._looked - candidate.changed
        if candidate.vanished and not (deleted or ended):
            if rest < self.settle_s:
                return None  # it may be in the middle of being deleted
            candidate.forget_vanished()
        files = [m for m in candidate.members.values() if m.is_file]
        if not files or (deleted and not candidate.pinned):
            if not (deleted or ended):
                return None
            self._remove(candidate)
            seen_any = bool(files or candidate.missed)
            if not seen_any:
                candidate.discard()
                return None
            return Decision(candidate, Verdict(missing="its bytes"), gone=True)
        if deleted:
            candidate.members = {rel: m for rel, m in candidate.members.items() if rel in candidate.pinned}
        rest = max(rest, (lived_ns - max(m.mtime_ns for m in files)) / 1e9)
        moment = self._moment(candidate, rest, deleted, ended, clean_end, written)
        verdict = self._judge.verdict(
            candidate.name, candidate.found.shape, candidate.members, candidate.path_of, moment
        )
        if deleted and candidate.missed:
            verdict = Verdict(missing=f"{min(candidate.missed)}, deleted before it could be kept")
        if not (deleted or ended) and not (verdict.is_whole and candidate.is_as_seen):
            return None  # it is not whole, or was written to between the look and the question who writes
        self._hand_over(candidate)
        return Decision(candidate, verdict)

    def _moment(
        self, candidate: Candidate, rest_s: float, deleted: bool, ended: bool, clean_end: bool, written: _Written
    ) -> Moment:
        """What the judge is to know of a candidate beside its files."""
        found, folder = candidate.found, folder_of(candidate.found.path)
        files = [m for m in candidate.members.values() if m.is_file]
        return Moment(
            rest_s, self.settle_s, deleted, ended, clean_end, found.busy,
            # What was deleted cannot change any more: what is said of it now holds for what was seen of it.
            Beside.of(folder, Listing(folder).names, self._rules) if deleted else found.beside,
            candidate.written_over_after,
            lambda: self._judge.families.is_overtaken(candidate.name, candidate.changed),
            lambda: candidate.note_written(written.any_of(files)), written.world_size,
            was_written=candidate.written_at == candidate.changed,
            version=(id(candidate), candidate.changed, len(candidate.members)),
        )  # fmt: skip

    def _hand_over(self, candidate: Candidate) -> None:
        self._remove(candidate)
        if candidate.absent_since is None:
            done = _Done(dict(candidate.members), candidate.found.inode, candidate.found.mtime_ns, self._clock())
            self._done[candidate.key] = done
        if candidate.found.shape == FILE:
            for member in candidate.members.values():
                self._done_files[member] = candidate.found.path

    def _remove(self, candidate: Candidate) -> None:
        if self._open.get(candidate.key) is candidate:
            del self._open[candidate.key]
        elif candidate in self._left:
            self._left.remove(candidate)

    def _pin_path(self) -> Path:
        self._next += 1
        return self.pins / str(self._next - 1)


class _Written:
    """What the job's processes do and are; they are listed once per round, if at all."""

    def __init__(self, processes: Callable[[], set[int]]) -> None:
        self._list = processes
        self._pids: set[int] | None = None

    def any_of(self, files: list[Member]) -> bool:
        return any_open_for_writing(self._listed(), [(m.dev, m.ino) for m in files])

    def world_size(self) -> int:
        """How many ranks the processes say there are; 0 when none says it."""
        return world_size_of(self._listed())

    def _listed(self) -> set[int]:
        if self._pids is None:
            self._pids = self._list()
        return self._pids


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(p for p in path.iterdir() if p.is_dir())
    except OSError:
        return []


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino
