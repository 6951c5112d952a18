"""Mode 0 of codec FLOAT: elements split into byte planes (cas/spec/codecs.md, Mode 0).

Floats are first rotated left by one bit: the exponent then fills the top byte (of BF16 and F32 exactly,
of F16 and F64 in part) and the sign joins the mantissa. The exponents of a tensor take few values and
compress; the mantissas are noise, which a sample finds out for next to nothing. Integers are not rotated.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_train_cas.codecs import zstd
from gpu_train_cas.errors import Damaged

MODE_PLANES = 0
RAW, ZSTD, CONSTANT = 0, 1, 2
ROTATED = 0x80
SLICE_BYTES = 256 << 10
"""Elements are turned so many bytes at a time, to stay in the second-level cache."""
KEPT_BYTES = 1 << 20
"""A thread keeps scratch buffers of up to this length."""

_HEADER = struct.Struct("<BB")
_PLANE = struct.Struct("<BI")
_WORDS: dict[int, np.dtype[Any]] = {w: np.dtype(f"<u{w}") for w in (2, 4, 8)}

Bytes = NDArray[np.uint8]
Words = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """How elements are split: `width` bytes each, rotated or not."""

    width: int
    rotated: bool


SHAPES = {
    "BF16": Shape(2, True), "F16": Shape(2, True), "F32": Shape(4, True), "F64": Shape(8, True),
    "C64": Shape(4, True), "C128": Shape(8, True),  # pairs of floats
    "I16": Shape(2, False), "U16": Shape(2, False), "I32": Shape(4, False), "U32": Shape(4, False),
    "I64": Shape(8, False), "U64": Shape(8, False),
}  # fmt: skip


class _Scratch(threading.local):
    """Buffers that a thread uses again for each block: fresh ones would cost page faults."""

    def __init__(self) -> None:
        self._buffers: dict[str, Bytes] = {}

    def take(self, name: str, length: int) -> Bytes:
        found = self._buffers.get(name)
        if found is None or len(found) < length:
            found = np.empty(length, np.uint8)
            if length <= KEPT_BYTES:
                self._buffers[name] = found
        return found[:length]


_scratch = _Scratch()


def known(dtype: str) -> bool:
    """Whether elements of that type can be split into planes."""
    return dtype in SHAPES


def encode(block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
    """The planes, or None for other types and where they are not shorter than `limit`."""
    shape = SHAPES.get(dtype)
    count = len(block) // shape.width if shape else 0
    if shape is None or count == 0:
        return None
    planes = _split(np.frombuffer(block, _WORDS[shape.width], count), shape)
    packed = [_pack(plane, shape) for plane in planes]
    parts = [_HEADER.pack(MODE_PLANES, shape.width | (ROTATED if shape.rotated else 0))]
    parts += [_PLANE.pack(method, len(data)) for method, data in packed]
    tail = memoryview(block)[count * shape.width :]
    length = sum(map(len, parts)) + sum(len(data) for _, data in packed) + len(tail)
    if length >= limit:
        return None
    return b"".join([*parts, *(data for _, data in packed), tail])


def decode(payload: bytes | memoryview, length: int) -> memoryview:
    """See `Entrant.decode`."""
    view = memoryview(payload)
    shape, table = _read_table(view)
    count = length // shape.width
    if count == 0:
        raise Damaged(f"a float payload for {length} bytes, fewer than one element")
    at = _HEADER.size + len(table) * _PLANE.size
    if at + sum(size for _, size in table) + length % shape.width != len(view):
        raise Damaged(f"a float payload of {len(view)} bytes does not have the length its table says")
    planes = []
    for method, size in table:
        planes.append(_unpack(method, view[at : at + size], count))
        at += size
    out = np.empty(length, np.uint8)
    _join(planes, shape, out[: count * shape.width].view(_WORDS[shape.width]))
    out.data[count * shape.width :] = view[at:]
    return out.data


def _read_table(view: memoryview) -> tuple[Shape, list[tuple[int, int]]]:
    """The shape and each plane's method and stored length."""
    if len(view) < _HEADER.size:
        raise Damaged("a float payload ends within its header")
    mode, element = _HEADER.unpack_from(view)
    shape = Shape(element & ~ROTATED, bool(element & ROTATED))
    if mode != MODE_PLANES or shape.width not in _WORDS:
        raise Damaged(f"float payload of mode {mode}, element {element:#x}: damaged or of a newer gpu-train")
    if len(view) < _HEADER.size + shape.width * _PLANE.size:
        raise Damaged("a float payload ends within its table")
    ends = range(_HEADER.size, _HEADER.size + shape.width * _PLANE.size, _PLANE.size)
    return shape, [_PLANE.unpack_from(view, at) for at in ends]


def _split(words: Words, shape: Shape) -> list[Bytes]:
    """The planes of the (rotated) elements, lowest byte first, in scratch memory."""
    count, bits = len(words), 8 * shape.width
    planes = _scratch.take("planes", count * shape.width).reshape(shape.width, count)
    step = SLICE_BYTES // shape.width
    turned, shifted = (_scratch.take(name, SLICE_BYTES).view(words.dtype) for name in ("turned", "shifted"))
    for at in range(0, count, step):
        part = words[at : at + step]
        into, low, high = planes[:, at : at + step], turned[: len(part)], shifted[: len(part)]
        if shape.rotated:
            np.right_shift(part, bits - 1, out=high)
            np.add(part, part, out=low)  # as a shift left by one, but faster
            part = np.bitwise_or(low, high, out=low)
        np.copyto(into[0], part, casting="unsafe")
        for index in range(1, shape.width):
            np.right_shift(part, 8 * index, out=high)
            np.copyto(into[index], high, casting="unsafe")
    return list(planes)


def _join(planes: list[Bytes], shape: Shape, out: Words) -> None:
    """Put the planes together into `out` and undo the rotation."""
    step = SLICE_BYTES // shape.width
    scratch = _scratch.take("shifted", SLICE_BYTES).view(out.dtype)
    for at in range(0, len(out), step):
        part = out[at : at + step]
        _merge([plane if len(plane) == 1 else plane[at : at + step] for plane in planes], part)
        if shape.rotated:
            sign = np.left_shift(part, 8 * shape.width - 1, out=scratch[: len(part)])
            np.right_shift(part, 1, out=part)
            np.bitwise_or(part, sign, out=part)


def _merge(planes: list[Bytes], out: Words) -> None:
    if len(planes) == 8:  # storing every eighth byte costs less than seven shifts of all
        for index, plane in enumerate(planes):
            out.view(np.uint8)[index::8] = plane
        return
    np.copyto(out, planes[-1])
    for plane in reversed(planes[:-1]):
        np.left_shift(out, 8, out=out)
        np.bitwise_or(out, plane, out=out)


def _pack(plane: Bytes, shape: Shape) -> tuple[int, bytes | memoryview]:
    """A plane's method and stored bytes (a view of scratch memory where they are raw)."""
    if plane[0] == plane[-1] and bool((plane[:64] == plane[0]).all()) and bool((plane == plane[0]).all()):
        return CONSTANT, plane[:1].tobytes()
    pack = zstd.squeeze_skewed if shape.rotated else zstd.squeeze
    squeezed = pack(plane.data, len(plane))
    return (RAW, plane.data) if squeezed is None else (ZSTD, squeezed)


def _unpack(method: int, stored: memoryview, count: int) -> Bytes:
    """The plane of `count` bytes; of one byte (which numpy spreads) where all are the same."""
    if method == ZSTD:
        return np.frombuffer(zstd.decompress(stored, count), np.uint8)
    if method not in (RAW, CONSTANT) or len(stored) != (count if method == RAW else 1):
        raise Damaged(f"a plane of method {method} and {len(stored)} bytes where {count} are due")
    return np.frombuffer(stored, np.uint8)
