"""Encode and decode: entrants propose payloads, the smallest that decodes back to the block wins."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from gpu_train_cas.codecs import elements, kernel, planes, raw, zstd
from gpu_train_cas.codecs.codec import Codec, Encoded, Entrant, Grid, Reference
from gpu_train_cas.codecs.payload import ELEMENTS, sibling_of
from gpu_train_cas.errors import Damaged

_log = logging.getLogger(__name__)
_ZSTD, _OBJECT_ZSTD = zstd.Zstd(), zstd.Zstd(sampled=False)
_PLANES, _CONSTANT = planes.Planes(), planes.Constant()


def encode(
    block: bytes | memoryview, dtype: str = "", *, base: Reference | None = None, sibling: Reference | None = None,
    grid: Grid | None = None, entrants: Iterable[Entrant] | None = None,
) -> Encoded:  # fmt: skip
    """The block as the smallest payload that any entrant offers; the block itself when none is smaller.

    A payload that does not decode back to the block is refused and logged, so that a fault in a codec
    costs space and never data. The payload of RAW is `block` itself, not a copy.

    Args:
        block: any bytes; a memoryview must be contiguous and of format "B".
        dtype: the element type (see formats.ITEM_BYTES) where the block starts at an element of a tensor.
        base: the same place of the tensor's earlier state; how deep deltas may lie is the caller's affair
            (cas/spec/deltas.md). Used when it helps.
        sibling: the same place of another tensor or state, and what that is to the block. Used when it helps.
        grid: where the block lies in its tensor.
        entrants: who takes part, in order, in place of those that suit the block; each is told the best length so far.
    """
    if entrants is None:
        entrants = _entrants(dtype, base, sibling, grid)
    proposals: list[tuple[int, Entrant, bytes | memoryview]] = []
    limit = len(block)
    for entrant in entrants:
        try:
            payload = entrant.propose(block, dtype, limit)
        except Damaged:
            _complain(entrant.codec, block, dtype)
            continue
        if payload is not None and len(payload) < limit:
            limit = len(payload)
            proposals.append((limit, entrant, payload))
    for _, entrant, payload in reversed(proposals):  # each is shorter than the one before it
        if entrant.proves or _decodes_to(entrant, payload, block):
            delta = base.digest if base is not None and entrant.codec is Codec.DELTA else None
            return Encoded(entrant.codec, payload, delta, _sibling_of(entrant.codec, payload))
        _complain(entrant.codec, block, dtype)
    return Encoded(Codec.RAW, block)


def _complain(codec: Codec, block: bytes | memoryview, dtype: str) -> None:
    _log.error(
        "codec %s did not give a block of %d bytes (%s) back; stored another way; please report it",
        codec.name, len(block), dtype or "opaque",
    )  # fmt: skip


def _entrants(dtype: str, base: Reference | None, sibling: Reference | None, grid: Grid | None) -> Iterator[Entrant]:
    """Who takes part. What the first one's samples show decides on the others, who are asked after it."""
    if dtype not in ELEMENTS:
        yield _ZSTD
        return
    first = elements.Elements(base, sibling, grid)
    yield first
    if first.constant:
        yield _CONSTANT
    elif first.regular:
        yield _PLANES
    if first.repeats:
        yield _ZSTD


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
    # startswith, because == between a memoryview and anything compares one byte after another
    same = decoded if isinstance(decoded, bytes) else bytes(decoded)
    return len(same) == len(block) and same.startswith(block)


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
            return elements.decode(payload, length, sibling)
        case Codec.DELTA:
            if base is None:
                raise Damaged("a delta cannot be decoded without its base")
            return kernel.decode(payload, length, base=base, sibling=sibling)
    raise Damaged(f"codec {codec} is not known: the frame is damaged or was written by a newer gpu-train")
