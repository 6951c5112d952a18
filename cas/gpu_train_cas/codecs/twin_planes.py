"""Elements to byte planes and back, in numpy: what cas/native/planes.c does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | bytearray | memoryview

SLICE_BYTES = 256 << 10
"""Elements are turned so many bytes at a time, to stay in the second-level cache."""
KEPT_BYTES = 1 << 20
"""A thread keeps scratch buffers of up to this length."""

_WORDS: dict[int, np.dtype[Any]] = {w: np.dtype(f"<u{w}") for w in (2, 4, 8)}

Bytes = NDArray[np.uint8]
Words = NDArray[Any]


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


def split(block: Buffer, width: int, rotated: bool) -> list[memoryview]:
    """As `kernel.split`, in memory that the thread's next call reuses."""
    count = len(block) // width
    words = np.frombuffer(block, _WORDS[width], count)
    bits = 8 * width
    planes = _scratch.take("planes", count * width).reshape(width, count)
    step = SLICE_BYTES // width
    turned, shifted = (_scratch.take(name, SLICE_BYTES).view(words.dtype) for name in ("turned", "shifted"))
    for at in range(0, count, step):
        part = words[at : at + step]
        into, low, high = planes[:, at : at + step], turned[: len(part)], shifted[: len(part)]
        if rotated:
            np.right_shift(part, bits - 1, out=high)
            np.add(part, part, out=low)  # as a shift left by one, but faster
            part = np.bitwise_or(low, high, out=low)
        np.copyto(into[0], part, casting="unsafe")
        for index in range(1, width):
            np.right_shift(part, 8 * index, out=high)
            np.copyto(into[index], high, casting="unsafe")
    return [plane.data for plane in planes]


def join(planes: Sequence[Buffer], count: int, rotated: bool, tail: memoryview) -> memoryview:
    """As `kernel.join`."""
    width = len(planes)
    out = np.empty(count * width + len(tail), np.uint8)
    words = out[: count * width].view(_WORDS[width])
    step = SLICE_BYTES // width
    scratch = _scratch.take("shifted", SLICE_BYTES).view(words.dtype)
    arrays = [np.frombuffer(plane, np.uint8) for plane in planes]
    for at in range(0, count, step):
        part = words[at : at + step]
        _merge([plane if len(plane) == 1 else plane[at : at + step] for plane in arrays], part)
        if rotated:
            sign = np.left_shift(part, 8 * width - 1, out=scratch[: len(part)])
            np.right_shift(part, 1, out=part)
            np.bitwise_or(part, sign, out=part)
    out.data[count * width :] = tail
    return out.data


def _merge(planes: list[Bytes], out: Words) -> None:
    if len(planes) == 8:  # storing every eighth byte costs less than seven shifts of all
        for index, plane in enumerate(planes):
            out.view(np.uint8)[index::8] = plane
        return
    np.copyto(out, planes[-1])
    for plane in reversed(planes[:-1]):
        np.left_shift(out, 8, out=out)
        np.bitwise_or(out, plane, out=out)
