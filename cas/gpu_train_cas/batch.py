"""Many things to do in write transactions of a bounded size, however full the disk is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from gpu_train_cas.errors import StorageFull

BATCH = 20_000
"""Blocks tombstoned per write transaction: writers wait no longer than that takes, some tenths of a second."""

SMALL_BATCH = 64
"""What a full disk makes batches shrink to: some hundred pages of the registry, which the reserve has room for."""

_SHRINK = 8
_T = TypeVar("_T")


def batches(items: Iterable[_T], size: int = BATCH) -> Iterator[list[_T]]:
    """The items in lists of at most that many."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch


def by_batches(items: Sequence[_T], do: Callable[[Sequence[_T]], bool]) -> bool:
    """Do all, a batch per call of `do`, until that returns False; whether it never did.

    Where the disk has no room for the pages that a batch changes, smaller ones are tried: pages that a committed
    one has given free serve the next ones. `do` must leave nothing behind when it raises.

    Raises:
        StorageFull: when there is no room for the smallest batch.
    """
    at, size = 0, BATCH
    while at < len(items):
        try:
            if not do(items[at : at + size]):
                return False
        except StorageFull:
            if size <= SMALL_BATCH:
                raise
            size = max(SMALL_BATCH, min(size, len(items) - at) // _SHRINK)
            continue
        at += size
        size = min(BATCH, size * 2)
    return True
