"""How far a delta may lie from a block that stands alone (cas/spec/deltas.md, Depth)."""

from __future__ import annotations

from gpu_train_cas.digest import Digest
from gpu_train_cas.index import Index
from gpu_train_cas.registry import Txn

MAX_DEPTH = 4
"""Deltas between a block and one that needs no base, at most; see docs/decisions/0007-deltas.md."""


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


def base_within(txn: Txn, index: Index, candidate: Digest, depth: int) -> tuple[Digest, int] | None:
    """The candidate, or the first block down its chain below which there are at most `depth` deltas; and how many."""
    chain = chain_of(txn, index, candidate)
    if chain is None or depth < 0:
        return None
    at = max(0, len(chain) - 1 - depth)
    return chain[at], len(chain) - 1 - at


def can_lean_on(txn: Txn, index: Index, sibling: Digest) -> bool:
    """Whether a stored block may be another's sibling: it has none of its own, nor has any of its bases."""
    chain = chain_of(txn, index, sibling)
    if chain is None:
        return False
    found = (index.get(txn, digest) for digest in chain)
    return all(location is not None and location.sibling is None for location in found)
