"""Codec RAW: the block itself (cas/spec/codecs.md, Raw)."""

from __future__ import annotations

from gpu_train_cas.errors import Damaged


def decode(payload: bytes | memoryview, length: int) -> bytes | memoryview:
    """The payload, which is the block.

    Raises:
        Damaged: when it is not `length` bytes.
    """
    if len(payload) != length:
        raise Damaged(f"a raw payload of {len(payload)} bytes where {length} are due")
    return payload
