"""What a job's checkpoints of one kind have in common, learned as they are finished.

`checkpoint-100` and `checkpoint-200` are of one kind. What all whole ones of a kind had, the next one will have: as
many ranks' files, an optimizer. One that lacks some of it is given more time, not refused: a script may
well leave something out on purpose.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

MAX_FILES = 20_000
MAX_KINDS = 1000
"""Beyond these nothing is learned: memory must not depend on what a job writes."""

_DIGITS = re.compile(r"[0-9]+")


@dataclass(slots=True)
class _Known:
    """A kind: the name and files of its last whole one, and how many files of each pattern all of them had."""

    name: str
    files: frozenset[str]
    counts: Counter[str]


class Families:
    """The kinds of one job's checkpoints; used by one thread."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._begun: dict[str, float] = {}

    def begin(self, name: str, when: float) -> None:
        """Note that a checkpoint has appeared."""
        if len(self._begun) < MAX_KINDS or kind_of(name) in self._begun:
            self._begun[kind_of(name)] = when

    def is_overtaken(self, name: str, since: float) -> bool:
        """Whether another one of its kind appeared later: trainers write one after the other."""
        return self._begun.get(kind_of(name), since) > since

    def are_akin(self, name: str, other: str) -> bool:
        """Whether two are of one kind."""
        return kind_of(name) == kind_of(other)

    def learn(self, name: str, files: Collection[str]) -> None:
        """Take note of what a whole checkpoint consists of."""
        kind = kind_of(name)
        if len(files) > MAX_FILES or (len(self._known) >= MAX_KINDS and kind not in self._known):
            return
        known, counts = self._known.get(kind), _outline(files)
        if known is not None:
            counts &= known.counts
        self._known[kind] = _Known(name, frozenset(files), counts)

    def knows(self, name: str) -> bool:
        """Whether there was a whole one of this kind."""
        return kind_of(name) in self._known

    def has_all_of_last(self, name: str, files: Collection[str]) -> bool:
        """Whether one has all that the last whole one of its kind had; not if there was none."""
        known = self._known.get(kind_of(name))
        return known is not None and _outline(known.files) <= _outline(files)

    def lacking(self, name: str, files: Collection[str]) -> str:
        """What all whole ones of its kind had and it does not have, in words; empty when there is nothing."""
        known = self._known.get(kind_of(name))
        if known is None:
            return ""
        absent = known.counts - _outline(files)
        if not absent:
            return ""
        earlier = sorted(f for f in known.files - set(files) if kind_of(f) in absent)
        more = absent.total() - 1
        example = earlier[0] if earlier else min(absent)
        return f"{example}, as {known.name} had" + (f", and {more} more" if more > 0 else "")


def kind_of(name: str) -> str:
    """What the names of one kind have in common: the name without its numbers."""
    return _DIGITS.sub("#", name)


def _outline(files: Collection[str]) -> Counter[str]:
    return Counter(map(kind_of, files))
