"""The words of the codecs: the numbers that frames hold, a block as stored, and who takes part in a race."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol


class Codec(IntEnum):
    """How a frame's payload encodes its block. The numbers are in frames: never reuse one."""

    RAW = 0
    ZSTD = 1
    FLOAT = 2
    DELTA = 3
    """Against a base block, a sibling block, or both."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A block as a frame stores it; `payload` is never longer than the block.

    Attributes:
        uses_base, uses_sibling: which of the blocks that were offered it takes to decode it.
    """

    codec: Codec
    payload: bytes | memoryview
    uses_base: bool = False
    uses_sibling: bool = False


class Entrant(Protocol):
    """A codec that takes part in the race for a block. Called from many threads at once."""

    codec: Codec

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
        """A payload for the block that is shorter than `limit` bytes, or None when that is unlikely.

        `dtype` is the element type where the block is part of a tensor, "" where nothing is known.
        A quick sample may decide; the caller checks the length and decodes what it keeps.
        """

    def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
        """The block of `length` bytes.

        Memory stays within a small multiple of `length`, whatever the payload claims.

        Raises:
            Damaged: for every payload that does not decode to exactly `length` bytes.
        """
