"""How far a delta may lie from a block that stands alone (cas/spec/deltas.md, Depth)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpu_train_cas.digest import Digest
from gpu_train_cas.index import Index, Location
from gpu_train_cas.registry import Txn

MAX_DEPTH = 4
"""Deltas between a block and one that needs no base, at most; see docs/decisions/0007-deltas.md."""

MAX_REACH = 15
"""References from a block that another may need, one after another, at most; readers bear twice as many."""


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
    """The candidate, or the first block down its chain below which there are at most `depth` deltas.

    None when it is not usable, when the chain is longer than a writer makes it, and when it needs too many others.
    """
    found = index.needed_by(txn, candidate) if depth >= 0 else None
    if found is None:
        return None
    chain = [candidate]
    while (below := found[chain[-1]].base) is not None:
        chain.append(below)
        if len(chain) > 2 * MAX_DEPTH:
            return None
    at = max(0, len(chain) - 1 - depth)
    if not _in_reach(found, chain[at]):
        return None
    return Base(chain[at], len(chain) - 1 - at, chain[at + 1] if at + 1 < len(chain) else None)


def can_lean_on(txn: Txn, index: Index, digest: Digest) -> bool:
    """Whether a block is usable and decoding it takes at most MAX_REACH others, one after another.

    Then one more may need it.
    """
    found = index.needed_by(txn, digest)
    return found is not None and _in_reach(found, digest)


def _in_reach(found: Mapping[Digest, Location], digest: Digest) -> bool:
    level, reach = {digest}, 0
    while level and reach <= MAX_REACH:
        level = {other for each in level for other in found[each].references}
        reach += 1
    return not level
