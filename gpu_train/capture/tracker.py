"""Watching the checkpoint folder: from one look to the next, what is new, what rests, what is gone.

What is looked at is the view of what the sentry has told (`watch.view`), so that also what came and went between two
looks of the agent is seen: before a sighting takes something away, all that came before it is looked at.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from gpu_train.capture.candidate import Candidate, Key, key_of
from gpu_train.capture.commit import Commit, name_at
from gpu_train.capture.decision import Decision, Occasion
from gpu_train.capture.done import Done
from gpu_train.capture.finder import FILE, FOLDER, Beside, Found, Listing, Member, find, find_one, folder_of
from gpu_train.capture.frameworks import KNOWN
from gpu_train.capture.judge import EXPLICIT, Judge, Moment, Verdict
from gpu_train.capture.openfiles import Processes
from gpu_train.capture.overwritten import Overwritten
from gpu_train.capture.pin import FREED, discard, free
from gpu_train.capture.recovery import recover, take_over
from gpu_train.capture.resaved import Resaved
from gpu_train.capture.rules import Rulebook
from gpu_train.capture.watch import sighting
from gpu_train.capture.watch.hold import CAUGHT, caught_in
from gpu_train.capture.watch.keeper import may_be_written_over
from gpu_train.capture.watch.sighting import Sighting
from gpu_train.capture.watch.view import View
from gpu_train.capture.watched import Watched, folders_in

ABSENT_S = 0.25
"""How long a checkpoint must be missing before it counts as deleted: one look may fall into a rename."""

TELLING_S = 0.5
"""How long the sentry may be behind with what it tells."""


_IDLE = (".txt", ".log")


class Tracker:
    """All candidates of one job. Used by one thread; `take` and `look` see and pin, `decide` judges.

    Attributes:
        view: what is where, as far as is known.
        overwritten, resaved: what became of files that were written over in place, and of folders.
        is_urgent: whether a file was finished that nothing protects from being written over; set back by `decide`.
        places: folders with pins on other file systems; whoever knows of them adds them.
    """

    def __init__(
        self, root: Path, pins: Path, *, settle_s: float, processes: Callable[[], set[int]] = set,
        clock: Callable[[], float] = time.monotonic, rules: Rulebook = KNOWN, view: View | None = None,
    ) -> None:  # fmt: skip
        self.root = root
        self.pins = pins
        self.settle_s = settle_s
        self.view = View(root) if view is None else view
        self.is_urgent = False
        self.places: list[Path] = []
        self.overwritten = Overwritten(self)
        self.resaved = Resaved(rules, self._checkpoint_at)
        self._processes = processes
        self._clock = clock
        self._rules = rules
        self._judge = Judge(rules)
        self._looked = clock()
        self._watched = Watched(pins, self.view)
        self._done = Done()
        self._superseded: list[Path] = []

    def recover(self, before_ns: int | None = None) -> list[Decision]:
        """Take over what an earlier agent had pinned: what was committed, and what has been deleted or replaced since.

        The pins of what is still there are freed by the first look, when it has pinned all that anew. Sentries of
        before `before_ns` are dead.
        """
        now = self._clock()
        made = []
        for pin in (pin for folder in (self.pins, *self.places) for pin in folders_in(folder)):
            if pin.name.startswith(FREED):
                shutil.rmtree(pin, ignore_errors=True)
            if not pin.name.isdecimal():
                continue  # what `commit` pinned is taken with its line
            candidate = recover(pin, self.root, now, self.view)
            if candidate is not None and candidate.commit is not None:
                self._hand_over(candidate)
                made.append(Decision(candidate, Verdict(EXPLICIT)))
            elif candidate is None or candidate.lies_there:
                self._superseded.append(pin)
            else:
                candidate.absent_since = now - ABSENT_S
                self._watched.left.append(candidate)
        self._take_over(before_ns or time.time_ns())
        return made

    def _take_over(self, before_ns: int) -> None:
        """Take over what dead sentries held and never told: gone, or written over, by now."""
        self.view.rescan()
        for folder in (self.pins, *self.places):
            for rel, hold in caught_in(folder / CAUGHT, before_ns, self.view.holds()):
                take_over(rel, hold, self._watched, self.view, self._clock())
        self.glance()

    @property
    def watched(self) -> list[Candidate]:
        """Everything that is not decided yet, first seen first."""
        return self._watched.all

    def take(self, sightings: Iterable[Sighting]) -> None:
        """Take in what the sentry saw, in its order, and pin what is new."""
        for seen in sightings:
            path = self.view.path_of(seen) if seen.name else None
            if self.view.is_fresh and self.view.loses(seen) and not self._is_idle(path):
                self.glance()
            if seen.kind == sighting.CLOSED and path is not None:
                again = self.overwritten.closed(path, seen)
                rel = os.path.relpath(path, self.root)
                self.is_urgent |= not seen.coming and may_be_written_over(rel, is_rewritten=again)
            self.view.apply(seen)
            if path is not None:
                self.resaved.hear(seen, path)
            if seen.kind == sighting.KEPT:
                self.overwritten.kept(seen)
            elif seen.kind == sighting.OVERWRITTEN:
                self.overwritten.not_kept(seen)
            elif seen.kind == sighting.DIED:
                self.overwritten.forget_copies()
                self._take_over(time.time_ns() - int((time.monotonic() - seen.at) * 1e9))

    def _is_idle(self, path: str | None) -> bool:
        """Whether a name is one of the root's that no checkpoint has or needs: jobs may make and delete thousands."""
        folder, _, name = (path or "").rpartition("/")
        return folder == str(self.root) and name.endswith(_IDLE) and name not in self._rules.text_files

    def look(self, sync: Callable[[], Iterable[Sighting]] = tuple) -> bool:
        """See what is on the disk, whatever the sentry says, and pin what is new; whether names were news.

        `sync` gives all that the sentry saw up to now. What it has told is looked at first: it may be gone by now.
        """
        self.take(sync())
        if self.view.is_fresh:
            self.glance()
        compared = self.view.rescan()
        if compared.missing:
            self.take(sync())
            self.view.remove(compared.missing)
        self.glance()
        return compared.was_news

    def glance(self) -> None:
        """See what is in the view, and pin what is new."""
        now = self._looked = self._clock()
        self.view.is_fresh = False
        present: set[Key] = set()
        for found in find(self.root, self._done.unchanged(), self._rules, self.view):
            key = key_of(found)
            present.add(key)
            if found.members is not None and not self._done.holds(key, found, now):
                self._see(key, found, now)
        for key in self._watched.open.keys() - present:
            candidate = self._watched.open[key]
            if candidate.absent_since is None:
                candidate.absent_since = now
                candidate.last_seen = self.view.ended(candidate.found.path) or candidate.last_seen
            if now - candidate.absent_since >= ABSENT_S:
                self._watched.leave(key)
        self._done.forget(present, now)
        while self._superseded:
            free(self._superseded.pop())

    def release(self) -> None:
        """Give back what the sentry holds and no candidate needs any more; call it after a look."""
        unpinned = {(m.dev, m.ino) for c in self.watched for rel, m in c.members.items() if rel not in c.pinned}
        self.view.release(unpinned.__contains__)
        self.overwritten.forget(lambda path: not self.view.exists(path))

    def take_commit(self, commit: Commit) -> Decision | None:
        """The decision that an explicit commit is; None when nothing is left of what it names."""
        # The home may have been moved since.
        pin = self.pins / os.path.basename(commit.pin) if commit.pin else None
        source = find_one(f"{pin}/{os.path.basename(commit.path)}", self._rules) if pin else None
        live = find_one(commit.path, self._rules)
        found = source or live
        if not found or not found.members:
            return None
        earlier = self._watched.copy_before(commit.path, commit.time_ns)
        if earlier is not None and earlier.files.isdisjoint(found.members.values()):
            return self._commit_copy(earlier, commit, pin)
        now = self._clock()
        inode = live.inode if live else found.inode
        known = Found(name_at(commit.path, self.root), commit.path, found.shape, found.members, inode)
        candidate = self._watched.new(known, now)
        candidate.commit = commit
        if source and pin:
            candidate.members = dict(found.members)
            candidate.adopt(Path(source.base), pin)
        else:
            candidate.update(known, now)
        self._watched.make_way(candidate, live, now)
        self._hand_over(candidate)
        if candidate.awaits_copies:
            self._watched.committed.append(candidate)
        return Decision(candidate, Verdict(EXPLICIT), waits=candidate.awaits_copies)

    def _commit_copy(self, candidate: Candidate, commit: Commit, pin: Path | None) -> Decision:
        """What was committed has been written over since, and so have the links to it; but there is a copy."""
        candidate.commit = commit
        if pin:
            discard(pin)
        self._hand_over(candidate)
        return Decision(candidate, Verdict(EXPLICIT))

    def decide(self, *, ended: bool = False, clean_end: bool = False, lived_ns: int = 0) -> list[Decision]:
        """The candidates whose fate is known now; they are not watched any more.

        When the job has ended that is all of them. `lived_ns` is when it still lived (wall clock): files
        last modified well before that had come to rest while it did.
        """
        now = self._clock()
        self.is_urgent = False
        if ended:  # no other look follows that could tell a name that is gone from one in a rename
            for key in [key for key, candidate in self._watched.open.items() if candidate.absent_since is not None]:
                self._watched.leave(key)
        made = [Decision(c, Verdict(EXPLICIT)) for c in self._watched.committed if not c.awaits_copies]
        self._watched.committed = [c for c in self._watched.committed if c.awaits_copies]
        occasion = Occasion(now, Processes(self._processes), ended, clean_end, lived_ns)
        for candidate in (c for c in self.watched if c not in self._watched.committed):
            if not ended and (self._is_vanishing(candidate) or self._comes_after_one(candidate)):
                continue
            decision = self._decide_one(candidate, occasion)
            if decision is not None:
                made.append(decision)
        return made

    def _is_vanishing(self, candidate: Candidate) -> bool:
        """Whether it was missing in the last look, which may have fallen into a rename."""
        return candidate.absent_since is not None and candidate not in self._watched.left

    def _comes_after_one(self, candidate: Candidate) -> bool:
        """Whether an earlier one of its kind vanishes: it is about to be decided, and must not become the latest."""
        return any(
            self._is_vanishing(other) and other.first_seen < candidate.first_seen
            and self._judge.families.are_akin(other.name, candidate.name)
            for other in self._watched.open.values()
        )  # fmt: skip

    def look_again(self, candidate: Candidate) -> None:
        """What was handed over turned out to have changed: whatever lies there now is new."""
        self._done.take_back(candidate)
        candidate.discard()

    def clear(self) -> None:
        """Free pins that nobody told of: `commit`'s, killed in between, and the sentry's. Only when the job is over."""
        for pin in (pin for folder in (self.pins, *self.places) for pin in folders_in(folder)):
            if not pin.name.isdecimal():
                shutil.rmtree(pin, ignore_errors=True)
        for place in self.places:
            with suppress(OSError):  # what could not be stored is still in it
                place.rmdir()

    def _see(self, key: Key, found: Found, now: float) -> None:
        candidate = self._watched.open.get(key)
        overwritten = False
        if candidate is not None and candidate.replaces(found):
            overwritten = candidate.is_overwritten = found.shape == FILE and candidate.found.inode == found.inode
            self._watched.replaced(key, now)
            candidate = None
        if candidate is None:
            candidate = self._watched.renamed(found) or self._watched.new(found, now)
            if overwritten:
                candidate.first_seen = now
            candidate.earlier = self._done.members_of(key)
            self._judge.families.begin(candidate.name, now)
            self._watched.open[key] = candidate
        candidate.update(found, now, self.view.doubt(found.path) if found.shape == FOLDER else "")

    def _decide_one(self, candidate: Candidate, occasion: Occasion) -> Decision | None:
        deleted = candidate.absent_since is not None
        if deleted and candidate.found.is_temporary:  # given up, or copied: nobody ever called it a checkpoint
            self._drop(candidate)
            return None
        is_over = deleted or occasion.ended
        if candidate.awaits_copies or (self.view.is_told and not is_over and self._may_be_copied(candidate)):
            return None
        if deleted:
            candidate.refresh(occasion.now)
        rest_s = self._looked - candidate.changed
        if candidate.vanished and not is_over:
            if rest_s < self.settle_s:
                return None  # it may be in the middle of being deleted
            candidate.forget_vanished()
        if not candidate.files or (deleted and not candidate.pinned):
            if not is_over:
                return None
            if not (candidate.files or candidate.missed or candidate.doubt):
                self._drop(candidate)
                return None
            self._watched.remove(candidate)
            return Decision(candidate, Verdict(missing="its bytes"), gone=True)
        if deleted:
            for rel in candidate.members.keys() - candidate.pinned.keys():
                candidate.miss(rel)
        if deleted and (missing := self._missing_of(candidate)):
            verdict = Verdict(missing=missing)
        else:
            verdict = self._judge.verdict(
                candidate.name, candidate.found.shape, candidate.members, candidate.path_of,
                self._moment(candidate, rest_s, occasion),
            )  # fmt: skip
        if candidate.is_overwritten and not verdict.is_whole and self.overwritten.is_fragment(candidate):
            self._drop(candidate)
            return None
        if not is_over and not (verdict.is_whole and candidate.is_as_seen):
            return None  # it is not whole, or was written to between the look and the question who writes
        self._hand_over(candidate)
        return Decision(candidate, verdict)

    def _missing_of(self, candidate: Candidate) -> str:
        """What was or may have been deleted of one before it could be kept, in words."""
        if candidate.missed:
            return f"{min(candidate.missed)}, deleted before it could be kept"
        files = [rel for rel, member in candidate.members.items() if member.is_file]
        return "" if self._judge.families.has_all_of_last(candidate.name, files) else candidate.doubt

    def _moment(self, candidate: Candidate, rest_s: float, occasion: Occasion) -> Moment:
        """What the judge is to know of a candidate beside its files."""
        found, folder = candidate.found, folder_of(candidate.found.path)
        files = candidate.files
        deleted = candidate.absent_since is not None
        rest_s = max(rest_s, (occasion.lived_ns - max(m.mtime_ns for m in files)) / 1e9)
        return Moment(
            rest_s, self.settle_s, deleted, occasion.ended, occasion.clean_end, found.busy,
            # What was deleted cannot change any more: what is said of it now holds for what was seen of it.
            Beside.of(folder, Listing(folder).names, self._rules) if deleted else found.beside,
            candidate.written_over_after,
            lambda: self._judge.families.is_overtaken(candidate.name, candidate.changed),
            lambda: candidate.note_written(occasion.processes.write((m.dev, m.ino) for m in files)),
            occasion.processes.world_size, was_written=candidate.written_at == candidate.changed,
            version=(id(candidate), candidate.changed, len(candidate.members)),
        )  # fmt: skip

    def _drop(self, candidate: Candidate) -> None:
        """Watch a candidate no more of which nothing is to be said."""
        self._watched.remove(candidate)
        candidate.discard()

    def _hand_over(self, candidate: Candidate) -> None:
        self._watched.remove(candidate)
        self._done.add(candidate, self._clock())
        self.overwritten.taken(candidate)
        self.resaved.left(candidate.found.path)

    def _may_be_copied(self, candidate: Candidate) -> bool:
        """Whether the sentry has yet to tell that a file was closed, and whether it makes a copy.

        The file itself can be seen to be finished sooner. What was moved in whole is never closed.
        """
        if candidate.found.shape != FILE or candidate.copied or self._clock() - candidate.changed > TELLING_S:
            return False
        return may_be_written_over(candidate.name, is_rewritten=False) and not self.overwritten.is_closed(candidate)

    # For `resaved`

    def _checkpoint_at(self, path: str, *, again: bool) -> tuple[str, Candidate | None] | None:
        """See `resaved.CheckpointAt`."""
        if again and self.view.is_fresh:
            self.glance()
        folder = path
        while len(folder := folder_of(folder)) > len(str(self.root)):
            candidate = self._watched.open.get((False, folder))
            if candidate is not None or self._done.is_known((False, folder)):
                return folder, candidate
        return None

    # For `overwritten`

    def file_at(self, path: str) -> Candidate | None:
        """See `overwritten.Candidates`."""
        return self._watched.file_at(path)

    def name_at(self, path: str) -> str | None:
        """See `overwritten.Candidates`."""
        candidate = self._watched.file_at(path)
        if candidate is not None:
            return candidate.name
        return os.path.relpath(path, self.root) if self._done.is_file(path) else None

    def watch_copy(self, found: Found, member: Member, copy: Path) -> bool:
        """See `overwritten.Candidates`."""
        return self._watched.watch_copy(found, member, copy, self._clock())

    def is_cut_short(self, member: Member) -> bool:
        """See `overwritten.Candidates`."""
        return self._judge.is_cut_short(member)
