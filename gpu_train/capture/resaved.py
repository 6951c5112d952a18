"""Folders that are saved again in place: a version whose sign stood and that the next one overtakes is lost.

The bytes of such a folder are those of two versions while the next one is being written, so that nothing of the
earlier one can be kept then. But that it was there is known by its framework's sign.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Protocol

from gpu_train.capture import rules
from gpu_train.capture.candidate import Candidate
from gpu_train.capture.overwritten import Lost
from gpu_train.capture.rules import Rulebook
from gpu_train.capture.watch import sighting
from gpu_train.capture.watch.sighting import Sighting


class CheckpointAt(Protocol):
    """Finds the folder checkpoint in which a path lies."""

    def __call__(self, path: str, *, again: bool) -> tuple[str, Candidate | None] | None:
        """Its folder, and the candidate that it is if it is not decided yet.

        `again`: what came lately is looked at first.
        """


@dataclass(slots=True)
class _Save:
    """What was written in a folder since it was last handed over.

    `signs` are the signs that were written, the last one `at` (monotonic seconds); `is_followed` once something
    else was written after them. `lay_there_ns` is the time of modification of one that was found in a folder which was
    just come upon: events from before that may follow, of what was written before it.
    """

    signs: set[str] = field(default_factory=set)
    at: float = 0.0
    is_followed: bool = False
    lay_there_ns: int | None = None

    def is_before(self, time_ns: int | None) -> bool:
        """Whether the signs stood when something was modified at that time, as far as that is known."""
        return bool(self.signs) and (self.lay_there_ns is None or (time_ns is not None and time_ns > self.lay_there_ns))


class Resaved:
    """The saves of one job's folders that have not been accounted for. Used by one thread."""

    def __init__(self, rulebook: Rulebook, checkpoint_at: CheckpointAt) -> None:
        self._rulebook = rulebook
        self._checkpoint_at = checkpoint_at
        self._saves: dict[str, _Save] = {}
        self._lost: list[Lost] = []

    def lost(self) -> list[Lost]:
        """The versions that were lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def hear(self, seen: Sighting, path: str) -> None:
        """Take in what happened to the name with that path."""
        if seen.kind in (sighting.DELETED, sighting.MOVED):
            self.left(path)
            return
        is_sign = self._may_be_sign(seen.name)
        # One that is found lying there may have been closed before.
        if seen.kind == sighting.CLOSED or (seen.kind == sighting.FILE and (seen.cookie or is_sign)):
            self._written(path, seen, is_sign=is_sign)

    def left(self, folder: str) -> None:
        """A folder was handed over, or has lost its name: what comes there is accounted for anew."""
        self._saves.pop(folder, None)

    def _written(self, path: str, seen: Sighting, *, is_sign: bool) -> None:
        """A file was closed after writing, or got its name."""
        found = self._checkpoint_at(path, again=is_sign)
        if found is None:
            return
        folder, candidate = found
        rel, save = path[len(folder) + 1 :], self._saves.setdefault(folder, _Save())
        if not (is_sign or self._may_be_sign(rel)):
            save.is_followed |= save.is_before(_modified_ns(seen))
            return
        if rel in save.signs and save.is_followed:
            if candidate is not None and self._is_decided_by(candidate, rel):
                self._lost.append(Lost(candidate.name, candidate.size_bytes, seen.at - save.at))
            save.signs.clear()
        save.signs.add(rel)
        save.at, save.is_followed = seen.at, False
        lay_there = seen.kind == sighting.FILE and not seen.cookie
        save.lay_there_ns = _modified_ns(seen) if lay_there else None

    def _may_be_sign(self, rel: str) -> bool:
        """Whether a file is a sign by any rule."""
        return any(rules.is_sign(rule, rel) for rule in self._rulebook.rules)

    def _is_decided_by(self, candidate: Candidate, rel: str) -> bool:
        rule = self._rulebook.rule_for(os.path.basename(candidate.name), candidate.members.keys())
        return rule is not None and rules.is_sign(rule, rel)


def _modified_ns(seen: Sighting) -> int | None:
    """When a file that was seen had been modified; None where that cannot be told."""
    if seen.version is not None:
        return seen.version[3] if seen.version[3] >= 0 else None
    try:
        return os.stat(seen.hold).st_mtime_ns if seen.hold else None
    except OSError:
        return None
