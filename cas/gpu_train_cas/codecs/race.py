"""Encode and decode: entrants propose payloads, the smallest that decodes back to the block wins."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from gpu_train_cas.codecs import kernel, raw, zstd
from gpu_train_cas.codecs.codec import Codec, Encoded, Entrant, Grid, Reference
from gpu_train_cas.codecs.delta import Delta
from gpu_train_cas.codecs.float import Float
from gpu_train_cas.codecs.float import decode as decode_float
from gpu_train_cas.codecs.payload import sibling_of
from gpu_train_cas.errors import Damaged

_log = logging.getLogger(__name__)
_ZSTD, _OBJECT_ZSTD, _FLOAT = zstd.Zstd(), zstd.Zstd(sampled=False), Float()
ENTRANTS: Sequence[Entrant] = (_FLOAT, _ZSTD)
"""In the order in which they are asked; each is told the best length so far."""


def encode(
    block: bytes | memoryview, dtype: str = "", *, base: Reference | None = None, sibling: Reference | None = None,
    grid: Grid | None = None, entrants: Sequence[Entrant] | None = None,
) -> Encoded:  # fmt: skip
    """The block as the smallest payload that any entrant offers; the block itself when none is smaller.

    A payload that does not decode back to the block is refused and logged, so that a fault in a codec
    costs space and never data. The payload of RAW is `block` itself, not a copy.

    Args:
        block: any bytes; a memoryview must be contiguous and of format "B".
        dtype: the element type (see formats.ITEM_BYTES) where the block starts at an element of a tensor.
        base: the same place of the tensor's earlier state; how deep deltas may lie is the caller's affair
            (cas/spec/deltas.md). Used when it helps.
        sibling: the same place of a tensor whose elements tell how large these may be: exp_avg_sq for exp_avg.
        grid: where the block lies in its tensor.
        entrants: who takes part, in order, in place of those that suit the block.
    """
    if entrants is None:
        entrants = _entrants(base, sibling, grid)
    proposals: list[tuple[int, Entrant, bytes | memoryview]] = []
    limit = len(block)
    for entrant in entrants:
        payload = entrant.propose(block, dtype, limit)
        if payload is not None and len(payload) < limit:
            limit = len(payload)
            proposals.append((limit, entrant, payload))
    for _, entrant, payload in reversed(proposals):  # each is shorter than the one before it
        if _decodes_to(entrant, payload, block):
            delta = base.digest if base is not None and entrant.codec is Codec.DELTA else None
            return Encoded(entrant.codec, payload, delta, _sibling_of(entrant.codec, payload))
        _log.error(
            "codec %s did not give a block of %d bytes (%s) back; stored another way; please report it",
            entrant.codec.name, len(block), dtype or "opaque",
        )  # fmt: skip
    return Encoded(Codec.RAW, block)


def _entrants(base: Reference | None, sibling: Reference | None, grid: Grid | None) -> Sequence[Entrant]:
    if base is None and sibling is None and grid is None:
        return ENTRANTS
    found: list[Entrant] = [Float(sibling, grid), _ZSTD]
    return found if base is None else [Delta(base, sibling, grid), *found]


def _sibling_of(codec: Codec, payload: bytes | memoryview) -> bytes | None:
    return sibling_of(payload) if codec in (Codec.FLOAT, Codec.DELTA) else None


def _decodes_to(entrant: Entrant, payload: bytes | memoryview, block: bytes | memoryview) -> bool:
    try:
        decoded = entrant.decode(payload, len(block))
    except MemoryError:
        raise
    except Exception:  # whatever a faulty codec does, the block can still be stored another way
        _log.debug("codec %s failed on its own payload", entrant.codec.name, exc_info=True)
        return False
    if len(decoded) != len(block):
        return False
    # numpy, because == between a memoryview and anything compares one byte after another
    words = len(block) // 8
    return np.array_equal(np.frombuffer(decoded, np.uint64, words), np.frombuffer(block, np.uint64, words)) and bytes(
        decoded[words * 8 :]
    ) == bytes(block[words * 8 :])


def encode_object(data: bytes) -> Encoded:
    """A manifest, tree, record or row as zstd, or raw when that is not smaller."""
    return encode(data, entrants=(_OBJECT_ZSTD,))


def decode(
    codec: int, payload: bytes | memoryview, length: int, *, base: bytes | memoryview | None = None,
    sibling: bytes | memoryview | None = None,
) -> bytes | memoryview:  # fmt: skip
    """The block of `length` bytes that a payload of that codec holds.

    `length` comes from a frame whose header was checked; the payload is trusted in nothing.

    Args:
        base: the block that the frame's header names as its base; needed for DELTA.
        sibling: the block that `sibling_of(payload)` names; needed where it names one.

    Raises:
        Damaged: for a payload that does not decode to exactly `length` bytes, for codecs not known, and where a
            base or sibling is needed and missing or of another length.
    """
    match codec:
        case Codec.RAW:
            return raw.decode(payload, length)
        case Codec.ZSTD:
            return _ZSTD.decode(payload, length)
        case Codec.FLOAT:
            return decode_float(payload, length, sibling)
        case Codec.DELTA:
            if base is None:
                raise Damaged("a delta cannot be decoded without its base")
            return kernel.decode(payload, length, base=base, sibling=sibling)
    raise Damaged(f"codec {codec} is not known: the frame is damaged or was written by a newer gpu-train")
