"""Codec DELTA: elements as differences from those of a base block of the same length (cas/spec/codecs.md, Delta)."""

from __future__ import annotations

from gpu_train_cas.codecs import kernel
from gpu_train_cas.codecs.codec import Codec, Grid, Reference
from gpu_train_cas.codecs.float import SIBLING_PAYS, Contexts, contexts_of, expected
from gpu_train_cas.codecs.payload import ELEMENTS, FLOAT
from gpu_train_cas.codecs.sample import estimate

SAVES = 0.97
"""A delta must be that much shorter than the block on its own, by a sample: reading it means reading two blocks."""


class Delta:
    """The entrant for a block whose tensor's earlier state is stored.

    How deep deltas may lie on each other is the caller's affair (cas/spec/deltas.md).
    """

    codec = Codec.DELTA

    def __init__(self, base: Reference, sibling: Reference | None = None, grid: Grid | None = None) -> None:
        self._base, self._sibling, self._grid = base, sibling, grid

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | memoryview | None:
        """The differences, or None where a sample says that the block is better off without a base."""
        element = ELEMENTS.get(dtype)
        base = self._base.data
        if element is None or len(base) != len(block) or not kernel.writes():
            return None
        sibling = self._sibling
        if sibling is not None and (len(sibling.data) != len(block) or not element & FLOAT):
            sibling = None
        length = estimate(block, element, tokens=True, base=base)
        alone = contexts_of(block, element, sibling, self._grid) if element & FLOAT else Contexts()
        if length > SAVES * expected(block, element, dtype, alone):
            return None
        if sibling is not None:
            both = estimate(block, element, tokens=True, base=base, sibling=sibling.data)
            sibling = sibling if both <= SIBLING_PAYS * length else None
        return kernel.encode(
            block, element, limit, tokens=True, base=base, sibling=sibling.data if sibling is not None else None,
            sibling_digest=sibling.digest if sibling is not None else None,
        )  # fmt: skip

    def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
        """See `Entrant.decode`."""
        sibling = self._sibling.data if self._sibling is not None else None
        return kernel.decode(payload, length, base=self._base.data, sibling=sibling)
