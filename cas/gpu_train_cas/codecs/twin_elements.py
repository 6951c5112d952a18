"""The numpy twin's elements: words, differences, contexts, tokens, splitting (cas/spec/codecs.md, Elements)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_train_cas.codecs.payload import (
    BASE_SOURCE,
    BOTH_SOURCE,
    FLOAT,
    LINE,
    SIBLING_SOURCE,
    UNSIGNED,
    Grid,
    Parts,
    Prediction,
    rows_of,
    width_of,
)
from gpu_train_cas.errors import Damaged

Array = NDArray[Any]
Buffer = bytes | bytearray | memoryview


# ---- elements


@dataclass(frozen=True, slots=True)
class Words:
    """Arithmetic on the words of one element type; all arrays are u64."""

    element: int

    @property
    def bits(self) -> int:
        """Bits of a word."""
        return 8 * width_of(self.element)

    @property
    def mask(self) -> np.uint64:
        """A word of ones."""
        return np.uint64((1 << self.bits) - 1)

    def of(self, data: Buffer) -> Array:
        """The whole elements of a block."""
        width = width_of(self.element)
        return np.frombuffer(data, f"<u{width}", len(data) // width).astype(np.uint64)

    def negative(self, words: Array) -> Array:
        """Which have their highest bit set."""
        signs: Array = words >> np.uint64(self.bits - 1)
        return signs.astype(bool)

    def ordered(self, words: Array) -> Array:
        """Sign and magnitude as two's complement, in the floats' order; its own inverse."""
        return np.where(self.negative(words), words ^ (self.mask >> np.uint64(1)), words)

    def difference(self, values: Array, base: Array) -> Array:
        """Zigzag of what values are more than their base, away from zero."""
        d = values - base
        if self.element & FLOAT:
            d = self.ordered(values) - self.ordered(base)
            d = np.where(self.negative(base), np.uint64(0) - d, d)
        d &= self.mask
        return np.where(self.negative(d), ~(d << np.uint64(1)), d << np.uint64(1)) & self.mask

    def undo_difference(self, z: Array, base: Array) -> Array:
        """The values of differences."""
        d = z >> np.uint64(1)
        d = np.where(z & np.uint64(1) != 0, ~d, d)
        if not self.element & FLOAT:
            total: Array = (base + d) & self.mask
            return total
        d = np.where(self.negative(base), np.uint64(0) - d, d)
        return self.ordered((self.ordered(base) + d) & self.mask)

    def contexts(self, words: Array) -> Array:
        """The x of each word."""
        is_float = self.element & FLOAT
        if self.bits == 8:
            return (words & np.uint64(0x7F if is_float else 0xFF)).astype(np.int64)
        if not is_float:
            return np.zeros(len(words), np.int64)
        if self.bits == 64:
            return np.clip((words >> np.uint64(52) & np.uint64(0x7FF)).astype(np.int64) - 832, 0, 255)
        x: Array = words >> np.uint64(7 if self.bits == 16 else 23) & np.uint64(255)
        return x.astype(np.int64)


def predicted(prediction: Prediction, base: Buffer, sibling: Buffer, words: Words) -> Array:
    """The words of a predicted base: each operation is one of binary32, in the spec's order."""
    count = len(base) // 4
    b, s = (np.frombuffer(each, "<f4", count) for each in (base, sibling))
    row = np.arange(prediction.first, prediction.first + count) // max(prediction.row, 1)
    with np.errstate(all="ignore"):
        c, d = (_coefficients(prediction, which, row) for which in range(2))
        made = b + c * (b - s) if prediction.kind == LINE else c * b + d * (s * s)
    return words.of(np.where(np.isnan(made), b, made).astype("<f4").tobytes())


def _coefficients(prediction: Prediction, which: int, row: Array) -> Any:
    """A coefficient for each element, or one for all."""
    low, step = np.float32(prediction.low[which]), np.float32(prediction.step[which])
    if which >= len(prediction.rows):
        return low
    return low + step * np.frombuffer(prediction.rows[which], np.uint8).astype(np.float32)[row]


def grid_contexts(grid: Grid, count: int) -> Array:
    """The context byte of each element by its row and column."""
    place = np.arange(grid.first, grid.first + count)
    rows, columns = (np.frombuffer(each, np.uint8).astype(np.int64) for each in (grid.rows, grid.columns))
    contexts: Array = np.clip(rows[place // grid.row] + columns[place % grid.row] - 128, 0, 255)
    return contexts


def grid_of(exponents: Array, row: int, first: int) -> Grid:
    """Means of the exponents over rows and columns, in quarters, less the mean of all."""
    place = np.arange(first, first + len(exponents))
    used = (exponents != 0).astype(np.int64)
    total, every = int(exponents.sum()), int(used.sum())

    def means(index: Array, length: int, none: int) -> bytes:
        sums = np.bincount(index, exponents, length).astype(np.int64)
        counts = np.bincount(index, used, length).astype(np.int64)
        there = np.maximum(counts, 1)
        more = (4 * sums + counts // 2) // there - (4 * total + every // 2) // max(every, 1)
        return np.where(counts > 0, np.clip(128 + more, 1, 255), none).astype(np.uint8).tobytes()

    return Grid(row, first, means(place % row, row, 128), means(place // row, rows_of(len(exponents), row, first), 0))


def contexts(words: Words, source: int, base: Array | None, sibling: Array | None, count: int) -> Array:
    """The context byte of each element."""
    of_base = words.contexts(base) if source & BASE_SOURCE and base is not None else np.zeros(count, np.int64)
    of_sibling = words.contexts(sibling) if source & SIBLING_SOURCE and sibling is not None else 0 * of_base
    if source == BOTH_SOURCE:
        return np.clip(2 * of_base - of_sibling, 0, 255)
    return of_base + of_sibling


def _bit_length(z: Array) -> Array:
    length = np.zeros(len(z), np.uint64)
    for shift in (32, 16, 8, 4, 2, 1):
        high = z >> np.uint64(shift)
        length += np.where(high != 0, np.uint64(shift), np.uint64(0))
        z = np.where(high != 0, high, z)
    found: Array = length + (z != 0)
    return found


def tokens(z: Array, bits: int, top: int) -> tuple[Array, Array, Array]:
    """Tokens, how many raw bits each leaves, and these."""
    n, one = _bit_length(z), np.uint64(1)
    small = (z < 16) | (bits == 8)
    raw_bits = np.where(small, np.uint64(0), n - np.uint64(2 + top))
    lead = z >> (raw_bits + one)
    token = (
        np.uint64(16) + ((n - np.uint64(5)) << np.uint64(top + 1)) + ((lead - np.uint64(1 << top)) << one) + (z & one)
    )
    raw = z >> one & ((one << raw_bits) - one)
    return np.where(small, z, token), raw_bits, raw


def token_raw_bits(tokens: Array, bits: int, top: int) -> Array:
    """How many raw bits each token leaves."""
    small = (tokens < 16) | (bits == 8)
    return np.where(small, np.uint64(0), ((tokens - np.uint64(16)) >> np.uint64(top + 1)) + np.uint64(3 - top))


def token_values(tokens: Array, raw_bits: Array, raw: Array, bits: int, top: int) -> Array:
    """The differences of tokens and raw bits."""
    one, rest = np.uint64(1), tokens - np.uint64(16)
    lead = (rest >> one & np.uint64((1 << top) - 1)) | np.uint64(1 << top)
    return np.where((tokens < 16) | (bits == 8), tokens, (lead << raw_bits | raw) << one | (rest & one))


# ---- raw bits


def _as_bits(values: Array) -> Array:
    return np.unpackbits(values.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")


def put_raw(raw: Array, raw_bits: Array) -> tuple[bytes, bytes]:
    """The byte stream and the bit stream."""
    whole, rest = raw_bits >> np.uint64(3), raw_bits & np.uint64(7)
    as_bytes = raw.astype("<u8").view(np.uint8).reshape(-1, 8)
    high = _as_bits(raw >> (whole << np.uint64(3)))[:, :7]
    byte_stream = as_bytes[np.arange(8) < whole[:, None]].tobytes()
    return byte_stream, np.packbits(high[np.arange(7) < rest[:, None]], bitorder="little").tobytes()


def get_raw(parts: Parts, raw_bits: Array) -> Array:
    """Raw bits from both streams, which must be exactly as long as that."""
    whole, rest = raw_bits >> np.uint64(3), raw_bits & np.uint64(7)
    if int(whole.sum()) != len(parts.byte_stream) or int(rest.sum() + 7) // 8 != len(parts.bit_stream):
        raise Damaged("the raw bits of a kernel payload are not as many as its symbols call for")
    low = np.zeros((len(raw_bits), 8), np.uint8)
    low[np.arange(8) < whole[:, None]] = np.frombuffer(parts.byte_stream, np.uint8)
    high = np.zeros((len(raw_bits), 8), np.uint8)
    stream = np.unpackbits(np.frombuffer(parts.bit_stream, np.uint8), bitorder="little")
    high[np.arange(8) < rest[:, None]] = stream[: int(rest.sum())]
    above = np.packbits(high, axis=1, bitorder="little").ravel().astype(np.uint64)
    together: Array = low.view("<u8").ravel() | above << (whole << np.uint64(3))
    return together


# ---- split


def split(words: Words, values: Array, *, unsigned: bool) -> tuple[Array, bytes, bytes]:
    """Symbols, byte stream, bit stream."""
    bits = words.bits
    if bits == 8:
        return values, b"", b""
    turned = (values << np.uint64(1) | values >> np.uint64(bits - 1)) & words.mask
    raw = turned.astype("<u8").view(np.uint8).reshape(-1, 8)[:, int(unsigned) : bits // 8 - 1]
    low = _as_bits(turned)[:, 1:8] if unsigned else np.zeros(0, np.uint8)
    stream = np.packbits(low.ravel(), bitorder="little").tobytes()
    return turned >> np.uint64(bits - 8), raw.tobytes(), stream


def join(words: Words, parts: Parts, symbols: Array) -> Array:
    """The elements of symbols and raw bytes."""
    bits, unsigned, count = words.bits, bool(parts.header.flags & UNSIGNED), len(symbols)
    per = bits // 8 - 1 - unsigned
    if len(parts.byte_stream) != per * count or len(parts.bit_stream) != unsigned * ((7 * count + 7) // 8):
        raise Damaged("the raw bytes of a kernel payload are not as many as its elements")
    if bits == 8:
        return symbols
    turned = np.zeros((len(symbols), 8), np.uint8)
    turned[:, int(unsigned) : bits // 8 - 1] = np.frombuffer(parts.byte_stream, np.uint8).reshape(len(symbols), per)
    if unsigned:
        low = np.unpackbits(np.frombuffer(parts.bit_stream, np.uint8), bitorder="little")[: 7 * len(symbols)]
        turned[:, 0] = np.packbits(low.reshape(-1, 7), axis=1, bitorder="little").ravel() << 1
    word = turned.view("<u8").ravel() | symbols << np.uint64(bits - 8)
    turned_back: Array = (word >> np.uint64(1) | word << np.uint64(bits - 1)) & words.mask
    return turned_back
