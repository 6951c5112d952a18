"""Files that are written over in place: each closing after writing is a version, and none goes unaccounted for.

Most are taken before the next one begins. Where that is not sure the sentry makes a copy and tells whether it is
exact; it goes to the candidate that is that version, or becomes one. What is neither taken nor copied when the file
turns out to be another one, is lost, and is reported.
"""

from __future__ import annotations

import os
import stat
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_train.capture.candidate import Candidate
from gpu_train.capture.finder import FILE, Found, Member
from gpu_train.capture.watch.sighting import Sighting, Version
from gpu_train.capture.watch.snapshot import begins
from gpu_train.capture.watch.view import View


@dataclass(frozen=True, slots=True)
class Lost:
    """A version of a file that was finished, and written over before its bytes could be kept."""

    name: str
    size_bytes: int
    lifetime_s: float


class Candidates(Protocol):
    """The candidates, as far as they matter here (`tracker.Tracker`)."""

    @property
    def view(self) -> View:
        """What is where."""

    @property
    def watched(self) -> list[Candidate]:
        """Everything that is not decided yet."""

    def glance(self) -> None:
        """See what is there by now."""

    def file_at(self, path: str) -> Candidate | None:
        """The file with that path, if it is a checkpoint by itself that is not decided yet."""

    def name_at(self, path: str) -> str | None:
        """The name of the checkpoint that a file with that path is by itself, decided or not; None when it is none."""

    def watch_copy(self, found: Found, member: Member, copy: Path) -> bool:
        """Take a copy as what is left of a file; whether that worked."""

    def is_cut_short(self, member: Member) -> bool:
        """Whether a file is known not to be whole by its own account."""


@dataclass(slots=True)
class _Closing:
    """One version: where the file lay, what it was, and when it was closed (monotonic seconds).

    `is_settled` once it is known what became of it: a copy holds it, it was handed over, or it was reported.
    """

    path: str
    version: Version
    at: float
    is_coming: bool = False
    is_settled: bool = False


class Overwritten:
    """The versions of one job's files that have not been accounted for. Used by one thread."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates
        self._last: dict[tuple[int, int], _Closing] = {}
        self._coming: dict[Version, list[_Closing]] = defaultdict(list)
        self._lost: list[Lost] = []

    def lost(self) -> list[Lost]:
        """The versions that were lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def closed(self, path: str, seen: Sighting) -> bool:
        """A file was closed after writing; whether another version of it was before."""
        assert seen.version is not None
        if seen.version[2] == 0 and seen.version[3] >= 0:
            return False  # made, but not written yet
        earlier = self._last.get(seen.version[:2])
        closing = self._last[seen.version[:2]] = _Closing(path, seen.version, seen.at, seen.coming)
        if seen.coming:
            self._coming[seen.version].append(closing)
        if earlier is None or earlier.version == seen.version or earlier.path != path:
            return False
        self._lose(earlier)
        return True

    def is_closed(self, candidate: Candidate) -> bool:
        """Whether all files of a candidate were closed as they are now; their times may have been set since."""
        closings = ((m, self._last.get((m.dev, m.ino))) for m in candidate.files)
        return all(closing is not None and closing.version[2] == m.size_bytes for m, closing in closings)

    def taken(self, candidate: Candidate) -> None:
        """A candidate is handed over as it is now."""
        for rel, member in candidate.members.items():
            closing = self._last.get((member.dev, member.ino))
            # Of a link the file is what it was closed as, whatever its times; a copy may be of an earlier version.
            is_that = rel not in candidate.copied or (closing and closing.version == version_of(member))
            if closing is not None and is_that and not closing.is_coming:
                closing.is_settled = True

    def kept(self, seen: Sighting) -> None:
        """There is an exact copy of a version."""
        assert seen.version is not None
        self._candidates.glance()
        closings, copy = self._coming.pop(seen.version, []), Path(seen.hold)
        for closing in closings:
            closing.is_coming = False
        if closings:
            closings[-1].version = seen.now or seen.version
            self._give(closings[-1], copy)
        self._candidates.view.drop(str(copy))

    def not_kept(self, seen: Sighting) -> None:
        """No copy of a version could be made."""
        assert seen.version is not None
        waiting = self._coming.get(seen.version, [])
        closing = waiting.pop(0) if waiting else None
        if closing is None or waiting:
            return  # another copy of the same is coming, or has come
        del self._coming[seen.version]
        closing.is_coming = False
        self._candidates.glance()
        if self._owner(closing) is None:
            self._lose(closing)

    def is_fragment(self, candidate: Candidate) -> bool:
        """Whether what was written over was no version by itself: cut short, or the beginning of what is there now."""
        return any(
            self._candidates.is_cut_short(member) or begins(candidate.path_of(rel), candidate.found.path)
            for rel, member in candidate.members.items()
        )

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Forget files that are not there any more."""
        for inode, closing in list(self._last.items()):
            if not closing.is_coming and is_gone(closing.path):
                del self._last[inode]

    def forget_copies(self) -> None:
        """The sentry has died: no copy is coming any more."""
        for closings in self._coming.values():
            for closing in closings:
                closing.is_coming = False
        self._coming.clear()

    def _give(self, closing: _Closing, copy: Path) -> None:
        owner, now = self._owner(closing), self._candidates.file_at(closing.path)
        if owner is not None:
            closing.is_settled = owner[0].give(owner[1], copy)
        elif now is not None and now.found.inode == closing.version[:2]:  # under its name there is a later one already
            dev, ino, size_bytes, mtime_ns = closing.version
            mode = copy.stat(follow_symlinks=False).st_mode
            member = Member(stat.S_IFMT(mode), dev, ino, size_bytes, mtime_ns, mode)
            found = Found(now.name, closing.path, FILE, {os.path.basename(closing.path): member}, (dev, ino))
            closing.is_settled = self._candidates.watch_copy(found, member, copy)

    def _owner(self, closing: _Closing) -> tuple[Candidate, str] | None:
        """The candidate of which a version of a file is a part, and the file's path in it."""
        for candidate in self._candidates.watched:
            rel = candidate.rel_of(closing.path)
            if rel is not None and version_of(candidate.members[rel]) == closing.version:
                return candidate, rel
        return None

    def _lose(self, closing: _Closing) -> None:
        """A version is gone: a checkpoint is lost, if the file is one by itself and was not known to be cut short."""
        if closing.is_settled or closing.is_coming:
            return
        closing.is_settled = True
        if self._candidates.name_at(closing.path) is None:
            self._candidates.glance()
        name, candidate = self._candidates.name_at(closing.path), self._candidates.file_at(closing.path)
        files = candidate.files if candidate is not None else ()
        is_fragment = any(self._candidates.is_cut_short(m) for m in files if version_of(m) == closing.version)
        if name is not None and not is_fragment:
            self._lost.append(Lost(name, closing.version[2], time.monotonic() - closing.at))


def version_of(member: Member) -> Version:
    """A member's content, as the sentry names it."""
    return member.dev, member.ino, member.size_bytes, member.mtime_ns
