"""Where a file is cut into blocks (cas/spec/blocks.md, Chunking)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_train_cas.formats import Layout, Source

BLOCK_BYTES = 1 << 20
SMALL_TENSOR_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes [start, end) of a file that have one meaning.

    Attributes:
        start: byte offset in the file.
        end: byte offset where it ends.
        dtype: the type of its elements, "" where it has none or is a mixture.
        tensor: index in the layout's tensors; None for an opaque extent.
    """

    start: int
    end: int
    dtype: str
    tensor: int | None


@dataclass(frozen=True, slots=True)
class Span:
    """A block as cut from a file: the bytes [start, end), with `data` None for a hole (of any length)."""

    start: int
    end: int
    dtype: str
    data: memoryview | None


def extents(size_bytes: int, layout: Layout | None) -> list[Extent]:
    """Divide [0, size_bytes) into tensors and opaque runs."""
    raise NotImplementedError


def blocks(source: Source, layout: Layout | None, holes: Sequence[tuple[int, int]] = ()) -> Iterator[Span]:
    """The blocks of a file in order; together they cover it exactly.

    Raises:
        SourceChanged: when the file is shorter than `source.size_bytes`.
    """
    raise NotImplementedError
