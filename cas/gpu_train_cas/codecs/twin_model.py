"""The numpy twin's model: context groups and frequencies, scaled and serialised (cas/spec/codecs.md, Tables)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_train_cas.codecs.payload import FLAG_BITS, SCALE_BITS, SYMBOLS
from gpu_train_cas.errors import Damaged

SCALE = 1 << SCALE_BITS
FLAG_SCALE = 1 << FLAG_BITS
GROUPS_MADE = 8

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Model:
    """Where groups start, each group's frequencies (a row of 256) and, where sparse, its `same` of 32768."""

    starts: list[int]
    frequencies: Array
    same: Array

    @property
    def firsts(self) -> Array:
        """Each symbol's first slot, by group."""
        return np.cumsum(self.frequencies, axis=1) - self.frequencies

    def groups_of(self, contexts: Array) -> Array:
        """The group of each context byte."""
        return groups_of(self.starts, contexts)


def groups_of(starts: list[int], contexts: Array) -> Array:
    """The group of each context byte, by the groups' first contexts."""
    return np.searchsorted(np.array(starts[1:]), contexts, side="right")


def scale(counts: Array) -> Array:
    """Frequencies that add up to 4096 for the counts of 256 symbols."""
    total, used = int(counts.sum()), np.flatnonzero(counts)
    frequency = np.zeros(SYMBOLS, np.int64)
    if len(used) < 2:
        last = int(used[0]) if len(used) else 0
        frequency[last], frequency[0 if last else 1] = SCALE - 1, 1
        return frequency
    frequency[used] = np.clip((counts[used] * SCALE + total // 2) // total, 1, SCALE - 1)
    over = int(frequency.sum()) - SCALE
    if over < 0:
        frequency[np.argmax(frequency)] -= over
    while over > 0:
        largest = np.argmax(frequency)
        take = min(int(frequency[largest]) // 8 + 1, over)
        frequency[largest] -= take
        over -= take
    return frequency


# ---- serialised


class _Bits:
    """A bit sequence, lowest bits first."""

    def __init__(self, data: bytes | memoryview = b"") -> None:
        self.value, self.at, self.end = int.from_bytes(data, "little"), 0, 8 * len(data)

    def put(self, value: int, bits: int) -> None:
        self.value |= value << self.at
        self.at += bits

    def get(self, bits: int) -> int:
        if self.end - self.at < bits:
            raise Damaged("the tables of a kernel payload end too early")
        value = self.value >> self.at & ((1 << bits) - 1)
        self.at += bits
        return value


def write(model: Model, symbols: int, *, sparse: bool) -> bytes:
    """The table part of a payload."""
    bits = _Bits()
    for group in range(len(model.starts)):
        if sparse:
            bits.put(int(model.same[group]), FLAG_BITS)
        _put_frequencies(bits, [int(f) for f in model.frequencies[group][:symbols]])
    return bytes(model.starts[1:]) + bits.value.to_bytes((bits.at + 7) // 8, "little")


def _put_frequencies(bits: _Bits, frequencies: list[int]) -> None:
    at = 0
    while at < len(frequencies):
        if frequencies[at]:
            length = frequencies[at].bit_length()
            bits.put(length, 4)
            bits.put(frequencies[at] - (1 << (length - 1)), length - 1)
            at += 1
            continue
        run = next((i for i, f in enumerate(frequencies[at:]) if f), len(frequencies) - at)
        length = run.bit_length() - 1
        bits.put(0, 4)
        bits.put(length, 4)
        bits.put(run - (1 << length), length)
        at += run


def read(data: memoryview, groups: int, symbols: int, *, sparse: bool) -> Model:
    """The model in a table part.

    Raises:
        Damaged: for tables that do not add up.
    """
    starts = [0, *data[: groups - 1]]
    if len(data) < groups - 1 or any(a >= b for a, b in pairwise(starts)):
        raise Damaged("the context groups of a kernel payload do not ascend")
    bits = _Bits(data[groups - 1 :])
    frequencies, same = np.zeros((groups, SYMBOLS), np.int64), np.zeros(groups, np.int64)
    for group in range(groups):
        if sparse:
            same[group] = bits.get(FLAG_BITS)
            if same[group] == 0:
                raise Damaged("a kernel payload with a flag of probability 0")
        frequencies[group, :symbols] = _get_frequencies(bits, symbols)
    if bits.end - bits.at >= 8:
        raise Damaged("the tables of a kernel payload end too late")
    return Model(starts, frequencies, same)


def _get_frequencies(bits: _Bits, symbols: int) -> list[int]:
    found: list[int] = []
    while len(found) < symbols:
        length = bits.get(4)
        if length:
            found.append((1 << (length - 1)) + bits.get(length - 1))
        else:
            length = bits.get(4)
            if length > 8:
                raise Damaged("a kernel payload with a run of more symbols than there are")
            found += [0] * ((1 << length) + bits.get(length))
    if len(found) != symbols or sum(found) != SCALE or max(found) >= SCALE:
        raise Damaged("the frequencies of a kernel payload do not add up to 4096")
    return found


# ---- groups


def _times_log2(counts: Array) -> Array:
    """Sixteenths of a bit: count * log2(count), by the cubic that the C has, in single precision."""
    value = counts.astype(np.float32)
    bits = value.view(np.uint32)
    whole = ((bits >> 23).astype(np.int32) - 127).astype(np.float32)
    m = ((bits & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000)).view(np.float32)
    log = m * np.float32(0.158248930)
    log = (log + np.float32(-1.051875031)) * m
    log = (log + np.float32(3.047884161)) * m
    log = log + np.float32(-2.153620718) + whole
    return (value * log * np.float32(16)).astype(np.int64)


def _cost(counts: Array, stride: int) -> int:
    used = int(np.count_nonzero(counts))
    total = _times_log2(np.array([counts.sum()], np.uint32))[0]
    return int(total - _times_log2(counts).sum()) + (used * 8 + 16) * 16 // stride


def group(counts: Array, stride: int) -> tuple[list[int], list[Array]]:
    """Merge neighbours among 256 rows of counts into at most 8: each group's first context, and its counts."""
    least = max(int(counts.sum()) // 1024, 64)
    starts: list[int] = []
    rows: list[Array] = []
    filled = 0
    for context in np.flatnonzero(counts.any(axis=1)):
        here = int(counts[context].sum())
        if rows and filled < least:
            rows[-1] = rows[-1] + counts[context]
            filled += here
        else:
            starts.append(int(context))
            rows.append(counts[context])
            filled = here
    if not rows:
        starts, rows = [0], [counts[0]]
    alone = [_cost(row, stride) for row in rows]
    merged = [_cost(a + b, stride) for a, b in pairwise(rows)]
    while len(rows) > 1:
        extra = [m - a - b for m, a, b in zip(merged, alone, alone[1:], strict=False)]
        best = extra.index(min(extra))
        if extra[best] > 0 and len(rows) <= GROUPS_MADE:
            break
        rows[best] = rows[best] + rows[best + 1]
        alone[best] = merged[best]
        del rows[best + 1], alone[best + 1], starts[best + 1], merged[best]
        for i in (best - 1, best):
            if 0 <= i < len(merged):
                merged[i] = _cost(rows[i] + rows[i + 1], stride)
    return [0, *starts[1:]], rows
