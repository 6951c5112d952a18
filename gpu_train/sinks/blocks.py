"""Blocks and objects read from sinks, for a reader that does not find them in the packs of the home."""

from __future__ import annotations

from gpu_train.sinks.holdings import Holdings
from gpu_train_cas.digest import Digest
from gpu_train_cas.framecache import FrameCache
from gpu_train_cas.patience import Ranges
from gpu_train_cas.registry import Registry
from gpu_train_cas.remote import Place, RemoteBlocks


class HeldPlaces:
    """See `Locator`: where a sink has blocks, as this home knows it."""

    def __init__(self, registry: Registry, holdings: Holdings) -> None:
        self._registry = registry
        self._holdings = holdings

    def find(self, digest: Digest) -> Place | None:
        """See `Locator`."""
        with self._registry.read() as txn:
            return self._holdings.find(txn, digest)


def sink_blocks(
    registry: Registry, holdings: Holdings, ranges: Ranges, frames: FrameCache | None = None
) -> RemoteBlocks:
    """The blocks of one sink, as a source of a reader."""
    return RemoteBlocks(HeldPlaces(registry, holdings), ranges, frames)
