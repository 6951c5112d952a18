"""What a few pieces of a block say about the whole: how long it will be, whether its mantissas are noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_train_cas.codecs import kernel, zstd
from gpu_train_cas.codecs.payload import FLOAT, HEADER_BYTES, STATE_BYTES, width_of

Buffer = bytes | bytearray | memoryview

PIECES = 4
PIECE_BYTES = 8 << 10
SAMPLE_BYTES = PIECES * PIECE_BYTES
GRID_BYTES = 64 << 10
FIXED_BYTES = HEADER_BYTES + 2 * STATE_BYTES
"""What a payload has whatever the block's length: not to be scaled up with a sample."""


def pieces(data: Buffer) -> Buffer:
    """Evenly spread pieces, cut at multiples of 16 bytes so that all elements stay whole; short data as it is."""
    if len(data) <= 2 * SAMPLE_BYTES:
        return data
    view = memoryview(data)
    step = (len(view) - PIECE_BYTES) // (PIECES - 1) // 16 * 16
    return b"".join(view[i * step : i * step + PIECE_BYTES] for i in range(PIECES))


def estimate(
    block: Buffer, element: int, *, tokens: bool, base: Buffer | None = None, sibling: Buffer | None = None,
    prediction: bytes | None = None, grid: tuple[int, int] | None = None,
) -> float:  # fmt: skip
    """About how many bytes the kernel's payload will have, from 32 KiB in pieces; for a grid, 64 KiB in one."""
    whole = len(block)
    if grid is not None:
        block, grid = _middle(block, width_of(element), grid)
    else:
        block = pieces(block)
        base = pieces(base) if base is not None else None
        sibling = pieces(sibling) if sibling is not None else None
    digest = bytes(32) if sibling is not None else None
    made = kernel.encode(
        block, element, 2 * len(block), tokens=tokens, base=base, sibling=sibling, sibling_digest=digest,
        prediction=prediction, grid=grid,
    )  # fmt: skip
    if made is None:
        return float(whole)
    fixed = FIXED_BYTES + int.from_bytes(made[6:8], "little")  # and the tables
    fixed += grid[0] if grid is not None else 0  # and a byte for each column
    return fixed + (len(made) - fixed) * whole / len(block)


def _middle(block: Buffer, width: int, grid: tuple[int, int]) -> tuple[memoryview, tuple[int, int]]:
    """The middle of a block, and its grid."""
    view, (row, first) = memoryview(block), grid
    start = max(0, len(view) - GRID_BYTES) // 2 // 16 * 16
    return view[start : start + GRID_BYTES], (row, (first + start // width) % row)


def mantissas_are_noise(block: Buffer, element: int) -> bool:
    """Whether the bytes below the exponent, of a sample, do not get shorter as zstd."""
    width = width_of(element)
    if not element & FLOAT or width == 1:
        return width == 1
    block = pieces(block)
    words = np.frombuffer(block, f"<u{width}", len(block) // width)
    planes = (words << 1 | words >> (8 * width - 1)).view(np.uint8).reshape(-1, width)
    return all(_is_noise(planes[:, index]) for index in range(width - 1))


def _is_noise(plane: NDArray[np.uint8]) -> bool:
    return zstd.squeeze_skewed(np.ascontiguousarray(plane).data, len(plane)) is None
