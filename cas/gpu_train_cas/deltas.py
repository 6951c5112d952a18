"""How far a delta may lie from a block that stands alone (cas/spec/deltas.md, Depth)."""

from __future__ import annotations

from typing import NamedTuple

from gpu_train_cas.digest import Digest
from gpu_train_cas.index import Index
from gpu_train_cas.registry import Txn

MAX_DEPTH = 4
"""Deltas between a block and one that needs no base, at most; see docs/decisions/0007-deltas.md."""

MAX_REACH = 15
"""References from a block that another may need, one after another, at most; readers bear twice as many."""


def chain_of(txn: Txn, index: Index, digest: Digest) -> list[Digest] | None:
    """A block, its base, the base's base and so on to the one that has none.

    None when one of them is not usable, or when the chain is longer than a writer makes it.
    """
    chain = [digest]
    if not index.usable(txn, digest):
        return None
    while len(chain) <= 2 * MAX_DEPTH:
        location = index.get(txn, chain[-1])
        if location is None:
            return None
        if location.base is None:
            return chain
        chain.append(location.base)
    return None


class Base(NamedTuple):
    """A stored block to take a delta against.

    Attributes:
        digest: its name.
        depth: deltas down from it to a block without a base.
        earlier: what it is a delta against itself; reading it reads that too.
    """

    digest: Digest
    depth: int
    earlier: Digest | None


def base_within(txn: Txn, index: Index, candidate: Digest, depth: int) -> Base | None:
    """The candidate, or the first block down its chain below which there are at most `depth` deltas."""
    chain = chain_of(txn, index, candidate)
    if chain is None or depth < 0:
        return None
    at = max(0, len(chain) - 1 - depth)
    if not can_lean_on(txn, index, chain[at]):
        return None
    return Base(chain[at], len(chain) - 1 - at, chain[at + 1] if at + 1 < len(chain) else None)


def can_lean_on(txn: Txn, index: Index, digest: Digest) -> bool:
    """Whether decoding a block takes at most MAX_REACH others, one after another, so that one more may need it."""
    level, reach = {digest}, 0
    while level and reach <= MAX_REACH:
        found = (index.get(txn, each) for each in level)
        level = {other for location in found if location is not None for other in location.references}
        reach += 1
    return not level
