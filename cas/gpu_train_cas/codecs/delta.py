"""Codec DELTA, a stand-in in numpy: ordered integers minus those of the base, in byte planes, as one zstd frame."""

from __future__ import annotations

import numpy as np

from gpu_train_cas.codecs import zstd
from gpu_train_cas.codecs.codec import Codec, Encoded
from gpu_train_cas.codecs.float import SHAPES
from gpu_train_cas.errors import Damaged

BASE, SIBLING = 1, 2
_WORDS = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


def _ordered(words, bits):
    sign = words >> np.array(bits - 1, words.dtype)
    mask = np.where(sign != 0, np.array((1 << bits) - 1, words.dtype), np.array(1 << (bits - 1), words.dtype))
    return words ^ mask


def _restored(words, bits):
    top = np.array(1 << (bits - 1), words.dtype)
    mask = np.where(words & top != 0, top, np.array((1 << bits) - 1, words.dtype))
    return words ^ mask


def _planes(words, width, back=False):
    if back:
        return np.ascontiguousarray(words.reshape(width, -1).T).reshape(-1).view(_WORDS[width])
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, width).T)


def _against(data, other, width, flags_sibling):
    bits = 8 * width
    diff = _ordered(data, bits) - _ordered(other, bits)
    top = np.array(bits - 1, data.dtype)
    return (diff << np.array(1, data.dtype)) ^ (np.zeros_like(diff) - (diff >> top))


def propose(block, dtype, base, sibling, limit):
    """The smallest of: against the base, against the sibling."""
    best = None
    width = SHAPES[dtype].width if dtype in SHAPES else 1
    count = len(block) // width
    for flag, other in ((BASE, base), (SIBLING, sibling)):
        if other is None or count == 0 or len(other) < len(block):
            continue
        data, ref = (np.frombuffer(x, _WORDS[width], count) for x in (block, other))
        z = _against(data, ref, width, False)
        packed = zstd._contexts.level.compress(_planes(z, width).tobytes())
        payload = bytes([flag, width]) + packed + bytes(memoryview(block)[count * width :])
        if len(payload) < limit:
            limit = len(payload)
            best = Encoded(Codec.DELTA, payload, flag == BASE, flag == SIBLING)
    return best


def decode(payload, length, base, sibling):
    """The block."""
    view = memoryview(payload)
    if len(view) < 2 or view[0] not in (BASE, SIBLING) or view[1] not in _WORDS:
        raise Damaged("a delta payload of an unknown mode")
    width = view[1]
    other = base if view[0] == BASE else sibling
    if other is None or len(other) < length:
        raise Damaged("a delta without the block that it needs")
    count = length // width
    tail = length - count * width
    body = zstd.decompress(view[2 : len(view) - tail], count * width)
    z = _planes(np.frombuffer(body, np.uint8), width, back=True)
    one = np.array(1, z.dtype)
    diff = (z >> one) ^ (np.zeros_like(z) - (z & one))
    ref = np.frombuffer(other, _WORDS[width], count)
    out = _restored(diff + _ordered(ref, 8 * width), 8 * width)
    return memoryview(out.tobytes() + bytes(view[len(view) - tail :] if tail else b""))
