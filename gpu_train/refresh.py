"""When a class of tensors is stored afresh: the cost rule of deltas (cas/spec/deltas.md, Refresh).

Deltas get larger the farther they lie from their base, and a base stored afresh costs once what its
deltas then save. Each level of a chain is such a base for the level above. A base has served its time when the
next delta against it would cost more than the average of all that was stored since it, itself included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEVEL_COST = 0.01
"""What one more delta to decode is worth, as a share of the original bytes: a level that saves less is left out."""

STANDALONE = -1
"""The answer "no base at all"."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What one checkpoint's tensors of one class took.

    Attributes:
        ratio: stored bytes by original bytes.
        depth: deltas down to what stands alone; 0 when they stand alone themselves.
    """

    ratio: float
    depth: int


def deepest_base(history: Sequence[Spent], most: int) -> int:
    """How many deltas may lie below the bases of the next checkpoint, at most `most`; or STANDALONE.

    `history` are the checkpoints before it, oldest first.
    """
    if not history:
        return most
    curve = _curve(history)
    for depth in range(min(most, history[-1].depth), -1, -1):
        start = _latest(history, depth)
        if start is None:
            continue
        since = history[start:]
        average = sum(spent.ratio for spent in since) / len(since)
        if _next_cycle(curve, since, len(history) - start) <= average:
            return depth
    return STANDALONE


def _latest(history: Sequence[Spent], depth: int) -> int | None:
    """The place of the last checkpoint of at most that depth."""
    return next((i for i in range(len(history) - 1, -1, -1) if history[i].depth <= depth), None)


def _next_cycle(curve: Mapping[int, float], since: Sequence[Spent], distance: int) -> float:
    """The average cost of the next delta against the first of `since` and of those that will follow upon it.

    What follows is taken to be as what followed upon the last one.
    """
    children = [i for i, spent in enumerate(since) if i and spent.depth == since[0].depth + 1]
    first = _at(curve, distance)
    if not children:
        return first
    follow = [spent.ratio for spent in since[children[-1] + 1 :]]
    return (first + sum(follow)) / (1 + len(follow))


def _curve(history: Sequence[Spent]) -> dict[int, float]:
    """Distance to the base, in checkpoints -> the ratio last seen there."""
    curve: dict[int, float] = {}
    for at, spent in enumerate(history):
        base = _latest(history[:at], spent.depth - 1) if spent.depth else None
        if base is not None:
            curve[at - base] = spent.ratio
    return curve


def _at(curve: Mapping[int, float], distance: int) -> float:
    """The ratio to expect at a distance: as seen there, or by the line through the two nearest seen below."""
    below = sorted(d for d in curve if d <= distance)
    if not below:
        return min(curve.values(), default=0.0)
    last = below[-1]
    if last == distance or len(below) == 1:
        return curve[last]
    before = below[-2]
    slope = max(0.0, (curve[last] - curve[before]) / (last - before))
    return curve[last] + slope * (distance - last)
