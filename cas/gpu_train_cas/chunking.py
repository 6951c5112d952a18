"""Where a file is cut into blocks (cas/spec/blocks.md, Chunking).

`extents` divides a file into tensors and opaque runs; `blocks` reads it once, in order, and yields each
block. Where the cuts fall depends on the file's bytes, its layout and its holes alone: never on how much is
read at a time, on threads or on what the store holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from gpu_train_cas.errors import SourceChanged
from gpu_train_cas.formats import ITEM_BYTES, Layout, Source, Tensor

if TYPE_CHECKING:
    from pyfastcdc import FastCDC

BLOCK_BYTES = 1 << 20
"""A block holds at most so many bytes."""
MIN_CUT_BYTES = 64 << 10
"""Where the content decides, a block holds at least so many, but for the last."""
WHOLE_FILE_BYTES = 64 << 10
"""A file of at most so many bytes is one block."""
SMALL_TENSOR_BYTES = 64 << 10
"""A tensor of fewer bytes shares its blocks with its neighbours."""
GAP_BYTES = 4 << 10
"""So many bytes that belong to no tensor (a header) are an extent of their own."""
HOLE_BYTES = 64 << 10
"""A shorter piece of a hole is read as the zeros that it stands for."""
TYPED_SHARE = 0.75
"""A run of small tensors has a type when so much of its bytes has that type."""
WINDOW_BYTES = 4 << 20
"""Opaque bytes are read so many at a time; any size of BLOCK_BYTES or more gives the same cuts."""


class Extent(NamedTuple):
    """The bytes [start, end) of a file that have one meaning.

    Attributes:
        start: byte offset in the file.
        end: byte offset where it ends.
        dtype: the type of its elements, counted from `start`; "" where it has none or is a mixture.
        tensor: index in the layout's tensors; None for an opaque extent.
    """

    start: int
    end: int
    dtype: str
    tensor: int | None


class Span(NamedTuple):
    """A block as cut from a file: its bytes [start, end).

    `data` is memory of its own, of at most BLOCK_BYTES, that nothing writes to again; None for a hole, which
    may have any length.
    """

    start: int
    end: int
    dtype: str
    data: memoryview | None


def extents(size_bytes: int, layout: Layout | None) -> list[Extent]:
    """Divide [0, size_bytes) into tensors and opaque runs, in order and without gaps.

    Linear in the number of tensors (after sorting). Tensors that overlap an earlier one or leave the file
    are treated as if they were not there.
    """
    found: list[Extent] = []
    at = 0
    run: list[Tensor] = []
    if 0 < size_bytes <= WHOLE_FILE_BYTES:
        return [_run(0, size_bytes, [tensor for _, tensor in _in_order(size_bytes, layout)])]
    for index, tensor in _in_order(size_bytes, layout):
        if tensor.length < SMALL_TENSOR_BYTES:
            run.append(tensor)
            continue
        found += _opaque(at, tensor.offset, run)
        run = []
        at = tensor.offset + tensor.length
        found.append(Extent(tensor.offset, at, tensor.dtype, index))
    return found + _opaque(at, size_bytes, run)


def _in_order(size_bytes: int, layout: Layout | None) -> Iterator[tuple[int, Tensor]]:
    tensors = layout.tensors if layout else ()
    at = 0
    for index, tensor in sorted(enumerate(tensors), key=lambda pair: pair[1].offset):
        if tensor.length > 0 and at <= tensor.offset and tensor.offset + tensor.length <= size_bytes:
            at = tensor.offset + tensor.length
            yield index, tensor


def _opaque(start: int, end: int, run: Sequence[Tensor]) -> list[Extent]:
    """The extents between two large tensors: runs of small ones, parted at wide gaps."""
    found: list[Extent] = []
    first = 0  # of the tensors in the run that is being collected
    at = run_start = start
    for index, tensor in enumerate(run):
        if tensor.offset - at >= GAP_BYTES:
            found += [_run(run_start, at, run[first:index]), Extent(at, tensor.offset, "", None)]
            run_start, first = tensor.offset, index
        at = tensor.offset + tensor.length
    if end - at >= GAP_BYTES:
        found += [_run(run_start, at, run[first:]), Extent(at, end, "", None)]
    else:
        found.append(_run(run_start, end, run[first:]))
    return [extent for extent in found if extent.start < extent.end]


def _run(start: int, end: int, tensors: Sequence[Tensor]) -> Extent:
    """An extent over small tensors, with the type of most of its bytes where their elements line up."""
    weights: Counter[str] = Counter()
    for tensor in tensors:
        if (tensor.offset - start) % ITEM_BYTES.get(tensor.dtype, 1) == 0:
            weights[tensor.dtype] += tensor.length
    dtype, weight = weights.most_common(1)[0] if weights else ("", 0)
    return Extent(start, end, dtype if weight >= TYPED_SHARE * (end - start) else "", None)


def blocks(
    source: Source, layout: Layout | None, holes: Sequence[tuple[int, int]] = (), *,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[Span]:  # fmt: skip
    """Read a file from its start to its end and yield its blocks; together they cover it exactly.

    Holds one window and one block at a time, whatever the file's size.

    Args:
        source: the file.
        layout: its tensors, None for a file without.
        holes: ranges (start, end) of the file that were never allocated, in order, not overlapping.
        window_bytes: how much of an opaque run is read at a time, at least BLOCK_BYTES.

    Raises:
        SourceChanged: when the file has become shorter than `source.size_bytes`.
    """
    for extent in extents(source.size_bytes, layout):
        for start, end, is_hole in _parted(extent, holes):
            if is_hole:
                yield Span(start, end, "", None)
            elif extent.dtype or extent.tensor is not None:
                yield from _steps(source, extent, start, end)
            else:
                yield from _cut(source, start, end, window_bytes)


def _parted(extent: Extent, holes: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """The extent's pieces (start, end, whether it is a hole), in order."""
    at = extent.start
    index = bisect_right(holes, at, key=itemgetter(1))
    while index < len(holes) and holes[index][0] < extent.end:
        start, end = max(holes[index][0], at), min(holes[index][1], extent.end)
        if end - start >= HOLE_BYTES:
            if start > at:
                yield at, start, False
            yield start, end, True
            at = end
        index += 1
    if at < extent.end:
        yield at, extent.end, False


def _steps(source: Source, extent: Extent, start: int, end: int) -> Iterator[Span]:
    """Blocks of elements: they end at multiples of BLOCK_BYTES from the extent's own start.

    Numbers that are trained change all over, so that cuts by content would find nothing again; and a delta needs
    a base with the same cuts.
    """
    while start < end:
        stop = min(end, start + BLOCK_BYTES - (start - extent.start) % BLOCK_BYTES)
        yield Span(start, stop, extent.dtype, memoryview(_read(source, start, stop)))
        start = stop


def _cut(source: Source, start: int, end: int, window_bytes: int) -> Iterator[Span]:
    """Blocks of opaque bytes, cut by content.

    Every cut is looked for with BLOCK_BYTES (or all that is left) in view, so it depends on nothing else.
    """
    if end - start <= MIN_CUT_BYTES:
        yield Span(start, end, "", memoryview(_read(source, start, end)))
        return
    view = memoryview(b"")
    while start < end:
        if len(view) < min(BLOCK_BYTES, end - start):
            view = memoryview(_read(source, start, min(end, start + window_bytes)))
        stop = start + next(iter(_cutter().cut_buf(view))).length
        # a copy, since a view of a few KiB would keep the whole window in memory
        yield Span(start, stop, "", memoryview(bytes(view[: stop - start])))
        view = view[stop - start :]
        start = stop


@cache
def _cutter() -> FastCDC:
    from pyfastcdc import FastCDC  # noqa: PLC0415  most checkpoints have no opaque bytes to be cut

    return FastCDC(256 << 10, min_size=MIN_CUT_BYTES, max_size=BLOCK_BYTES, normalized_chunking=1, seed=0)


def _read(source: Source, start: int, end: int) -> bytes:
    data = source.pread(end - start, start)
    if len(data) != end - start:
        raise SourceChanged(
            f"the file shrank while it was read: {end - start} bytes were due at {start}, {len(data)} came;"
            " store it again once nothing writes to it"
        )
    return data
