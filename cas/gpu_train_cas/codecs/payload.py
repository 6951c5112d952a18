"""The header of a kernel payload and where its parts lie (cas/spec/codecs.md, Kernel payload)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import isfinite
from typing import Self

from gpu_train_cas.errors import Damaged

MODE_KERNEL = 1
LANES = 64
SYMBOLS = 256
GROUPS_MAX = 16
SCALE_BITS, FLAG_BITS = 12, 15
STATE_MIN = 1 << 15
STATE_BYTES = 4 * LANES
HEADER_BYTES = 28
DIGEST_BYTES = 32
SPARSE, UNSIGNED, SIBLING, PREDICTED = 1, 2, 4, 8
FLOAT = 4
"""Bit of the element byte; bits 0 and 1 are the logarithm of the width."""
NO_SOURCE, BASE_SOURCE, SIBLING_SOURCE, BOTH_SOURCE, GRID_SOURCE = range(5)
LINE, SQUARE = 1, 2
"""Kinds of predictions."""
PREDICTED_ELEMENT = 6
PREDICTABLE = ("F32",)
"""What is predicted: its element byte, and its element types."""

ROW_MOST = 1 << 30
"""Elements of a row, where predictions go by rows."""

_FIELDS = struct.Struct("<6BH5I")
_GRID = struct.Struct("<II")
_PREDICTION = struct.Struct("<III4f")

ELEMENTS = {
    "F8_E4M3": 4, "F8_E5M2": 4, "F8_E4M3FNUZ": 4, "F8_E5M2FNUZ": 4, "BF16": 5, "F16": 5, "F32": 6, "C64": 6,
    "F64": 7, "C128": 7, "I8": 0, "U8": 0, "BOOL": 0, "F8_E8M0": 0, "I16": 1, "U16": 1, "I32": 2, "U32": 2,
    "I64": 3, "U64": 3,
}  # fmt: skip
"""Element bytes by element type."""


def width_of(element: int) -> int:
    """Bytes of an element."""
    return 1 << (element & 3)


def top_most(width: int) -> int:
    """The most leading bits that a token may hold: more would not fit 256 symbols."""
    return {2: 3, 4: 2}.get(width, 1)


def alphabet(element: int, top: int) -> int:
    """How many symbols there are."""
    width = width_of(element)
    return SYMBOLS if top == 0 or width == 1 else 16 + ((8 * width - 4) << (top + 1))


def padded(count: int) -> int:
    """Elements in whole runs of lanes."""
    return -(-count // LANES) * LANES


@dataclass(frozen=True, slots=True)
class Header:
    """The fields of a header, in their order."""

    element: int
    top: int
    flags: int
    source: int
    groups: int
    table_bytes: int
    coded: int
    byte_bytes: int
    bit_bytes: int
    symbol_words: int
    flag_words: int

    @property
    def sparse(self) -> bool:
        """Whether elements that equal their base are told by flags."""
        return bool(self.flags & SPARSE)

    def pack(self) -> bytes:
        """The 28 bytes."""
        return _FIELDS.pack(
            MODE_KERNEL, self.element, self.top, self.flags, self.source, self.groups, self.table_bytes, self.coded,
            self.byte_bytes, self.bit_bytes, self.symbol_words, self.flag_words,
        )  # fmt: skip

    @classmethod
    def unpack(cls, payload: bytes | memoryview) -> Self:
        """Read a header, fields unchecked but for the mode.

        Raises:
            Damaged: when it is too short or of another mode.
        """
        if len(payload) < HEADER_BYTES or payload[0] != MODE_KERNEL:
            raise Damaged("a kernel payload ends within its header, or is of a newer gpu-train")
        _, *fields = _FIELDS.unpack_from(payload)
        return cls(*fields)

    def check(self, count: int) -> None:
        """Check the fields against each other and against the number of elements.

        Raises:
            Damaged: when a decoder must not go on.
        """
        width, sibling = width_of(self.element), bool(self.flags & SIBLING)
        plain = self.top == 0
        good = (
            count > 0
            and self.element < 8
            and self.flags < 16
            and self.top <= top_most(width)
            and self.source <= GRID_SOURCE
            and 1 <= self.groups <= (1 if self.source == NO_SOURCE else GROUPS_MAX)
            and (self._predicted_well() if self.flags & PREDICTED else sibling == bool(self.source & SIBLING_SOURCE))
            and not (plain and width > 1 and not self.element & FLOAT)
            and not (self.flags & UNSIGNED and (not plain or width == 1))
            and (self.coded <= count if self.sparse else (self.coded == count and self.flag_words == 0))
            and self.symbol_words <= padded(self.coded)
            and self.flag_words <= padded(count)
        )
        if not good:
            raise Damaged(f"the header of a kernel payload contradicts itself or is of a newer gpu-train: {self}")

    def _predicted_well(self) -> bool:
        fits = self.element == PREDICTED_ELEMENT and self.top > 0 and self.source <= BASE_SOURCE
        return fits and bool(self.flags & SIBLING)


@dataclass(frozen=True, slots=True)
class Prediction:
    """How the base of a payload is made from two blocks (cas/spec/codecs.md, Predictions).

    Attributes:
        kind: LINE or SQUARE.
        row: elements per row; 0 where all have the same coefficients.
        first: the column of the block's first element.
        low, step: of each coefficient, which is low + step * byte.
        rows: for each coefficient a byte for each row that the block has a part of; empty without rows.
        size_bytes: its length in a payload.
    """

    kind: int
    row: int
    first: int
    low: tuple[float, float]
    step: tuple[float, float]
    rows: tuple[bytes, ...]
    size_bytes: int

    @classmethod
    def unpack(cls, data: bytes | memoryview, count: int) -> Self:
        """Read the one that `data` starts with, for `count` elements.

        Raises:
            Damaged: when it ends too early, is of no known kind or makes no sense.
        """
        if len(data) < _PREDICTION.size:
            raise Damaged("a kernel payload ends within its prediction")
        kind, row, first, low, step, low_1, step_1 = _PREDICTION.unpack_from(data)
        known = kind in (LINE, SQUARE) and (first < row if row else first == 0) and row <= ROW_MOST
        if not known or not all(map(isfinite, (low, step, low_1, step_1))):
            raise Damaged(f"a kernel payload with a prediction that is none: kind {kind}, rows of {row} from {first}")
        rows, at = rows_of(count, row, first) if row else 0, _PREDICTION.size
        coefficients = 2 if kind == SQUARE else 1
        if len(data) < at + coefficients * rows:
            raise Damaged("a kernel payload ends within its prediction")
        parts = tuple(bytes(data[at + i * rows : at + (i + 1) * rows]) for i in range(coefficients)) if row else ()
        return cls(kind, row, first, (low, low_1), (step, step_1), parts, at + coefficients * rows)


def sibling_of(payload: bytes | memoryview) -> bytes | None:
    """The digest of the sibling that a payload of codec FLOAT or DELTA needs, None when it needs none.

    The first 60 bytes of a payload are enough. Nothing is checked: decoding does that.
    """
    view = memoryview(payload)
    if len(view) < HEADER_BYTES + DIGEST_BYTES or view[0] != MODE_KERNEL or not view[3] & SIBLING:
        return None
    return bytes(view[HEADER_BYTES : HEADER_BYTES + DIGEST_BYTES])


@dataclass(frozen=True, slots=True)
class Grid:
    """How large the elements of each row and column are: contexts of source GRID.

    Attributes:
        row: elements per row.
        first: the column of the block's first element.
        columns: a byte for each.
        rows: a byte for each row that the block has a part of.
    """

    row: int
    first: int
    columns: bytes
    rows: bytes

    @property
    def size_bytes(self) -> int:
        """Its length in a payload."""
        return _GRID.size + len(self.columns) + len(self.rows)

    def pack(self) -> bytes:
        """Its bytes in a payload."""
        return _GRID.pack(self.row, self.first) + self.columns + self.rows

    @classmethod
    def unpack(cls, payload: memoryview, count: int) -> Self:
        """Read the grid that follows a header, for `count` elements.

        Raises:
            Damaged: when it makes no sense or ends too early.
        """
        if len(payload) < HEADER_BYTES + _GRID.size:
            raise Damaged("a kernel payload ends within its grid")
        row, first = _GRID.unpack_from(payload, HEADER_BYTES)
        if row == 0 or row > len(payload) or first >= row:
            raise Damaged(f"a kernel payload with rows of {row} elements from {first}")
        at = HEADER_BYTES + _GRID.size
        rows = rows_of(count, row, first)
        if at + row + rows > len(payload):
            raise Damaged("a kernel payload ends within its grid")
        return cls(row, first, bytes(payload[at : at + row]), bytes(payload[at + row : at + row + rows]))


def rows_of(count: int, row: int, first: int) -> int:
    """How many rows `count` elements have a part of, the first of them in column `first`."""
    return -(-(first + count) // row)


@dataclass(frozen=True, slots=True)
class Parts:
    """A payload whose header was checked, cut into its parts."""

    header: Header
    count: int
    prediction: Prediction | None
    grid: Grid | None
    tail: memoryview
    byte_stream: memoryview
    bit_stream: memoryview
    table: memoryview
    flag_words: memoryview
    symbol_words: memoryview
    flag_states: memoryview
    symbol_states: memoryview

    @classmethod
    def of(cls, payload: bytes | memoryview, length: int) -> Self:
        """Cut a payload for a block of `length` bytes.

        Raises:
            Damaged: when header and lengths do not go together.
        """
        header, view = Header.unpack(payload), memoryview(payload)
        count, tail = divmod(length, width_of(header.element))
        header.check(count)
        sizes = [
            tail, header.byte_bytes, header.bit_bytes, header.table_bytes, 2 * header.flag_words,
            2 * header.symbol_words, STATE_BYTES * header.sparse, STATE_BYTES,
        ]  # fmt: skip
        at = HEADER_BYTES + DIGEST_BYTES * bool(header.flags & SIBLING)
        grid = prediction = None
        if header.flags & PREDICTED:
            prediction = Prediction.unpack(view[at:], count)
            at += prediction.size_bytes
        if header.source == GRID_SOURCE:
            grid = Grid.unpack(view, count)
            at += grid.size_bytes
        if at + sum(sizes) != len(view):
            raise Damaged(f"the parts of a kernel payload are not its {len(view)} bytes")
        parts = []
        for size in sizes:
            parts.append(view[at : at + size])
            at += size
        return cls(header, count, prediction, grid, *parts)
