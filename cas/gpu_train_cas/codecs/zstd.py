"""Codec ZSTD: one Zstandard frame with its content size (cas/spec/codecs.md, Zstd).

Two settings share the work, and a sample of the data says which one:

- `level 3`, for text and other bytes that repeat;
- `entropy`, for bytes with a skewed histogram and nothing that repeats, such as exponents: a hash table of
  64 entries and 7-byte matches find next to nothing, so that nearly all time goes to Huffman coding.
  On the exponents of normally distributed weights it is three times as fast as level 1 and 9 % smaller,
  because level 1 spends bits on accidental matches.
"""

from __future__ import annotations

import threading

import zstandard

from gpu_train_cas.codecs.codec import Codec
from gpu_train_cas.errors import Damaged

LEVEL = 3
SAMPLE_SLICES = 4
SLICE_BYTES = 4096
WORTH = 0.98
"""A sample that keeps more than this share of its size is taken as incompressible."""
MARGIN = 1.05
"""A sample that promises up to this much more than the limit is still worth a try."""
MAGIC = b"\x28\xb5\x2f\xfd"


class _Contexts(threading.local):
    """One set of (de)compressors per thread: zstandard's objects must not be shared while in use."""

    def __init__(self) -> None:
        entropy = zstandard.ZstdCompressionParameters(
            window_log=19, hash_log=6, chain_log=6, search_log=1, min_match=7, target_length=0,
            strategy=zstandard.STRATEGY_FAST, write_content_size=True,
        )  # fmt: skip
        self.level = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)
        self.entropy = zstandard.ZstdCompressor(compression_params=entropy)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def squeeze(data: memoryview, limit: int) -> bytes | None:
    """`data` as one frame of fewer than `limit` bytes; None when a sample says that it will not be.

    The setting is the one that did better on the sample. Incompressible data costs the sample only.
    """
    sample = _sample(data)
    settings = (_contexts.level, _contexts.entropy)
    tried = [compressor.compress(sample) for compressor in settings]
    best = 0 if len(tried[0]) <= len(tried[1]) else 1
    if len(sample) == len(data):
        payload = tried[best]
    else:
        estimate = len(tried[best]) / len(sample)
        if estimate > WORTH or estimate * len(data) > limit * MARGIN:
            return None
        payload = settings[best].compress(data)
    return payload if len(payload) < limit else None


def squeeze_skewed(data: memoryview, limit: int) -> bytes | None:
    """As `squeeze`, for bytes whose histogram alone matters: no sample, the entropy setting decides.

    It runs through noise at several GB/s, so that a sample would save nothing.
    """
    payload = _contexts.entropy.compress(data)
    return payload if len(payload) < min(limit, WORTH * len(data)) else None


def _sample(data: memoryview) -> bytes | memoryview:
    if len(data) <= SAMPLE_SLICES * SLICE_BYTES:
        return data
    step = (len(data) - SLICE_BYTES) // (SAMPLE_SLICES - 1)
    return b"".join(data[i * step : i * step + SLICE_BYTES] for i in range(SAMPLE_SLICES))


def decompress(payload: bytes | memoryview, length: int) -> bytes:
    """The content of a frame, which must be `length` bytes by its header before anything is allocated.

    Raises:
        Damaged: for anything else than one whole frame of that length.
    """
    if bytes(payload[:4]) != MAGIC:
        raise Damaged("a zstd payload does not start with a frame")
    try:
        claimed = zstandard.frame_content_size(payload)
        if claimed != length:
            raise Damaged(f"a zstd frame claims {claimed} bytes where {length} are due")
        data = _contexts.decompressor.decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise Damaged(f"a zstd payload cannot be decoded: {e}") from e
    if len(data) != length:
        raise Damaged(f"a zstd payload holds {len(data)} bytes where {length} are due")
    return data


class Zstd:
    """The entrant for any bytes. Without `sampled` it always tries: for objects, which are few and short."""

    codec = Codec.ZSTD
    proves = False

    def __init__(self, *, sampled: bool = True) -> None:
        self._sampled = sampled

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
        """A frame shorter than `limit`, or None where a sample promises none."""
        return squeeze(memoryview(block), limit) if self._sampled else _contexts.level.compress(block)

    def decode(self, payload: bytes | memoryview, length: int) -> bytes:
        """See `decompress`."""
        return decompress(payload, length)
