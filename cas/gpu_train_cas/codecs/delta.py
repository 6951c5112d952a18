"""Codec DELTA: elements as differences from those of a base block of the same length (cas/spec/codecs.md, Delta).

A sibling may help: with contexts, or by turning the base into a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from gpu_train_cas.codecs import kernel
from gpu_train_cas.codecs.codec import Codec, Grid, Reference, Role
from gpu_train_cas.codecs.float import SIBLING_PAYS, Contexts, contexts_of, expected
from gpu_train_cas.codecs.payload import ELEMENTS, FLOAT, LINE, PREDICTED_ELEMENT, SQUARE, width_of
from gpu_train_cas.codecs.sample import estimate

SAVES = 0.97
"""A delta must be that much shorter than the block on its own, by a sample: reading it means reading two blocks."""

PREDICTS: Mapping[Role, int] = {Role.EARLIER: LINE, Role.FIRST_MOMENT: SQUARE}
"""What a sibling makes of a base."""


ROW_LEAST = 128
"""A row of that many elements has coefficients of its own: they cost it a byte or two."""


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
        length = estimate(block, element, tokens=True, base=base)
        aid = self._aid(block, element)
        if aid:
            helped = estimate(
                block, element, tokens=True, base=base, sibling=aid["sibling"], prediction=aid["prediction"]
            )
            aid = self._aid(block, element, by_rows=True) if helped <= SIBLING_PAYS * length else Aid()
            length = min(length, helped)
        alone = contexts_of(block, element, self._sibling, self._grid) if element & FLOAT else Contexts()
        if length > SAVES * expected(block, element, dtype, alone):
            return None
        return kernel.encode(block, element, limit, tokens=True, base=base, **aid)

    def _aid(self, block: bytes | memoryview, element: int, *, by_rows: bool = False) -> Aid:
        """What the sibling could do for the block; empty for nothing. Predictions for pieces are not by rows."""
        sibling = self._sibling
        if sibling is None or len(sibling.data) != len(block) or not element & FLOAT:
            return Aid()
        prediction = None
        if sibling.role is not Role.SIZES:
            if element == PREDICTED_ELEMENT:
                rows = self._rows(len(block)) if by_rows else None
                prediction = kernel.fit(PREDICTS[sibling.role], block, self._base.data, sibling.data, rows)
            if prediction is None:
                return Aid()
        return Aid(sibling=sibling.data, sibling_digest=sibling.digest, prediction=prediction)

    def _rows(self, length: int) -> tuple[int, int] | None:
        """Rows for coefficients, where they are long enough to pay for their bytes, and shorter than the block."""
        grid = self._grid
        if grid is None or not ROW_LEAST <= grid.row <= length // 2 // width_of(PREDICTED_ELEMENT):
            return None
        return grid.row, grid.first

    def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
        """See `Entrant.decode`."""
        sibling = self._sibling.data if self._sibling is not None else None
        return kernel.decode(payload, length, base=self._base.data, sibling=sibling)


class Aid(TypedDict, total=False):
    """Arguments of `kernel.encode` that a sibling gives; empty for none."""

    sibling: bytes | memoryview
    sibling_digest: bytes
    prediction: bytes | None
