"""How a file becomes another one that lacks a part of it, at the same offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    """What is taken out of a file and what comes at its end.

    Attributes:
        keys: what is left out, in the words of the container.
        holes: the ranges (start, end) that hold nothing any more, in order.
        kept_bytes: how much of the old file the new one begins with.
        tail: what follows.
    """

    keys: Sequence[str]
    holes: Sequence[tuple[int, int]]
    kept_bytes: int
    tail: bytes = b""
