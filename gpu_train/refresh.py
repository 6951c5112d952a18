"""When a class of tensors is stored afresh: the cost rule of deltas (cas/spec/deltas.md, Refresh).

Deltas get larger the farther they lie from their base, and a base stored afresh costs once what its
deltas then save. Each level of a chain is such a base for the level above. A base has served its time when the
next delta against it would cost more than the average of all that was stored since it, itself included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL_COST = 0.01
"""What one more delta to decode must save, as a share of the original bytes."""

GROWTH = 0.03
"""How much larger deltas are taken to get with each step of distance, as a share of the first, until it is seen."""

SLACK = 1.02
"""How far above the average the next delta may be: runs are short, and what a fresh base saves comes late."""

STANDALONE = -1
"""The answer "no base at all"."""


class Spent(NamedTuple):
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
        expected = _at(curve, len(history) - start)
        if _cycle(expected, since) <= SLACK * average and expected + LEVEL_COST <= _one_less(history, curve, depth):
            return depth
    return STANDALONE


def _one_less(history: Sequence[Spent], curve: Mapping[int, float], depth: int) -> float:
    """What the next checkpoint would cost against the base below that one, or with none; infinite if not known."""
    below = _latest(history, depth - 1)
    if depth == 0:
        return next((spent.ratio for spent in reversed(history) if spent.depth == 0), math.inf)
    return math.inf if below is None else _at(curve, len(history) - below)


def _latest(history: Sequence[Spent], depth: int) -> int | None:
    """The place of the last checkpoint of at most that depth."""
    return next((i for i in range(len(history) - 1, -1, -1) if history[i].depth <= depth), None)


def _cycle(expected: float, since: Sequence[Spent]) -> float:
    """The average cost of the next delta against the first of `since` and of those that will follow upon it.

    What follows is taken to be as what followed upon the last one.
    """
    children = [i for i, spent in enumerate(since) if i and spent.depth == since[0].depth + 1]
    follow = [spent.ratio for spent in since[children[-1] + 1 :]] if children else []
    return (expected + sum(follow)) / (1 + len(follow))


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
    slope = GROWTH * curve[last]
    if len(below) > 1:
        slope = max(0.0, (curve[last] - curve[below[-2]]) / (last - below[-2]))
    return curve[last] + slope * (distance - last)
