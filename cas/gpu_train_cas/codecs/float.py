"""Codec FLOAT: elements on their own, as symbols of the kernel (mode 1) or as byte planes (mode 0).

The kernel knows that the exponents of a tensor take few values and takes the mantissas for noise. Where a sample
of them is no noise (numbers that were cast up, counters, constants), planes serve better.
"""

from __future__ import annotations

from typing import TypedDict

from gpu_train_cas.codecs import kernel, planes
from gpu_train_cas.codecs.codec import Codec, Grid, Reference, Role
from gpu_train_cas.codecs.payload import ELEMENTS, FLOAT, MODE_KERNEL, rows_of, width_of
from gpu_train_cas.codecs.sample import estimate, mantissas_are_noise, pieces
from gpu_train_cas.errors import Damaged

SIBLING_PAYS = 0.99
"""A sibling must save 1 %: a block that needs another to be read is worth less."""
GRID_COSTS = 64
"""A grid is used where its bytes, one for each row and column, are at most such a part of the block."""


class Float:
    """The entrant for elements on their own, by their rows and columns, or with a sibling's contexts."""

    codec = Codec.FLOAT

    def __init__(self, sibling: Reference | None = None, grid: Grid | None = None) -> None:
        self._sibling, self._grid = sibling, grid

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | memoryview | None:
        """What the kernel or planes make of it; None after a delta, which has been weighed against this."""
        element = ELEMENTS.get(dtype)
        if element is None or limit < len(block):
            return None
        for_kernel = bool(element & FLOAT or width_of(element) == 1) and kernel.writes()
        contexts = contexts_of(block, element, self._sibling, self._grid) if for_kernel else Contexts()
        if not for_kernel or not (kernel.outruns_planes() or contexts):
            return planes.encode(block, dtype, limit)
        shortest = None
        if not mantissas_are_noise(block, element):
            shortest = planes.encode(block, dtype, limit)
            limit = len(shortest) if shortest is not None else limit
        made = kernel.encode(block, element, limit, tokens=False, **contexts)
        return made if made is not None else shortest

    def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
        """See `Entrant.decode`."""
        return decode(payload, length, self._sibling.data if self._sibling is not None else None)


class Contexts(TypedDict, total=False):
    """Arguments of `kernel.encode` that say where contexts come from; empty for none."""

    sibling: bytes | memoryview
    sibling_digest: bytes
    grid: tuple[int, int]


def contexts_of(block: bytes | memoryview, element: int, sibling: Reference | None, grid: Grid | None) -> Contexts:
    """What helps a block on its own: its grid, which needs no other block; else a sibling, when a sample says so."""
    if grid is not None and grid.is_moment:
        count = len(block) // width_of(element)
        if GRID_COSTS * (grid.row + rows_of(count, grid.row, grid.first)) <= len(block):
            return Contexts(grid=(grid.row, grid.first))
    if sibling is None or sibling.role is not Role.SIZES or len(sibling.data) != len(block):
        return Contexts()
    alone = estimate(block, element, tokens=False)
    if estimate(block, element, tokens=False, sibling=sibling.data) > SIBLING_PAYS * alone:
        return Contexts()
    return Contexts(sibling=sibling.data, sibling_digest=sibling.digest)


def expected(block: bytes | memoryview, element: int, dtype: str, contexts: Contexts) -> float:
    """About how many bytes a block takes on its own."""
    if not contexts and not mantissas_are_noise(block, element):
        piece = memoryview(pieces(block))
        made = planes.encode(piece, dtype, len(piece))
        return len(block) * (len(made) / len(piece) if made is not None else 1.0)
    sibling, grid = contexts.get("sibling"), contexts.get("grid")
    return estimate(block, element, tokens=False, sibling=sibling, grid=grid)


def decode(payload: bytes | memoryview, length: int, sibling: bytes | memoryview | None) -> bytes | memoryview:
    """The block of a payload of either mode.

    Raises:
        Damaged: as `Entrant.decode`, and for other modes.
    """
    if len(payload) and payload[0] == MODE_KERNEL:
        return kernel.decode(payload, length, sibling=sibling)
    if len(payload) and payload[0] != planes.MODE_PLANES:
        raise Damaged(f"float payload of mode {payload[0]}: damaged or of a newer gpu-train")
    return planes.decode(payload, length)
