"""One file's ordered list of blocks, its size and digest, and where its tensors lie."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import lt
from typing import Any, NamedTuple, Self

import msgpack

from gpu_train_cas.digest import DIGEST_BYTES, HOLE, Digest, Kind, digest_of
from gpu_train_cas.errors import Damaged, TooNew
from gpu_train_cas.formats import Tensor

VERSION = 1
_UINT64 = "Q"


class BlockRef(NamedTuple):
    """One block of a file: its digest (or HOLE), and the bytes [start, end) of the file that it is."""

    digest: Digest
    start: int
    end: int


class Manifest:
    """A file's blocks, found by offset in logarithmic time.

    `ends[i]` is the file offset where block i ends (64 bits each), `digests` the 32-byte names one after
    another, so that opening a file of 10 GiB reads about 400 KB and builds nothing per block.
    """

    __slots__ = ("digest", "digests", "ends", "format", "size_bytes", "tensors")

    def __init__(
        self, size_bytes: int, digest: Digest, digests: bytes, ends: Iterable[int],
        format: str = "", tensors: Sequence[Tensor] = (),
    ) -> None:  # fmt: skip
        self.size_bytes = size_bytes
        self.digest = digest
        self.digests = digests
        self.ends = ends if isinstance(ends, array) else array(_UINT64, ends)
        self.format = format
        self.tensors = tuple(tensors)

    def __len__(self) -> int:
        return len(self.ends)

    def block(self, index: int) -> BlockRef:
        """The block at that place."""
        at = index * DIGEST_BYTES
        start = self.ends[index - 1] if index else 0
        return BlockRef(Digest(self.digests[at : at + DIGEST_BYTES]), start, self.ends[index])

    def covering(self, start: int, end: int) -> Iterator[BlockRef]:
        """The blocks that hold the bytes [start, end) of the file, in order; empty when end <= start."""
        end = min(end, self.size_bytes)
        index = bisect_right(self.ends, start) if start < end else len(self)
        while index < len(self):
            ref = self.block(index)
            if ref.start >= end:
                return
            yield ref
            index += 1

    def blocks(self) -> Iterator[BlockRef]:
        """All blocks in order."""
        return self.covering(0, self.size_bytes)

    def stored_digests(self) -> set[Digest]:
        """The names of all blocks that must be in the store (holes are not)."""
        cut = range(0, len(self.digests), DIGEST_BYTES)
        return {Digest(self.digests[i : i + DIGEST_BYTES]) for i in cut} - {HOLE}

    def tensor_at(self, offset: int) -> Tensor | None:
        """The tensor whose bytes include that offset, if any."""
        starts = [t.offset for t in self.tensors]
        found = self.tensors[bisect_right(starts, offset) - 1] if starts and offset >= starts[0] else None
        return found if found is not None and offset < found.offset + found.length else None

    def encode(self) -> tuple[Digest, bytes]:
        """The manifest's name and bytes."""
        row = [
            VERSION, self.size_bytes, self.digest, self.digests, _little(self.ends).tobytes(), self.format,
            [[t.name, t.dtype, list(t.shape), t.offset, t.length] for t in self.tensors],
        ]  # fmt: skip
        data: bytes = msgpack.packb(row, unicode_errors="surrogateescape")
        return digest_of(data, Kind.MANIFEST), data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a manifest back.

        Raises:
            Damaged: for bytes that are no manifest, or one whose ends do not rise to the size.
            TooNew: for a later version.
        """
        try:
            row: list[Any] = msgpack.unpackb(data, unicode_errors="surrogateescape")
            if row[0] != VERSION:
                raise TooNew(f"a manifest of version {row[0]}: this gpu-train reads {VERSION}; install a newer one")
            _, size, digest, digests, raw, format, tensors = row[:7]
            ends = array(_UINT64)
            ends.frombytes(raw)
            ends = _little(ends)
            if len(digests) != len(ends) * DIGEST_BYTES or len(digest) != DIGEST_BYTES:
                raise ValueError("as many digests as ends are needed")
            rising = not ends or (ends[0] > 0 and all(map(lt, ends, ends[1:])))
            if not rising or (ends[-1] if ends else 0) != size:
                raise ValueError("the blocks do not add up to the file")
            table = [Tensor(n, d, tuple(s), o, ln) for n, d, s, o, ln in tensors]
        except (ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as e:
            raise Damaged(f"a manifest cannot be read: {e!r}") from e
        return cls(size, digest, digests, ends, format, table)


def _little(numbers: array[int]) -> array[int]:
    """The numbers with their bytes in the order of the spec, or back: only a big-endian machine has to turn them."""
    if sys.byteorder == "little":
        return numbers
    turned = numbers[:]
    turned.byteswap()
    return turned
