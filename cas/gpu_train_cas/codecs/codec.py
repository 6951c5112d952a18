"""The words of the codecs: the numbers that frames hold, a block as stored, and who takes part in a race."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol


class Codec(IntEnum):
    """How a frame's payload encodes its block. The numbers are in frames: never reuse one."""

    RAW = 0
    ZSTD = 1
    FLOAT = 2
    DELTA = 3


class Role(Enum):
    """What a sibling is to the block that is coded with it."""

    SIZES = "sizes"
    """Its elements tell how large these may be: exp_avg_sq for exp_avg."""
    EARLIER = "earlier"
    """The same place of the tensor before the base: where it was heading."""
    FIRST_MOMENT = "first moment"
    """exp_avg for exp_avg_sq: its squares are what came in last."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A stored block that another is coded with: its name, its bytes, and for a sibling what it is to the other."""

    digest: bytes
    data: bytes | memoryview
    role: Role = Role.SIZES


class Grid(NamedTuple):
    """Where a block lies in its tensor.

    Attributes:
        row: elements per row: the last dimension.
        first: the column of the block's first element.
        is_moment: whether sizes of elements go by rows and columns, as those of Adam's moments do.
    """

    row: int
    first: int
    is_moment: bool = True


@dataclass(frozen=True, slots=True)
class Encoded:
    """A block as a frame stores it; `payload` is never longer than the block.

    Attributes:
        base: the digest of the block that a DELTA is decoded against, for the frame's header.
        sibling: the digest of another block that decoding needs; it is in the payload too (`sibling_of`).
    """

    codec: Codec
    payload: bytes | memoryview
    base: bytes | None = None
    sibling: bytes | None = None


class Entrant(Protocol):
    """A codec that takes part in the race for a block, with the blocks it refers to. Called from many threads."""

    @property
    def codec(self) -> Codec:
        """What its payloads are; asked after `propose`."""

    @property
    def proves(self) -> bool:
        """Whether `propose` has decoded what it returns, and compared it with the block."""

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | memoryview | None:
        """A payload for the block that is shorter than `limit` bytes, or None when that is unlikely.

        `dtype` is the element type where the block is part of a tensor, "" where nothing is known.
        A quick sample may decide; the caller checks the length, and decodes what it keeps unless the entrant did.

        Raises:
            Damaged: by one that decodes itself, for a payload that does not come back as the block.
        """

    def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
        """The block of `length` bytes.

        Memory stays within a small multiple of `length`, whatever the payload claims.

        Raises:
            Damaged: for every payload that does not decode to exactly `length` bytes.
        """
