"""Mode 0 of codec FLOAT: elements split into byte planes (cas/spec/codecs.md, Mode 0).

Floats are first rotated left by one bit: the exponent then fills the top byte (of BF16 and F32 exactly,
of F16 and F64 in part) and the sign joins the mantissa. The exponents of a tensor take few values and
compress; the mantissas are noise, which zstd finds out for next to nothing. Integers are not rotated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gpu_train_cas.codecs import kernel, zstd
from gpu_train_cas.codecs.codec import Codec
from gpu_train_cas.errors import Damaged

MODE_PLANES = 0
RAW, ZSTD, CONSTANT = 0, 1, 2
ROTATED = 0x80

_HEADER = struct.Struct("<BB")
_PLANE = struct.Struct("<BI")


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


class Planes:
    """The entrant for elements whose planes get shorter as zstd."""

    codec = Codec.FLOAT
    proves = False

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
        """See `encode`."""
        return encode(block, dtype, limit)

    def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
        """See `decode`."""
        return decode(payload, length)


class Constant(Planes):
    """The entrant for a block that is one element again and again, which the caller knows."""

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
        """Planes of one byte each, or None for types without planes."""
        shape = SHAPES.get(dtype)
        if shape is None or len(block) < shape.width:
            return None
        turned = _turn(bytes(block[: shape.width]), shape, 1)
        tail = bytes(block[len(block) // shape.width * shape.width :])
        payload = _payload(shape, [(CONSTANT, turned[i : i + 1]) for i in range(shape.width)], tail)
        return payload if len(payload) < limit else None


def known(dtype: str) -> bool:
    """Whether elements of that type can be split into planes."""
    return dtype in SHAPES


def encode(block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
    """The planes, or None for other types and where they are not shorter than `limit`."""
    shape = SHAPES.get(dtype)
    count = len(block) // shape.width if shape else 0
    if shape is None or count == 0:
        return None
    packed = [_pack(plane, shape) for plane in kernel.split(block, shape.width, shape.rotated)]
    payload = _payload(shape, packed, memoryview(block)[count * shape.width :])
    return payload if len(payload) < limit else None


def decode(payload: bytes | memoryview, length: int) -> bytes | memoryview:
    """See `Entrant.decode`."""
    view = memoryview(payload)
    shape, table = _read_table(view)
    count = length // shape.width
    if count == 0:
        raise Damaged(f"a float payload for {length} bytes, fewer than one element")
    at = _HEADER.size + len(table) * _PLANE.size
    if at + sum(size for _, size in table) + length % shape.width != len(view):
        raise Damaged(f"a float payload of {len(view)} bytes does not have the length its table says")
    if all(entry == (CONSTANT, 1) for entry in table):
        return _turn(bytes(view[at : at + shape.width]), shape, -1) * count + bytes(view[at + shape.width :])
    planes: list[kernel.Buffer] = []
    for method, size in table:
        planes.append(_unpack(method, view[at : at + size], count))
        at += size
    return kernel.join(planes, count, shape.rotated, view[at:])


def _turn(word: bytes, shape: Shape, by: int) -> bytes:
    """A word rotated left by one bit, or right for `by` -1, where that shape's words are."""
    if not shape.rotated:
        return word
    bits, value = 8 * shape.width, int.from_bytes(word, "little")
    turned = (value << by % bits | value >> -by % bits) & ((1 << bits) - 1)
    return turned.to_bytes(shape.width, "little")


def _payload(shape: Shape, planes: list[tuple[int, bytes | memoryview]], tail: bytes | memoryview) -> bytes:
    parts = [_HEADER.pack(MODE_PLANES, shape.width | (ROTATED if shape.rotated else 0))]
    parts += [_PLANE.pack(method, len(data)) for method, data in planes]
    return b"".join([*parts, *(data for _, data in planes), tail])


def _read_table(view: memoryview) -> tuple[Shape, list[tuple[int, int]]]:
    """The shape and each plane's method and stored length."""
    if len(view) < _HEADER.size:
        raise Damaged("a float payload ends within its header")
    mode, element = _HEADER.unpack_from(view)
    shape = Shape(element & ~ROTATED, bool(element & ROTATED))
    if mode != MODE_PLANES or shape.width not in (2, 4, 8):
        raise Damaged(f"float payload of mode {mode}, element {element:#x}: damaged or of a newer gpu-train")
    if len(view) < _HEADER.size + shape.width * _PLANE.size:
        raise Damaged("a float payload ends within its table")
    ends = range(_HEADER.size, _HEADER.size + shape.width * _PLANE.size, _PLANE.size)
    return shape, [_PLANE.unpack_from(view, at) for at in ends]


def _pack(plane: memoryview, shape: Shape) -> tuple[int, bytes | memoryview]:
    """A plane's method and stored bytes (the plane itself where they are raw)."""
    first, length = bytes(plane[:1]), len(plane)
    if plane[:64] == first * min(64, length) and bytes(plane).count(first) == length:
        return CONSTANT, first
    pack = zstd.squeeze_skewed if shape.rotated else zstd.squeeze
    squeezed = pack(plane, length)
    return (RAW, plane) if squeezed is None else (ZSTD, squeezed)


def _unpack(method: int, stored: memoryview, count: int) -> bytes | memoryview:
    """The plane of `count` bytes; of one byte where all are the same."""
    if method == ZSTD:
        return zstd.decompress(stored, count)
    if method not in (RAW, CONSTANT) or len(stored) != (count if method == RAW else 1):
        raise Damaged(f"a plane of method {method} and {len(stored)} bytes where {count} are due")
    return stored
