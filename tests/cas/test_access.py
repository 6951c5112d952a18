"""What is read ahead for which way of reading a file."""

from __future__ import annotations

from gpu_train_cas.access import MAX_RUNS, Access, Span
from gpu_train_cas.digest import Digest
from gpu_train_cas.formats import Tensor
from gpu_train_cas.manifest import Manifest

MIB = 1 << 20
WINDOW = 8 * MIB


def manifest(size: int, tensors: tuple[tuple[int, int], ...] = ()) -> Manifest:
    table = [Tensor(f"t{at}", "F32", ((end - at) // 4,), at, end - at) for at, end in tensors]
    return Manifest(size, Digest(bytes(32)), bytes(32), [size], tensors=table)


def covered(spans: list[Span]) -> list[tuple[int, int]]:
    """Spans in MiB, those that touch joined."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((s.start // MIB, s.end // MIB) for s in spans):
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def test_reading_front_to_back_looks_ahead_of_itself_and_names_no_byte_twice() -> None:
    access, end = Access(manifest(100 * MIB)), 0
    given: list[Span] = []
    for start in range(0, 100 * MIB, MIB):
        spans = access.note(start, start + MIB, WINDOW)
        assert all(s.start >= end and s.end <= start + MIB + WINDOW for s in spans)
        end = max([end, *(s.end for s in spans)])
        given += spans
    assert covered(given) == [(1, 100)]
    assert sum(s.end - s.start for s in given) == 99 * MIB


def test_requests_that_come_out_of_order_are_one_run() -> None:
    access = Access(manifest(100 * MIB))
    given: list[Span] = []
    for base in range(0, 40, 4):
        for at in (2, 0, 3, 1):
            given += access.note((base + at) * MIB, (base + at + 1) * MIB, WINDOW)
    assert covered(given) == [(3, 48)]


def test_small_reads_at_random_want_nothing_more() -> None:
    access = Access(manifest(10_000 * MIB))
    for at in (5000, 17, 9000, 1234, 7777, 42, 3001, 3003, 2999):
        assert access.note(at * MIB, at * MIB + 4096, WINDOW) == []


def test_the_first_bytes_of_a_tensor_want_all_of_it_but_nothing_behind_it() -> None:
    access = Access(manifest(400 * MIB, ((100 * MIB, 105 * MIB), (105 * MIB, 300 * MIB))))
    given = access.note(100 * MIB - 65536, 100 * MIB + 65536, WINDOW)
    assert covered(given) == [(100, 102)]
    at = 100 * MIB + 65536
    while at < 105 * MIB - 131072:
        given += access.note(at, at + 131072, WINDOW)
        at += 131072
    assert max(s.end for s in given) == 105 * MIB
    given = access.note(at, at + 262144, WINDOW)
    assert max(s.end for s in given) > 105 * MIB, "a run that goes on into the next tensor is read in file order"


def test_reads_in_the_middle_of_a_tensor_want_nothing_more() -> None:
    access = Access(manifest(4000 * MIB, ((100 * MIB, 3000 * MIB),)))
    assert access.note(500 * MIB, 500 * MIB + 4096, WINDOW) == []
    assert access.note(2000 * MIB, 2000 * MIB + 4096, WINDOW) == []
    assert access.note(3500 * MIB, 3500 * MIB + 4096, WINDOW) == []


def test_even_distances_go_on_in_both_directions() -> None:
    access = Access(manifest(1000 * MIB))
    assert access.note(100 * MIB, 101 * MIB, WINDOW) == []
    assert access.note(150 * MIB, 151 * MIB, WINDOW) == []
    assert covered(access.note(200 * MIB, 201 * MIB, WINDOW)) == [(250, 251), (300, 301)]
    assert access.note(500 * MIB, 501 * MIB, WINDOW) == []
    assert access.note(460 * MIB, 461 * MIB, WINDOW) == []
    assert covered(access.note(420 * MIB, 421 * MIB, WINDOW)) == [(340, 341), (380, 381)]


def test_strides_end_with_the_file() -> None:
    access = Access(manifest(100 * MIB))
    for at in (10, 50):
        access.note(at * MIB, (at + 1) * MIB, WINDOW)
    assert access.note(90 * MIB, 91 * MIB, WINDOW) == []


def test_several_runs_in_one_file_are_told_apart() -> None:
    access = Access(manifest(1000 * MIB))
    starts = [100 * (i + 1) * MIB for i in range(MAX_RUNS - 1)]
    for at in starts:
        access.note(at, at + MIB, WINDOW)
    for at in starts:
        spans = access.note(at + MIB, at + 2 * MIB, WINDOW)
        assert covered(spans) == [(at // MIB + 2, at // MIB + 6)]


def test_the_window_bounds_what_is_wanted() -> None:
    access = Access(manifest(100 * MIB, ((50 * MIB, 90 * MIB),)))
    assert covered(access.note(0, MIB, MIB)) == [(1, 2)]
    assert access.note(50 * MIB, 50 * MIB + 4096, MIB) == [Span(50 * MIB + 4096, 51 * MIB + 4096)]


def test_what_was_taken_back_is_given_out_again() -> None:
    access = Access(manifest(100 * MIB))
    assert covered(access.note(0, MIB, WINDOW)) == [(1, 5)]
    access.take_back(3 * MIB)
    assert covered(access.note(MIB, 2 * MIB, WINDOW)) == [(3, 10)]
    access.take_back(50 * MIB)
    assert covered(access.note(2 * MIB, 3 * MIB, WINDOW)) == [(10, 11)]
