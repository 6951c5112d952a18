"""The float kernel, in C where it was built and in numpy where not (cas/spec/codecs.md, Kernel payload).

The native kernel has variants for instruction sets and the best that runs here is taken. GPU_TRAIN_KERNEL names
another (numpy, scalar, avx2, avx512); it is read once, here, and nowhere else. All write the same bytes.
numpy is for reading what was written elsewhere: too slow to write with, and not imported where something else serves.
Plain C writes what nothing else can (deltas, and blocks with contexts) and leaves the rest to planes.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from gpu_train_cas.codecs.codec import Grid, Reference, Role
from gpu_train_cas.codecs.payload import (
    BASE_SOURCE,
    DIGEST_BYTES,
    FLOAT,
    GRID_SOURCE,
    LINE,
    NO_SOURCE,
    SIBLING_SOURCE,
    SQUARE,
)
from gpu_train_cas.errors import Damaged, UsageError

_kernel: Any
try:
    from gpu_train_cas.codecs import _kernel
except ImportError:  # no compiler when this was installed, or another processor
    _kernel = None

FACE = 5
"""The native module's arguments and payloads, as this module knows them (FACE in cas/native/module.c)."""
VARIABLE = "GPU_TRAIN_KERNEL"
NUMPY = "numpy"
FAULTS = {
    1: "its header contradicts itself, its length or this version",
    2: "it needs another block, and none was given",
    3: "its tables do not add up",
    4: "a lane is out of range or does not end where it should",
    5: "a stream ends too early or too late",
}
"""What the native decoder's status means (status_t in kernel.h)."""

PREDICTS: Mapping[Role, int] = {Role.EARLIER: LINE, Role.FIRST_MOMENT: SQUARE}
"""What a sibling makes of a base; others tell how large elements are."""

_log = logging.getLogger(__name__)
if _kernel is not None and getattr(_kernel, "FACE", 0) != FACE:
    _log.warning("the native kernel was built from other sources and is not used; install gpu-train again")
    _kernel = None
Buffer = bytes | bytearray | memoryview


def variants() -> list[str]:
    """What runs here, the best first."""
    return [*(_kernel.variants() if _kernel is not None else []), NUMPY]


@cache
def variant() -> str:
    """The variant in use.

    Raises:
        UsageError: when GPU_TRAIN_KERNEL names one that does not run here.
    """
    names, wanted = variants(), os.environ.get(VARIABLE, "")
    if wanted and wanted not in names:
        raise UsageError(f"{VARIABLE}={wanted}: no such kernel runs here; it can be {', '.join(names)}")
    _log.debug("float kernel: %s of %s", wanted or names[0], ", ".join(names))
    return wanted or names[0]


def writes() -> bool:
    """Whether the kernel is fast enough to encode with, where nothing else gets as small."""
    return variant() != NUMPY


class Packed(NamedTuple):
    """What `pack` made of a block, and what its samples showed.

    Attributes:
        payload: None where it does not pay, or was wrong.
        delta: it takes the base to decode it.
        constant: the block is one element again and again; no more was looked at.
        regular: the bits below the exponents are no noise.
        repeats: some bytes come again.
        wrong: there was a payload, and it did not decode to the block.
    """

    payload: memoryview | None
    delta: bool
    constant: bool
    regular: bool
    repeats: bool
    wrong: bool


def pack(
    block: Buffer, element: int, limit: int, *, base: Buffer | None = None, sibling: Reference | None = None,
    grid: Grid | None = None,
) -> Packed:  # fmt: skip
    """Encode a block in the way that samples of it promise to be the shortest, decode it and compare.

    Args:
        element: the element byte (payload.ELEMENTS).
        limit: a payload must be shorter.
        base, sibling: blocks of the same length, used where that pays; a sibling that makes predictions goes with a
            base and elements of F32 only.
        grid: used where its bytes are few.

    Raises:
        UsageError: where there is only numpy (`writes`).
    """
    name = variant()
    if name == NUMPY:
        raise UsageError("there is no native kernel to write with")
    other, digest, predicts = (None, None, 0)
    if sibling is not None:
        other, digest, predicts = sibling.data, sibling.digest, PREDICTS.get(sibling.role, 0)
    row, first, is_moment = (0, 0, False) if grid is None else grid
    made, bits = _kernel.pack(block, element, base, other, digest, predicts, row, first, is_moment, limit, name)
    wrong = bool(bits & _kernel.WRONG)
    return Packed(
        None if made is None or wrong else memoryview(made), bool(bits & _kernel.DELTA), bool(bits & _kernel.CONSTANT),
        bool(bits & _kernel.REGULAR), bool(bits & _kernel.REPEATS), wrong,
    )  # fmt: skip


def encode(
    block: Buffer, element: int, limit: int, *, tokens: bool, base: Buffer | None = None,
    sibling: Buffer | None = None, sibling_digest: bytes | None = None, prediction: Buffer | None = None,
    grid: tuple[int, int] | None = None,
) -> bytes | memoryview | None:  # fmt: skip
    """A kernel payload shorter than `limit` bytes, or None.

    Args:
        element: the element byte (payload.ELEMENTS).
        tokens: code differences (from the base, or from zero) instead of the elements' top bytes.
        base: what differences are taken from, and what gives contexts; as long as the block.
        sibling: gives contexts, with the base's where there is one; as long as the block.
        sibling_digest: the sibling's name, for the payload.
        prediction: what makes the base that differences are taken from, out of base and sibling.
        grid: elements per row of the tensor, and the column of the block's first element: contexts are rows and
            columns then. Not with a base or sibling.
    """
    row, first = (0, 0) if grid is None else grid
    plain = not element & FLOAT and element != 0  # whole numbers of more than a byte have no contexts
    source = NO_SOURCE if plain else (BASE_SOURCE * (base is not None) + SIBLING_SOURCE * (sibling is not None))
    if grid is not None:
        source = GRID_SOURCE
    if prediction is not None:
        source = BASE_SOURCE
    elif not source & SIBLING_SOURCE:
        sibling = sibling_digest = None
    if len(block) >> (element & 3) == 0 or row > len(block) // 16:
        return None
    name = variant()
    if name == NUMPY:
        from gpu_train_cas.codecs import twin  # noqa: PLC0415  numpy

        return twin.encode(block, element, tokens, source, base, sibling, sibling_digest, prediction, row, first, limit)
    made = _kernel.encode(
        block, element, tokens, source, base, sibling, sibling_digest, prediction, row, first, limit, name
    )
    return None if made is None else memoryview(made)


def decode(
    payload: Buffer, length: int, *, base: Buffer | None = None, sibling: Buffer | None = None
) -> bytes | memoryview:
    """The block of `length` bytes.

    Raises:
        Damaged: for a payload that is not one for that length, and for a base or sibling of another length.
    """
    for other, name in ((base, "base"), (sibling, "sibling")):
        if other is not None and len(other) != length:
            raise Damaged(f"a kernel payload for {length} bytes with a {name} of {len(other)}")
    if variant() == NUMPY:
        from gpu_train_cas.codecs import twin  # noqa: PLC0415  numpy

        return twin.decode(payload, length, base, sibling)
    made = _kernel.decode(payload, length, base, sibling, variant())
    if isinstance(made, int):
        raise Damaged(f"a kernel payload of {len(payload)} bytes cannot be decoded: {FAULTS[made]}")
    return memoryview(made)


def split(block: Buffer, width: int, rotated: bool) -> list[memoryview]:
    """The planes of a block's whole elements, lowest byte first; with `rotated` of words rotated left by one bit."""
    if variant() == NUMPY:
        from gpu_train_cas.codecs import twin_planes  # noqa: PLC0415  numpy

        return twin_planes.split(block, width, rotated)
    count, planes = len(block) // width, memoryview(_kernel.split(block, width, rotated))
    return [planes[i * count : (i + 1) * count] for i in range(width)]


def join(planes: list[Buffer], count: int, rotated: bool, tail: Buffer) -> memoryview:
    """The block of `count` elements with those planes, of `count` bytes each or one for all; and `tail` behind it."""
    if variant() == NUMPY:
        from gpu_train_cas.codecs import twin_planes  # noqa: PLC0415  numpy

        return twin_planes.join(planes, count, rotated, memoryview(tail))
    return memoryview(_kernel.join(planes, count, len(planes), rotated, tail))


__all__ = [
    "DIGEST_BYTES", "NUMPY", "VARIABLE", "Packed", "decode", "encode", "join", "pack", "split", "variant", "variants",
    "writes",
]  # fmt: skip
