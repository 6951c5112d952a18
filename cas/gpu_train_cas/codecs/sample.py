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
FIXED_BYTES = HEADER_BYTES + 2 * STATE_BYTES
"""What a payload has whatever the block's length: not to be scaled up with a sample."""


def _pieces(data: Buffer) -> bytes:
    """Evenly spread pieces, cut at multiples of 16 bytes so that all elements stay whole."""
    view = memoryview(data)
    step = (len(view) - PIECE_BYTES) // (PIECES - 1) // 16 * 16
    return b"".join(view[i * step : i * step + PIECE_BYTES] for i in range(PIECES))


def estimate(
    block: Buffer, element: int, *, tokens: bool, base: Buffer | None = None, sibling: Buffer | None = None
) -> float:
    """About how many bytes the kernel's payload will have, from a sample of 32 KiB."""
    whole = len(block)
    if whole > 2 * SAMPLE_BYTES:
        block = _pieces(block)
        base = _pieces(base) if base is not None else None
        sibling = _pieces(sibling) if sibling is not None else None
    digest = bytes(32) if sibling is not None else None
    made = kernel.encode(
        block, element, 2 * len(block), tokens=tokens, base=base, sibling=sibling, sibling_digest=digest
    )
    if made is None:
        return float(whole)
    fixed = FIXED_BYTES + int.from_bytes(made[6:8], "little")  # and the tables
    return fixed + (len(made) - fixed) * whole / len(block)


def mantissas_are_noise(block: Buffer, element: int) -> bool:
    """Whether the bytes below the exponent, of a sample, do not get shorter as zstd."""
    width = width_of(element)
    if not element & FLOAT or width == 1:
        return width == 1
    if len(block) > 2 * SAMPLE_BYTES:
        block = _pieces(block)
    words = np.frombuffer(block, f"<u{width}", len(block) // width)
    planes = (words << 1 | words >> (8 * width - 1)).view(np.uint8).reshape(-1, width)
    return all(_is_noise(planes[:, index]) for index in range(width - 1))


def _is_noise(plane: NDArray[np.uint8]) -> bool:
    return zstd.squeeze_skewed(np.ascontiguousarray(plane).data, len(plane)) is None
