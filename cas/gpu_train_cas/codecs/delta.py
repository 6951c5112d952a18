"""Codec DELTA: elements as differences from those of a base block of the same length (cas/spec/codecs.md, Delta)."""

from __future__ import annotations

from gpu_train_cas.codecs import kernel
from gpu_train_cas.codecs.codec import Codec, Reference
from gpu_train_cas.codecs.payload import ELEMENTS, FLOAT
from gpu_train_cas.codecs.sample import estimate

SAVES = 0.97
"""A delta must be that much shorter than the block on its own, by a sample: reading it means reading two blocks."""
SIBLING_PAYS = 0.99


class Delta:
    """The entrant for a block whose tensor's earlier state is stored.

    The base must not itself be a delta: the caller sees to it (cas/spec/codecs.md, Delta).
    """

    codec = Codec.DELTA

    def __init__(self, base: Reference, sibling: Reference | None = None) -> None:
        self._base, self._sibling = base, sibling

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | memoryview | None:
        """The differences, or None where a sample says that the block is better off without a base."""
        element = ELEMENTS.get(dtype)
        base = self._base.data
        if element is None or len(base) != len(block) or not kernel.writes():
            return None
        sibling = self._sibling
        if sibling is not None and (len(sibling.data) != len(block) or not element & FLOAT):
            sibling = None
        expected = estimate(block, element, tokens=True, base=base)
        best = limit / SAVES
        if element & FLOAT:
            best = estimate(block, element, tokens=False, sibling=sibling.data if sibling is not None else None)
        if sibling is not None:
            both = estimate(block, element, tokens=True, base=base, sibling=sibling.data)
            sibling, expected = (sibling, both) if both <= SIBLING_PAYS * expected else (None, expected)
        if expected > SAVES * best:
            return None
        return kernel.encode(
            block, element, limit, tokens=True, base=base, sibling=sibling.data if sibling is not None else None,
            sibling_digest=sibling.digest if sibling is not None else None,
        )  # fmt: skip

    def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
        """See `Entrant.decode`."""
        sibling = self._sibling.data if self._sibling is not None else None
        return kernel.decode(payload, length, base=self._base.data, sibling=sibling)
