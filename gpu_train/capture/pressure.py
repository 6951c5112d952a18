"""When pins hold too much: storing hurries, and what is worth least is given up, by name and never in silence.

A pin takes room once the trainer has deleted its own name, so only such pins matter. There are two limits: the bound
`capture.max_pin_bytes` on all that they hold, and what the trainer needs for its next save (`headroom`). The second
one has no exception: a training that fails for want of room is worse than a checkpoint that was deleted anyway.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_train.capture.candidate import Candidate
from gpu_train.capture.foresight import STORAGE, OnEvent
from gpu_train.capture.headroom import Headroom, Shortage, free_bytes_at
from gpu_train.capture.pins import Holdings, bound_bytes, places_of
from gpu_train.home import Home
from gpu_train.size import AUTO, Size, bytes_of, size_text

HURRY_SHARE = 0.5
"""Of the bound: from there on storing hurries."""

SETTLE_S = 0.5
"""How long a disk is given to show what was freed, before more is given up for its sake."""

REST = 10
"""Pins are not counted again before so many times the seconds that it took."""

LEFTOVERS_S = 30.0
"""How often pins are counted although what is in hand is too little to matter."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A checkpoint that is pinned and not stored yet.

    Attributes:
        candidate: the checkpoint.
        is_whole: whether it is provably one.
        is_at_work: whether it is being stored this moment.
    """

    candidate: Candidate
    is_whole: bool
    is_at_work: bool = False


@dataclass(frozen=True, slots=True)
class Surrender:
    """A checkpoint that is to be given up, and why."""

    candidate: Candidate
    reason: str


class Pressure:
    """Watches what one job's pins hold. Used by one thread.

    Attributes:
        is_high: whether storing should hurry.
    """

    def __init__(self, home: Home, job_id: str, headroom: Headroom, bound: Size, event: OnEvent) -> None:
        self._home = home
        self._job_id = job_id
        self._headroom = headroom
        self._bound = bound
        self._event = event
        self._next = self._rested = 0.0
        self._freed = 0.0
        self._is_over = False
        self.is_high = False

    def relieve(self, pinned: Sequence[Pinned]) -> list[Surrender]:
        """What has to be given up now, of all that is pinned, in the order in which it came."""
        now = time.monotonic()
        if now < self._rested:
            return []
        if now < self._next and not self._may_matter(pinned):
            self.is_high = self._is_over = False
            return []
        self._next = now + LEFTOVERS_S
        places = places_of(self._home, self._job_id)
        holdings = Holdings(places)
        self._rested = now + REST * (time.monotonic() - now)
        bound = bound_bytes(self._bound, holdings, places, self._headroom.save_bytes)
        held = holdings.held_bytes()
        self.is_high = held > bound * HURRY_SHARE
        made = self._for_bound(pinned, holdings, bound)
        for place in places if now - self._freed >= SETTLE_S else ():
            short = self._headroom.squeeze(place)
            if short is not None:
                self.is_high = self.is_high or held > 0
                left = [one for one in pinned if all(one.candidate is not m.candidate for m in made)]
                made += self._for_trainer(left, holdings, short)
        if made:
            self._freed = now
        return made

    def _may_matter(self, pinned: Iterable[Pinned]) -> bool:
        """Whether what is in hand could be too much, if the trainer had deleted all of it."""
        most = sum(one.candidate.size_bytes for one in pinned)
        if not most:
            return False
        said = bytes_of(self._bound)
        places = {one.candidate.pin.parent for one in pinned}
        if said is None:  # without what the pins hold themselves the bound would be larger
            said = min((free_bytes_at(place) or 0 for place in places), default=0) // 2
        return most > said * HURRY_SHARE or any(self._headroom.squeeze(place) for place in places)

    def _for_bound(self, pinned: Sequence[Pinned], holdings: Holdings, bound: int) -> list[Surrender]:
        """What goes since pins hold more than they may. What is being stored will be free in a moment."""
        held = holdings.held_bytes()
        if held <= bound:
            self._is_over = False
            return []
        if not self._is_over:
            self._event(
                STORAGE, f"pins hold {size_text(held)} of checkpoints that the trainer has deleted and that are not "
                f"stored yet, more than {self._limit(bound)}; storing hurries, and what is given up is entered as gone",
                held_bytes=held, max_pin_bytes=bound, is_paused=False,
            )  # fmt: skip
        self._is_over = True
        made = []
        for one in by_worth(pinned):
            size_bytes = holdings.held_by(one.candidate.pin)
            if held > bound and size_bytes and not one.is_at_work:
                reason = f"pins held {size_text(held)}, more than {self._limit(bound)}"
                made.append(Surrender(one.candidate, reason))
                held -= size_bytes
        return made

    def _limit(self, bound: int) -> str:
        of_what = ", half of what is free without them" if self._bound == AUTO else ""
        return f"capture.max_pin_bytes ({size_text(bound)}{of_what})"

    def _for_trainer(self, pinned: Sequence[Pinned], holdings: Holdings, short: Shortage) -> list[Surrender]:
        """What goes since the trainer needs its room; what is being stored comes last, as it may be through soon."""
        missing = short.missing_bytes
        made = []
        for one in sorted(by_worth(pinned), key=lambda one: one.is_at_work):
            size_bytes = holdings.held_by(one.candidate.pin, short.device)
            if missing > 0 and size_bytes:
                reason = (
                    f"the disk with {short.path} had {size_text(short.free_bytes)} free, and the trainer's next save "
                    f"needs {size_text(short.kept_bytes)} (capture.reserve_bytes)"
                )
                made.append(Surrender(one.candidate, reason))
                missing -= size_bytes
        return made


def by_worth(pinned: Sequence[Pinned]) -> list[Pinned]:
    """What is worth least first: what is not provably a checkpoint, then versions that a later one of their name
    follows, then whole ones, of each kind the oldest first. The newest whole one is the last.
    """
    newest = max((at for at, one in enumerate(pinned) if one.is_whole), default=-1)
    last = {one.candidate.name: at for at, one in enumerate(pinned) if one.is_whole}

    def worth(at: int) -> tuple[int, int]:
        one = pinned[at]
        if not one.is_whole:
            return 0, at
        if last[one.candidate.name] != at:
            return 1, at
        return (2 if at != newest else 3), at

    return [pinned[at] for at in sorted(range(len(pinned)), key=worth)]
