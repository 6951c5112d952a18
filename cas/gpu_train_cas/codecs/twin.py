"""The float kernel in numpy: what cas/native does, byte for byte, and far slower.

It reads payloads where no native kernel was built, and every native variant is compared with it. Sections and
names are those of cas/spec/codecs.md, Kernel payload, and of the C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_train_cas.codecs import twin_model
from gpu_train_cas.codecs.payload import (
    BASE_SOURCE, BOTH_SOURCE, FLAG_BITS, FLOAT, LANES, NO_SOURCE, SCALE_BITS, SIBLING, SIBLING_SOURCE, SPARSE,
    STATE_MIN, SYMBOLS, UNSIGNED, Header, Parts, alphabet, padded, top_most, width_of,
)  # fmt: skip
from gpu_train_cas.codecs.twin_model import FLAG_SCALE, SCALE, Model
from gpu_train_cas.errors import Damaged

COUNTED, ELEMENTS_MOST = 1 << 16, 1 << 22
LANE_ORDER = np.arange(LANES).reshape(16, 4).T.ravel()
"""Lane -> the element of a run that it serves."""

Array = NDArray[Any]
Buffer = bytes | bytearray | memoryview


# ---- elements


@dataclass(frozen=True, slots=True)
class Words:
    """Arithmetic on the words of one element type; all arrays are u64."""

    element: int

    @property
    def bits(self) -> int:
        return 8 * width_of(self.element)

    @property
    def mask(self) -> np.uint64:
        return np.uint64((1 << self.bits) - 1)

    def of(self, data: Buffer) -> Array:
        width = width_of(self.element)
        return np.frombuffer(data, f"<u{width}", len(data) // width).astype(np.uint64)

    def negative(self, words: Array) -> Array:
        return words >> np.uint64(self.bits - 1) != 0

    def ordered(self, words: Array) -> Array:
        return np.where(self.negative(words), words ^ (self.mask >> np.uint64(1)), words)

    def difference(self, values: Array, base: Array) -> Array:
        d = values - base
        if self.element & FLOAT:
            d = self.ordered(values) - self.ordered(base)
            d = np.where(self.negative(base), np.uint64(0) - d, d)
        d &= self.mask
        return np.where(self.negative(d), ~(d << np.uint64(1)), d << np.uint64(1)) & self.mask

    def undo_difference(self, z: Array, base: Array) -> Array:
        d = z >> np.uint64(1)
        d = np.where(z & np.uint64(1) != 0, ~d, d)
        if not self.element & FLOAT:
            return (base + d) & self.mask
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
        return (words >> np.uint64(7 if self.bits == 16 else 23) & np.uint64(255)).astype(np.int64)


def _contexts(words: Words, source: int, base: Array | None, sibling: Array | None, count: int) -> Array:
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
    return length + (z != 0)


def _tokens(z: Array, bits: int, top: int) -> tuple[Array, Array, Array]:
    """Tokens, how many raw bits each leaves, and these."""
    n, one = _bit_length(z), np.uint64(1)
    small = (z < 16) | (bits == 8)
    raw_bits = np.where(small, np.uint64(0), n - np.uint64(2 + top))
    lead = z >> (raw_bits + one)
    token = (
        np.uint64(16)
        + ((n - np.uint64(5)) << np.uint64(top + 1))
        + ((lead - np.uint64(1 << top)) << one)
        + (z & one)
    )
    raw = z >> one & ((one << raw_bits) - one)
    return np.where(small, z, token), raw_bits, raw


def _token_raw_bits(tokens: Array, bits: int, top: int) -> Array:
    small = (tokens < 16) | (bits == 8)
    return np.where(small, np.uint64(0), ((tokens - np.uint64(16)) >> np.uint64(top + 1)) + np.uint64(3 - top))


def _token_values(tokens: Array, raw_bits: Array, raw: Array, bits: int, top: int) -> Array:
    one, rest = np.uint64(1), tokens - np.uint64(16)
    lead = (rest >> one & np.uint64((1 << top) - 1)) | np.uint64(1 << top)
    return np.where((tokens < 16) | (bits == 8), tokens, (lead << raw_bits | raw) << one | (rest & one))


# ---- raw bits


def _as_bits(values: Array) -> Array:
    return np.unpackbits(values.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")


def _put_raw(raw: Array, raw_bits: Array) -> tuple[bytes, bytes]:
    """The byte stream and the bit stream."""
    whole, rest = raw_bits >> np.uint64(3), raw_bits & np.uint64(7)
    as_bytes = raw.astype("<u8").view(np.uint8).reshape(-1, 8)
    high = _as_bits(raw >> (whole << np.uint64(3)))[:, :7]
    byte_stream = as_bytes[np.arange(8) < whole[:, None]].tobytes()
    return byte_stream, np.packbits(high[np.arange(7) < rest[:, None]], bitorder="little").tobytes()


def _get_raw(parts: Parts, raw_bits: Array) -> Array:
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
    return low.view("<u8").ravel() | above << (whole << np.uint64(3))


# ---- split


def _split(words: Words, values: Array, *, unsigned: bool) -> tuple[Array, bytes, bytes]:
    """Symbols, byte stream, bit stream."""
    bits = words.bits
    if bits == 8:
        return values, b"", b""
    turned = (values << np.uint64(1) | values >> np.uint64(bits - 1)) & words.mask
    raw = turned.astype("<u8").view(np.uint8).reshape(-1, 8)[:, int(unsigned) : bits // 8 - 1]
    low = _as_bits(turned)[:, 1:8] if unsigned else np.zeros(0, np.uint8)
    stream = np.packbits(low.ravel(), bitorder="little").tobytes()
    return turned >> np.uint64(bits - 8), raw.tobytes(), stream


def _join(words: Words, parts: Parts, symbols: Array) -> Array:
    bits, unsigned = words.bits, bool(parts.header.flags & UNSIGNED)
    per = bits // 8 - 1 - unsigned
    if len(parts.byte_stream) != per * len(symbols) or len(parts.bit_stream) != unsigned * ((7 * len(symbols) + 7) // 8):
        raise Damaged("the raw bytes of a kernel payload are not as many as its elements")
    if bits == 8:
        return symbols
    turned = np.zeros((len(symbols), 8), np.uint8)
    turned[:, int(unsigned) : bits // 8 - 1] = np.frombuffer(parts.byte_stream, np.uint8).reshape(
        len(symbols), per
    )
    if unsigned:
        low = np.unpackbits(np.frombuffer(parts.bit_stream, np.uint8), bitorder="little")[: 7 * len(symbols)]
        turned[:, 0] = np.packbits(low.reshape(-1, 7), axis=1, bitorder="little").ravel() << 1
    word = turned.view("<u8").ravel() | symbols << np.uint64(bits - 8)
    return (word >> np.uint64(1) | word << np.uint64(bits - 1)) & words.mask


# ---- rANS


def _runs(values: Array) -> Array:
    """One row per run of lanes, in lane order."""
    return values.astype(np.uint64).reshape(-1, LANES)[:, LANE_ORDER]


def _rans_encode(frequencies: Array, firsts: Array, bits: int) -> tuple[bytes, bytes]:
    """Words and states for the frequency and first slot of every element, in whole runs."""
    frequency, first = _runs(frequencies), _runs(firsts)
    state = np.full(LANES, STATE_MIN, np.uint64)
    words: list[Array] = []
    for f, c in zip(frequency[::-1], first[::-1], strict=True):
        full = state >= f << np.uint64(31 - bits)
        words.append(state[full].astype("<u2"))
        state = np.where(full, state >> np.uint64(16), state)
        state = (state // f << np.uint64(bits)) + state % f + c
    return b"".join(w.tobytes() for w in reversed(words)), state.astype("<u4").tobytes()


class _RansDecoder:
    """Lanes that read a stream of words; `slots` and `step` in turn for every run."""

    def __init__(self, states: memoryview, words: memoryview, bits: int) -> None:
        self._state = np.frombuffer(states, "<u4").astype(np.uint64)
        self._words = np.frombuffer(words, "<u2").astype(np.uint64)
        self._bits, self._at = np.uint64(bits), 0
        if (self._state < STATE_MIN).any() or (self._state >= 1 << 31).any():
            raise Damaged("a kernel payload starts a lane outside its range")

    def slots(self) -> Array:
        return self._state & ((np.uint64(1) << self._bits) - np.uint64(1))

    def step(self, frequency: Array, offset: Array) -> None:
        state = frequency * (self._state >> self._bits) + offset
        empty = state < STATE_MIN
        taken = self._words[self._at : self._at + int(empty.sum())]
        self._at += int(empty.sum())
        if self._at > len(self._words):
            raise Damaged("the words of a kernel payload end too early")
        state[empty] = state[empty] << np.uint64(16) | taken
        self._state = state

    def finish(self) -> None:
        if self._at != len(self._words) or (self._state != STATE_MIN).any():
            raise Damaged("a kernel payload does not end where it should")


def _decode_symbols(parts: Parts, model: Model, groups: Array) -> Array:
    """Symbols of `groups.size` elements, in whole runs."""
    rans = _RansDecoder(parts.symbol_states, parts.symbol_words, SCALE_BITS)
    slots = np.stack([np.repeat(np.arange(SYMBOLS), row) for row in model.frequencies])
    frequencies, firsts = model.frequencies.astype(np.uint64), model.firsts.astype(np.uint64)
    out = np.zeros((len(groups) // LANES, LANES), np.uint64)
    for row, group in zip(out, _runs(groups), strict=True):
        slot = rans.slots()
        symbol = slots[group, slot]
        rans.step(frequencies[group, symbol], slot - firsts[group, symbol])
        row[LANE_ORDER] = symbol
    rans.finish()
    return out.ravel()


def _decode_flags(parts: Parts, model: Model, groups: Array) -> Array:
    rans = _RansDecoder(parts.flag_states, parts.flag_words, FLAG_BITS)
    out = np.zeros((len(groups) // LANES, LANES), bool)
    same = model.same.astype(np.uint64)
    for row, group in zip(out, _runs(groups), strict=True):
        slot, p = rans.slots(), same[group]
        differs = slot >= p
        rans.step(np.where(differs, np.uint64(FLAG_SCALE) - p, p), np.where(differs, slot - p, slot))
        row[LANE_ORDER] = differs
    rans.finish()
    return out.ravel()


# ---- a block


def _pad(values: Array, fill: int = 0) -> Array:
    return np.concatenate([values, np.full(padded(len(values)) - len(values), fill, values.dtype)])


def _sample(z: Array, width: int) -> tuple[bool, int]:
    """Whether the block is sparse, and how many leading bits a token should hold."""
    step = len(z) // 32
    seen = np.concatenate([z[piece * step : piece * step + LANES] for piece in range(32)])
    top = 2 if width == 2 and 4 * int((seen >= 1024).sum()) <= len(seen) else top_most(width)
    return 2 * int((seen == 0).sum()) > len(seen), top


def _counts(contexts: Array, symbols: Array) -> Array:
    found = np.bincount(contexts.astype(np.int64) * SYMBOLS + symbols.astype(np.int64), minlength=256 * SYMBOLS)
    return found.reshape(256, SYMBOLS)


def _model(counts: Array, stride: int, symbols: Array, *, sparse: bool) -> Model:
    starts, rows = twin_model.group(counts, stride)
    same = []
    for row in rows:
        total = int(row.sum())
        same.append(min(max((int(row[0]) * FLAG_SCALE + total // 2) // total, 1), FLAG_SCALE - 1) if total else 1 << 14)
        if sparse:
            row[0] = 0
        if stride > 1:
            others = symbols[symbols != 0]
            present = np.arange(int(others.min()), int(others.max()) + 1) if len(others) else []
            row[present] = np.maximum(row[present], 1)
            row[0] = max(int(row[0]), int((symbols == 0).any()))
    return Model(starts, np.stack([twin_model.scale(row) for row in rows]), np.array(same))


def encode(
    block: Buffer, element: int, tokens: bool, source: int, base: Buffer | None, sibling: Buffer | None,
    sibling_digest: bytes | None, limit: int,
) -> bytes | None:  # fmt: skip
    """The block's payload, None when it would not be shorter than `limit`. As `_kernel.encode`."""
    words, width = Words(element), width_of(element)
    values = words.of(block)
    count = len(values)
    if count == 0 or count > ELEMENTS_MOST:
        return None
    of_base = words.of(base) if base is not None else None
    of_sibling = words.of(sibling) if sibling is not None else None
    contexts = _contexts(words, source, of_base, of_sibling, count)
    top = flags = 0
    flag_words = flag_states = b""
    differs = np.ones(count, bool)
    if tokens:
        z = words.difference(values, of_base if of_base is not None else np.zeros_like(values))
        sparse, top = _sample(z, width)
        if sparse:
            flags, differs = SPARSE, z != 0
        symbols, raw_bits, raw = _tokens(z[differs], words.bits, top)
        byte_stream, bit_stream = _put_raw(raw, raw_bits)
    else:
        unsigned = width > 1 and not words.negative(values).any()
        flags = UNSIGNED * unsigned
        symbols, byte_stream, bit_stream = _split(words, values, unsigned=unsigned)
    stride = 1
    while count // stride > COUNTED:
        stride *= 2
    counted = np.arange(count) // LANES % stride == 0
    if flags & SPARSE:
        counts = _counts(contexts[differs], symbols)
        total = np.bincount(contexts[counted], minlength=256) * stride
        counts[:, 0] += np.where(total, np.maximum(total - counts.sum(axis=1), 0), 0)
        stride = 1
    else:
        counts = _counts(contexts[counted], symbols[counted])
    model = _model(counts, stride, symbols, sparse=bool(flags & SPARSE))
    groups = model.groups_of(contexts)
    if flags & SPARSE:
        same, differ = model.same[_pad(groups)], _pad(differs)
        flag_words, flag_states = _rans_encode(
            np.where(differ, FLAG_SCALE - same, same), np.where(differ, same, 0), FLAG_BITS
        )
    chosen = _pad(groups[differs]), _pad(symbols, int(np.argmax(model.frequencies[0]))).astype(np.int64)
    symbol_words, symbol_states = _rans_encode(model.frequencies[chosen], model.firsts[chosen], SCALE_BITS)
    table = twin_model.write(model, alphabet(element, top), sparse=bool(flags & SPARSE))
    flags |= SIBLING if sibling_digest is not None else 0
    header = Header(
        element, top, flags, source, len(model.starts), len(table), len(symbols), len(byte_stream), len(bit_stream),
        len(symbol_words) // 2, len(flag_words) // 2,
    )  # fmt: skip
    payload = b"".join([
        header.pack(), sibling_digest or b"", bytes(block[count * width :]), byte_stream, bit_stream, table,
        flag_words, symbol_words, flag_states, symbol_states,
    ])  # fmt: skip
    return payload if len(payload) < limit else None


def decode(payload: Buffer, length: int, base: Buffer | None, sibling: Buffer | None) -> bytes:
    """The block of `length` bytes; `base` and `sibling` have that length too.

    Raises:
        Damaged: for anything that no encoder writes, and for a reference that is needed and None.
    """
    parts = Parts.of(memoryview(payload), length)
    header = parts.header
    if (header.source & BASE_SOURCE and base is None) or (header.source & SIBLING_SOURCE and sibling is None):
        raise Damaged("a kernel payload needs another block, and none was given")
    words, count = Words(header.element), parts.count
    model = twin_model.read(
        parts.table, header.groups, alphabet(header.element, header.top), sparse=header.sparse
    )
    of_base = words.of(base) if base is not None else np.zeros(count, np.uint64)
    of_sibling = words.of(sibling) if sibling is not None else None
    source = header.source if header.groups > 1 else NO_SOURCE
    groups = model.groups_of(_contexts(words, source, of_base, of_sibling, count))
    differs = np.ones(count, bool)
    if header.sparse:
        found = _decode_flags(parts, model, _pad(groups))
        differs = found[:count]
        if found[count:].any() or int(differs.sum()) != header.coded:
            raise Damaged("the flags of a kernel payload are not as many as it says")
    symbols = _decode_symbols(parts, model, _pad(groups[differs]))[: header.coded]
    if header.top == 0:
        out = _join(words, parts, symbols)
    else:
        raw_bits = _token_raw_bits(symbols, words.bits, header.top)
        z = np.zeros(count, np.uint64)
        z[differs] = _token_values(symbols, raw_bits, _get_raw(parts, raw_bits), words.bits, header.top)
        out = words.undo_difference(z, of_base)
    return out.astype(f"<u{width_of(header.element)}").tobytes() + bytes(parts.tail)


__all__ = ["SCALE", "decode", "encode"]
