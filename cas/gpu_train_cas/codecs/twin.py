"""The float kernel in numpy: what cas/native does, byte for byte, and far slower.

It reads payloads where no native kernel was built, and every native variant is compared with it. Sections and
names are those of cas/spec/codecs.md, Kernel payload, and of the C. twin_elements.py, twin_rans.py and
twin_model.py are its parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_train_cas.codecs import twin_elements as elements
from gpu_train_cas.codecs import twin_model
from gpu_train_cas.codecs import twin_rans as rans
from gpu_train_cas.codecs.payload import (
    BASE_SOURCE,
    FLAG_BITS,
    GRID_SOURCE,
    LANES,
    NO_SOURCE,
    PREDICTED,
    SCALE_BITS,
    SIBLING,
    SIBLING_SOURCE,
    SPARSE,
    SYMBOLS,
    UNSIGNED,
    Header,
    Parts,
    Prediction,
    alphabet,
    padded,
    top_most,
    width_of,
)
from gpu_train_cas.codecs.twin_elements import Words
from gpu_train_cas.codecs.twin_model import FLAG_SCALE, Model
from gpu_train_cas.errors import Damaged

COUNTED, ELEMENTS_MOST, ZEROS_PAY = 1 << 16, 1 << 22, 50

Array = NDArray[Any]
Buffer = bytes | bytearray | memoryview


def _pad(values: Array, fill: int = 0) -> Array:
    return np.concatenate([values, np.full(padded(len(values)) - len(values), fill, values.dtype)])


def _mostly_same(z: Array, one_in: int) -> bool:
    """Whether more than one in so many of a sample of differences is 0."""
    step = len(z) // 32
    seen = np.concatenate([z[piece * step : piece * step + LANES] for piece in range(32)])
    return one_in * int((seen == 0).sum()) > len(seen)


def _counts(contexts: Array, symbols: Array) -> Array:
    found = np.bincount(contexts.astype(np.int64) * SYMBOLS + symbols.astype(np.int64), minlength=256 * SYMBOLS)
    return found.reshape(256, SYMBOLS)


def _model(counts: Array, stride: int, contexts: Array, symbols: Array, *, sparse: bool) -> Model:
    starts, rows = twin_model.group(counts, stride)
    same = []
    if stride > 1:  # not all were counted: every symbol that occurs needs a place
        found = _counts(twin_model.groups_of(starts, contexts), symbols)
        rows = [np.where(row == 0, found[group] != 0, row) for group, row in enumerate(rows)]
    zeros = np.bincount(twin_model.groups_of(starts, contexts[symbols == 0]), minlength=len(rows))
    for group, row in enumerate(rows):
        total, equal = int(row.sum()), int(row[0]) - int(zeros[group])
        same.append(min(max((equal * FLAG_SCALE + total // 2) // total, 1), FLAG_SCALE - 1) if total else 1 << 14)
        if sparse:
            row[0] = zeros[group]
    return Model(starts, np.stack([twin_model.scale(row) for row in rows]), np.array(same))


def encode(
    block: Buffer, element: int, tokens: bool, source: int, base: Buffer | None, sibling: Buffer | None,
    sibling_digest: bytes | None, prediction: Buffer | None, row: int, first: int, limit: int,
) -> bytes | None:  # fmt: skip
    """The block's payload, None when it would not be shorter than `limit`. As `_kernel.encode`."""
    words, width = Words(element), width_of(element)
    values = words.of(block)
    count = len(values)
    if count == 0 or count > ELEMENTS_MOST:
        return None
    of_base = words.of(base) if base is not None else None
    of_sibling = words.of(sibling) if sibling is not None else None
    if prediction is not None and base is not None and sibling is not None:
        of_base = elements.predicted(Prediction.unpack(memoryview(prediction), count), base, sibling, words)
    contexts = elements.contexts(words, source, of_base, of_sibling, count)
    grid = elements.grid_of(words.contexts(values), row, first) if source == GRID_SOURCE else None
    if grid is not None:
        contexts = elements.grid_contexts(grid, count)
    top = flags = 0
    flag_words = flag_states = b""
    differs = np.ones(count, bool)
    if tokens:
        z = words.difference(values, of_base if of_base is not None else np.zeros_like(values))
        top = top_most(width)
        if _mostly_same(z, 2):
            flags, differs = SPARSE, z != 0
        symbols, raw_bits, raw = elements.tokens(z[differs], words.bits, top)
        byte_stream, bit_stream = elements.put_raw(raw, raw_bits)
    else:
        unsigned = width > 1 and not words.negative(values).any()
        flags = UNSIGNED * unsigned
        if _mostly_same(values, ZEROS_PAY):
            flags, differs = flags | SPARSE, values != 0
        symbols, byte_stream, bit_stream = elements.split(words, values[differs], unsigned=unsigned)
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
    model = _model(counts, stride, contexts[differs], symbols, sparse=bool(flags & SPARSE))
    groups = model.groups_of(contexts)
    if flags & SPARSE:
        same, differ = model.same[_pad(groups)], _pad(differs)
        flag_words, flag_states = rans.encode(
            np.where(differ, FLAG_SCALE - same, same), np.where(differ, same, 0), FLAG_BITS
        )
    chosen = _pad(groups[differs]), _pad(symbols, int(np.argmax(model.frequencies[0]))).astype(np.int64)
    symbol_words, symbol_states = rans.encode(model.frequencies[chosen], model.firsts[chosen], SCALE_BITS)
    table = twin_model.write(model, alphabet(element, top), sparse=bool(flags & SPARSE))
    flags |= (SIBLING if sibling_digest is not None else 0) | (PREDICTED if prediction is not None else 0)
    header = Header(
        element, top, flags, source, len(model.starts), len(table), len(symbols), len(byte_stream), len(bit_stream),
        len(symbol_words) // 2, len(flag_words) // 2,
    )  # fmt: skip
    payload = b"".join([
        header.pack(), sibling_digest or b"", prediction or b"",
        grid.pack() if grid is not None else b"", bytes(block[count * width :]),
        byte_stream, bit_stream, table, flag_words, symbol_words, flag_states, symbol_states,
    ])  # fmt: skip
    return payload if len(payload) < limit else None


def decode(payload: Buffer, length: int, base: Buffer | None, sibling: Buffer | None) -> bytes:
    """The block of `length` bytes; `base` and `sibling` have that length too.

    Raises:
        Damaged: for anything that no encoder writes, and for a reference that is needed and None.
    """
    parts = Parts.of(memoryview(payload), length)
    header = parts.header
    both = header.flags & PREDICTED
    lacks_base = base is None and header.source & BASE_SOURCE | both
    if lacks_base or (sibling is None and header.source & SIBLING_SOURCE | both):
        raise Damaged("a kernel payload needs another block, and none was given")
    words, count = Words(header.element), parts.count
    model = twin_model.read(parts.table, header.groups, alphabet(header.element, header.top), sparse=header.sparse)
    of_base = words.of(base) if base is not None else np.zeros(count, np.uint64)
    of_sibling = words.of(sibling) if sibling is not None else None
    if parts.prediction is not None and base is not None and sibling is not None:
        of_base = elements.predicted(parts.prediction, base, sibling, words)
    source = header.source if header.groups > 1 else NO_SOURCE
    contexts = elements.contexts(words, source, of_base, of_sibling, count)
    if parts.grid is not None:
        contexts = elements.grid_contexts(parts.grid, count)
    groups = model.groups_of(contexts)
    differs = np.ones(count, bool)
    if header.sparse:
        found = rans.decode_flags(parts, model, _pad(groups))
        differs = found[:count]
        if found[count:].any() or int(differs.sum()) != header.coded:
            raise Damaged("the flags of a kernel payload are not as many as it says")
    symbols = rans.decode_symbols(parts, model, _pad(groups[differs]))[: header.coded]
    if header.top == 0:
        out = np.zeros(count, np.uint64)
        out[differs] = elements.join(words, parts, symbols)
    else:
        raw_bits = elements.token_raw_bits(symbols, words.bits, header.top)
        z = np.zeros(count, np.uint64)
        z[differs] = elements.token_values(symbols, raw_bits, elements.get_raw(parts, raw_bits), words.bits, header.top)
        out = words.undo_difference(z, of_base)
    return out.astype(f"<u{width_of(header.element)}").tobytes() + bytes(parts.tail)
