"""Chunking: blocks cover a file exactly, and where they are cut depends on its bytes, layout and holes alone."""

from __future__ import annotations

import hashlib
import io
import zipfile
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_train_cas.chunking import (
    BLOCK_BYTES,
    GAP_BYTES,
    HOLE_BYTES,
    SMALL_TENSOR_BYTES,
    WHOLE_FILE_BYTES,
    Extent,
    Span,
    blocks,
    extents,
)
from gpu_train_cas.digest import digest_of
from gpu_train_cas.errors import SourceChanged
from gpu_train_cas.formats import ITEM_BYTES, BytesSource, Layout, Tensor

KIB, MIB = 1 << 10, 1 << 20


def noise(length: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(length)


def layout_of(*tensors: tuple[int, int] | tuple[int, int, str]) -> Layout:
    """A layout of tensors (offset, length, dtype)."""
    rows = [(*t, "F32")[:3] for t in tensors]
    return Layout("made", tuple(Tensor(f"t{n}", str(d), (), int(o), int(ln)) for n, (o, ln, d) in enumerate(rows)))


def cut(
    data: bytes, layout: Layout | None = None, holes: tuple[tuple[int, int], ...] = (), window: int = 4 * MIB
) -> list[Span]:
    """The spans of a file, checked to cover it with the right bytes."""
    spans = list(blocks(BytesSource(data), layout, holes, window_bytes=window))
    at = 0
    for span in spans:
        assert span.start == at < span.end
        at = span.end
        if span.data is not None:
            assert span.end - span.start == len(span.data) <= BLOCK_BYTES
            assert span.data == data[span.start : span.end]
    assert at == len(data)
    return spans


def ends(spans: list[Span]) -> list[int]:
    return [span.end for span in spans]


def names(spans: list[Span]) -> set[bytes]:
    return {digest_of(span.data) for span in spans if span.data is not None}


# ---- extents


def test_an_empty_file_has_no_extents_and_no_blocks() -> None:
    assert extents(0, None) == []
    assert cut(b"") == []
    assert cut(b"", Layout("npz", ())) == []


def test_a_file_without_tensors_is_one_opaque_extent() -> None:
    assert extents(10, None) == [Extent(0, 10, "", None)]
    assert extents(10, Layout("torch", ())) == [Extent(0, 10, "", None)]


def test_large_tensors_are_extents_of_their_own() -> None:
    layout = layout_of((100, SMALL_TENSOR_BYTES), (70_000, MIB, "BF16"))
    assert extents(2 * MIB, layout) == [
        Extent(0, 100, "", None),
        Extent(100, 100 + SMALL_TENSOR_BYTES, "F32", 0),
        Extent(100 + SMALL_TENSOR_BYTES, 70_000, "", None),
        Extent(70_000, 70_000 + MIB, "BF16", 1),
        Extent(70_000 + MIB, 2 * MIB, "", None),
    ]


def test_small_tensors_share_an_extent_with_their_type() -> None:
    layout = layout_of((800, 20_000), (20_800, 30_000), (50_864, 40_000))
    assert extents(90_864, layout) == [Extent(0, 90_864, "F32", None)]


def test_a_run_of_mixed_types_has_none_and_a_few_others_do_not_matter() -> None:
    mixed = layout_of((0, 1000, "F32"), (1000, 1000, "I64"))
    assert extents(2000, mixed) == [Extent(0, 2000, "", None)]
    mostly = layout_of((0, 8, "I64"), (8, 4000, "F32"), (4008, 8, "I64"))
    assert extents(4016, mostly) == [Extent(0, 4016, "F32", None)]


def test_a_run_whose_elements_do_not_line_up_with_its_start_has_no_type() -> None:
    assert extents(4003, layout_of((3, 4000))) == [Extent(0, 4003, "", None)]


def test_a_long_header_is_parted_from_the_small_tensors_behind_it() -> None:
    layout = layout_of((GAP_BYTES, 40_000), (GAP_BYTES + 40_000, 40_000))
    assert extents(GAP_BYTES + 80_000, layout) == [
        Extent(0, GAP_BYTES, "", None),
        Extent(GAP_BYTES, GAP_BYTES + 80_000, "F32", None),
    ]
    tail = layout_of((0, 64_000))
    assert extents(64_000 + GAP_BYTES, tail) == [
        Extent(0, 64_000, "F32", None),
        Extent(64_000, 64_000 + GAP_BYTES, "", None),
    ]


def test_tensors_out_of_order_and_impossible_ones_do_no_harm() -> None:
    layout = layout_of((500_000, 100_000), (0, 200_000), (150_000, 100_000), (900_000, 200_000), (5, 0))
    assert extents(MIB - 1, layout) == [
        Extent(0, 200_000, "F32", 1),
        Extent(200_000, 500_000, "", None),
        Extent(500_000, 600_000, "F32", 0),
        Extent(600_000, MIB - 1, "", None),
    ]


def test_hundreds_of_thousands_of_tensors_are_divided_in_one_pass() -> None:
    """Comparing each with all others would take an hour; the suite's timeout stands guard."""
    count = 200_000
    small = Layout("made", tuple(Tensor("", "F32", (), n * 64, 40) for n in range(count)))
    assert extents(count * 64, small) == [Extent(0, count * 64, "", None)]
    wide = Layout("made", tuple(Tensor("", "F32", (), n * 8192, 40) for n in range(count // 4)))
    assert len(extents(count // 4 * 8192, wide)) == count // 2


tensors = st.lists(
    st.tuples(st.integers(0, 9000), st.integers(0, 90_000), st.sampled_from(["F32", "BF16", "I64", "U8", "Q4_K"])),
    max_size=30,
)  # fmt: skip


@given(parts=tensors, tail=st.integers(0, 200_000))
def test_extents_cover_the_file_and_name_the_tensors(parts: list[tuple[int, int, str]], tail: int) -> None:
    at, placed = 0, []
    for gap, length, dtype in parts:
        placed.append((at + gap, length, dtype))
        at += gap + length
    size, layout = at + tail, layout_of(*placed)
    found = extents(size, layout)
    assert [e.start for e in found] == [0, *(e.end for e in found)][:-1] if found else size == 0
    assert not found or found[-1].end == size
    large = [(t.offset, t.offset + t.length, t.dtype, n) for n, t in enumerate(layout.tensors)
             if t.length >= SMALL_TENSOR_BYTES and size > WHOLE_FILE_BYTES]  # fmt: skip
    assert [(e.start, e.end, e.dtype, e.tensor) for e in found if e.tensor is not None] == large


# ---- blocks


def test_tensors_are_cut_at_fixed_steps_from_their_own_start() -> None:
    data = noise(3 * MIB + 500)
    spans = cut(data, layout_of((300, 2 * MIB + 100)))
    assert [(s.start, s.end) for s in spans[:4]] == [
        (0, 300), (300, 300 + MIB), (300 + MIB, 300 + 2 * MIB), (300 + 2 * MIB, 400 + 2 * MIB)
    ]  # fmt: skip
    assert [s.dtype for s in spans[:4]] == ["", "F32", "F32", "F32"]


def test_a_short_file_is_one_block() -> None:
    for length in (1, 1000, 64 * KIB):
        assert ends(cut(noise(length))) == [length]
        assert ends(cut(noise(length), layout_of((length // 2, length // 2)))) == [length]


def test_opaque_blocks_keep_within_their_bounds() -> None:
    spans = cut(noise(20 * MIB))
    lengths = [s.end - s.start for s in spans]
    assert all(64 * KIB <= length <= MIB for length in lengths[:-1])
    assert 128 * KIB < sum(lengths) / len(lengths) < 512 * KIB
    assert ends(cut(bytes(5 * MIB))) == [n * MIB for n in range(1, 6)]


@pytest.mark.parametrize("window", [MIB, MIB + 1, 1_500_000, 3 * MIB, 64 * MIB])
def test_the_cut_does_not_depend_on_how_much_is_read_at_a_time(window: int) -> None:
    data = noise(9 * MIB + 12_345)
    layout = layout_of((5_000_001, 2_000_000), (7_100_000, 10_000))
    holes = ((2 * MIB, 2 * MIB + 200_000),)
    data = data[: 2 * MIB] + bytes(200_000) + data[2 * MIB + 200_000 :]
    assert ends(cut(data, layout, holes, window)) == ends(cut(data, layout, holes))


GEAR = [int.from_bytes(hashlib.md5(bytes([n]) * 64).digest()[:8], "big") for n in range(256)]


def cuts_of_the_spec(data: bytes) -> list[int]:
    """The rules of cas/spec/blocks.md, Chunking, byte by byte."""
    found, start = [], 0
    while start < len(data):
        limit = min(len(data) - start, MIB)
        length, mixed = limit, 0
        for at in range(64 * KIB, limit - limit % 2):
            mixed = ((mixed << 1) + GEAR[data[start + at]]) & (2**64 - 1)
            if mixed & (0x0000D91707537000 if at < min(limit, 256 * KIB) // 2 * 2 else 0x0000D90703537000) == 0:
                length = at
                break
        start += length
        found.append(start)
    return found


@pytest.mark.parametrize("length", [65_536, 65_537, 200_001, 262_145, 2_000_003])
def test_the_cuts_are_the_ones_of_the_spec(length: int) -> None:
    """Others would be correct too, and would dedup nothing that is stored already."""
    data = noise(length, length)
    assert ends(cut(data)) == cuts_of_the_spec(data)


def test_an_insertion_changes_only_blocks_near_it() -> None:
    data = noise(16 * MIB)
    edited = data[: 8 * MIB] + b"inserted" + data[8 * MIB :]
    before, after = cut(data), cut(edited)
    assert len(names(after) - names(before)) <= 3
    assert names(before) - names(after) != set()


def test_typed_runs_are_cut_at_steps_like_tensors() -> None:
    layout = layout_of(*((6 + n * 48_000, 48_000, "F64") for n in range(100)))
    data = noise(6 + 100 * 48_000)
    assert {s.dtype for s in cut(data, layout)} == {""}  # six bytes in front: the elements do not line up
    lined_up = layout_of(*((8 + n * 48_000, 48_000, "F64") for n in range(100)))
    spans = cut(data + b"..", lined_up)
    assert {s.dtype for s in spans} == {"F64"}
    assert [s.start for s in spans] == [i * MIB for i in range(5)]


def safetensors_like(tensor: bytes, header: bytes) -> tuple[bytes, Layout]:
    return header + tensor, layout_of((len(header), len(tensor), "BF16"))


def zip_like(tensor: bytes) -> tuple[bytes, Layout]:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", noise(333, 1))
        archive.writestr("archive/data/0", tensor)
        archive.writestr("archive/version", "3\n")
    data = held.getvalue()
    return data, layout_of((data.index(tensor), len(tensor), "BF16"))


def test_the_same_tensor_in_another_container_gives_the_same_blocks() -> None:
    tensor = noise(3 * MIB + 777)
    first = names(cut(*safetensors_like(tensor, noise(200, 2))))
    second = names(cut(*safetensors_like(tensor, noise(5000, 3))))
    third = names(cut(*zip_like(tensor)))
    assert len(first & second) == len(first & third) == len(second & third) == 4


# ---- holes


def test_a_hole_is_one_span_without_data() -> None:
    data = noise(MIB) + bytes(10 * MIB) + noise(MIB, 1)
    spans = cut(data, holes=((MIB, 11 * MIB),))
    assert [(s.start, s.end) for s in spans if s.data is None] == [(MIB, 11 * MIB)]


def test_a_file_that_is_one_hole_is_not_read() -> None:
    class Unreadable:
        size_bytes = 1 << 40

        def pread(self, length: int, offset: int) -> bytes:
            raise AssertionError("nothing is there to read")

    assert list(blocks(Unreadable(), None, [(0, 1 << 40)])) == [Span(0, 1 << 40, "", None)]


def test_short_pieces_of_holes_are_read_as_zeros() -> None:
    data = noise(100_000) + bytes(HOLE_BYTES - 1) + noise(100_000, 1)
    holes = ((100_000, 100_000 + HOLE_BYTES - 1),)
    assert ends(cut(data, holes=holes)) == ends(cut(data))
    edge = layout_of((100_000 + 1000, 200_000))  # a longer hole, of which the header's piece is short
    data = noise(100_000) + bytes(150_000) + noise(100_000, 1)
    spans = cut(data, edge, ((100_000, 250_000),))
    assert [(s.start, s.end) for s in spans if s.data is None] == [(101_000, 250_000)]


def test_after_a_hole_a_tensor_goes_on_at_its_own_steps() -> None:
    start, length = 4096, 5 * MIB
    hole = (start + MIB + 300_000, start + 3 * MIB + 100_000)
    data = bytearray(noise(start + length))
    data[hole[0] : hole[1]] = bytes(hole[1] - hole[0])
    spans = cut(bytes(data), layout_of((start, length)), (hole,))
    assert [s.end - start for s in spans if s.start >= start] == [
        MIB, MIB + 300_000, 3 * MIB + 100_000, 4 * MIB, 5 * MIB
    ]  # fmt: skip
    assert [s.data is None for s in spans if s.start >= start] == [False, False, True, False, False]


@given(
    edges=st.lists(st.integers(0, 3_000_000), max_size=12, unique=True),
    tensor=st.tuples(st.integers(0, 1_000_000), st.integers(0, 2_000_000)),
)
@settings(max_examples=60, deadline=None)
def test_holes_anywhere_are_covered(edges: list[int], tensor: tuple[int, int]) -> None:
    edges.sort()
    holes = tuple(zip(edges[::2], edges[1::2], strict=False))
    data = bytearray(DATA)
    for start, end in holes:
        data[start:end] = bytes(end - start)
    for span in cut(bytes(data), layout_of((*tensor, "BF16")), holes):
        if span.data is None:
            assert any(start <= span.start and span.end <= end for start, end in holes)
            assert span.end - span.start >= HOLE_BYTES


DATA = noise(3_000_000)


# ---- sources that change


@pytest.mark.parametrize("layout", [None, layout_of((0, 3 * MIB)), layout_of((0, 1000))])
def test_a_file_that_shrinks_is_reported(layout: Layout | None) -> None:
    class Shrunk(BytesSource):
        def __init__(self) -> None:
            super().__init__(noise(3 * MIB - 1))
            self.size_bytes = 3 * MIB

    with pytest.raises(SourceChanged, match="shrank while it was read"):
        list(blocks(Shrunk(), layout))


def test_spans_own_their_memory() -> None:
    """A block must not keep a whole window alive: a pipeline counts what it holds by its blocks."""
    for span in cut(noise(6 * MIB), layout_of((5 * MIB, MIB))):
        assert span.data is not None
        assert len(span.data.obj) == len(span.data)


def test_rising_offsets_within_the_spans() -> None:
    spans = cut(noise(4 * MIB), layout_of((100, 70_000), (80_000, 200), (90_000, 2 * MIB)))
    assert all(a.end == b.start for a, b in pairwise(spans))
    assert all((s.end - s.start) % ITEM_BYTES["F32"] == 0 for s in spans if s.dtype)
