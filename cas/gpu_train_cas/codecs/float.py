"""Codec FLOAT: elements split into byte planes (cas/spec/codecs.md, Float).

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
from gpu_train_cas.codecs.codec import Codec
from gpu_train_cas.errors import Damaged

MODE_PLANES = 0
RAW, ZSTD, CONSTANT = 0, 1, 2
ROTATED = 0x80

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
            found = self._buffers[name] = np.empty(length, np.uint8)
        return found[:length]


_scratch = _Scratch()


class Float:
    """The entrant for tensors of elements of 2, 4 or 8 bytes."""

    codec = Codec.FLOAT

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
        """The planes, or None for other types and where no plane gets smaller."""
        shape = SHAPES.get(dtype)
        count = len(block) // shape.width if shape else 0
        if shape is None or count == 0:
            return None
        planes = _split(np.frombuffer(block, _WORDS[shape.width], count), shape)
        packed = [_pack(plane) for plane in planes]
        parts = [_HEADER.pack(MODE_PLANES, shape.width | (ROTATED if shape.rotated else 0))]
        parts += [_PLANE.pack(method, len(data)) for method, data in packed]
        tail = memoryview(block)[count * shape.width :]
        length = sum(map(len, parts)) + sum(len(data) for _, data in packed) + len(tail)
        if length >= limit:
            return None
        return b"".join([*parts, *(data for _, data in packed), tail])

    def decode(self, payload: bytes | memoryview, length: int) -> memoryview:
        """See `Entrant.decode`."""
        view = memoryview(payload)
        shape, table = _read_table(view)
        count = length // shape.width
        at = _HEADER.size + len(table) * _PLANE.size
        if at + sum(size for _, size in table) + length % shape.width != len(view):
            raise Damaged(f"a float payload of {len(view)} bytes does not have the length its table says")
        planes = []
        for method, size in table:
            planes.append(_unpack(method, view[at : at + size], count))
            at += size
        out = np.empty(length, np.uint8)
        _join(planes, shape, out[: count * shape.width].view(_WORDS[shape.width]))
        out[count * shape.width :] = np.frombuffer(view[at:], np.uint8)
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
    count, width = len(words), shape.width
    planes = _scratch.take("planes", count * width).reshape(width, count)
    shifted = _scratch.take("shifted", count * width).view(words.dtype)
    if shape.rotated:
        rotated = _scratch.take("rotated", count * width).view(words.dtype)
        np.left_shift(words, 1, out=rotated)
        np.right_shift(words, 8 * width - 1, out=shifted)
        words = np.bitwise_or(rotated, shifted, out=rotated)
    for index in range(width):
        source = np.right_shift(words, 8 * index, out=shifted) if index else words
        np.copyto(planes[index], source, casting="unsafe")
    return list(planes)


def _join(planes: list[Bytes], shape: Shape, out: Words) -> None:
    """Put the planes together into `out` and undo the rotation."""
    as_bytes = out.view(np.uint8)
    for index, plane in enumerate(planes):
        as_bytes[index :: shape.width] = plane
    if shape.rotated:
        sign = np.left_shift(out, 8 * shape.width - 1)
        np.right_shift(out, 1, out=out)
        np.bitwise_or(out, sign, out=out)


def _pack(plane: Bytes) -> tuple[int, bytes | memoryview]:
    """A plane's method and stored bytes (a view of scratch memory where they are raw)."""
    if plane[0] == plane[-1] and bool((plane == plane[0]).all()):
        return CONSTANT, plane[:1].tobytes()
    view = plane.data
    squeezed = zstd.squeeze(view, len(view))
    return (RAW, view) if squeezed is None else (ZSTD, squeezed)


def _unpack(method: int, stored: memoryview, count: int) -> Bytes:
    """The plane of `count` bytes; of one byte (which numpy spreads) where all are the same."""
    if method == ZSTD:
        return np.frombuffer(zstd.decompress(stored, count), np.uint8)
    if method not in (RAW, CONSTANT) or len(stored) != (count if method == RAW else 1):
        raise Damaged(f"a plane of method {method} and {len(stored)} bytes where {count} are due")
    return np.frombuffer(stored, np.uint8)
