"""The numpy twin's rANS coder: 64 lanes, 16 bits at a time (cas/spec/codecs.md, Symbols and Sparse blocks)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_train_cas.codecs.payload import FLAG_BITS, LANES, SCALE_BITS, STATE_MIN, SYMBOLS, Parts
from gpu_train_cas.codecs.twin_model import FLAG_SCALE, Model
from gpu_train_cas.errors import Damaged

LANE_ORDER = np.arange(LANES).reshape(16, 4).T.ravel()
"""Lane -> the element of a run that it serves."""

Array = NDArray[Any]


# ---- rANS


def _runs(values: Array) -> Array:
    """One row per run of lanes, in lane order."""
    return values.astype(np.uint64).reshape(-1, LANES)[:, LANE_ORDER]


def encode(frequencies: Array, firsts: Array, bits: int) -> tuple[bytes, bytes]:
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


def decode_symbols(parts: Parts, model: Model, groups: Array) -> Array:
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


def decode_flags(parts: Parts, model: Model, groups: Array) -> Array:
    """Which of `groups.size` elements, in whole runs, differ."""
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
