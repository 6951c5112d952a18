"""Trying again: how often, and after which pauses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gpu_train.errors import Corrupted, Refused, SinkFailed, Unavailable
from gpu_train.sinks.objects.content import Held
from gpu_train.sinks.objects.memory import MemoryObjects
from gpu_train.sinks.objects.objectstore import OnBytes, Put
from gpu_train.sinks.objects.patient import PatientObjects


class Failing(MemoryObjects):
    """Raises what it was given, one after another, when half of the objects have been written."""

    def __init__(self, *errors: SinkFailed) -> None:
        super().__init__()
        self.errors = list(errors)
        self.again: list[list[bool]] = []

    def put(self, objects: Sequence[Put], on_bytes: OnBytes = lambda count: None) -> None:
        self.again.append([one.again for one in objects])
        super().put(objects[: len(objects) // 2], on_bytes)
        if self.errors:
            raise self.errors.pop(0)
        super().put(objects[len(objects) // 2 :], on_bytes)


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def patient(pauses: list[float]) -> Callable[..., PatientObjects]:
    def make(inner: Failing) -> PatientObjects:
        return PatientObjects(inner, attempts=4, first_s=1.0, longest_s=60.0, sleep=pauses.append)

    return make


def two() -> list[Put]:
    return [Put("a", Held(b"a")), Put("b", Held(b"bb"))]


def test_it_tries_again_with_growing_pauses(patient, pauses) -> None:
    inner = Failing(*(Unavailable("down") for _ in range(3)))
    patient(inner).put(two())
    assert inner.objects == {"a": b"a", "b": b"bb"}
    assert inner.again == [[False, False], *[[True, True]] * 3]
    assert [low <= pause <= 2 * low for pause, low in zip(pauses, (0.5, 1.0, 2.0), strict=True)] == [True] * 3


def test_bytes_that_are_sent_twice_count_once(patient) -> None:
    told: list[int] = []
    patient(Failing(Unavailable("down"), Unavailable("down"))).put(two(), told.append)
    assert -1 in told
    assert 0 <= sum(told) <= 3


def test_it_gives_up_in_the_end(patient, pauses) -> None:
    with pytest.raises(Unavailable, match="still down"):
        patient(Failing(*(Unavailable("down") for _ in range(3)), Unavailable("still down"))).put(two())
    assert len(pauses) == 3


def test_it_waits_as_long_as_it_is_asked_to(patient, pauses) -> None:
    patient(Failing(Unavailable("slow down", retry_after_s=17.0))).put(two())
    assert pauses == [17.0]


def test_a_long_wait_is_left_to_the_caller(patient, pauses) -> None:
    with pytest.raises(Unavailable, match="tomorrow"):
        patient(Failing(Unavailable("tomorrow", retry_after_s=3600.0))).put(two())
    assert pauses == []


def test_what_needs_a_person_is_not_tried_again(patient, pauses) -> None:
    with pytest.raises(Refused):
        patient(Failing(Refused("who are you?"))).put(two())
    assert pauses == []


def test_corrupted_once_is_sent_again_corrupted_twice_is_told(patient, pauses) -> None:
    inner = Failing(Corrupted("flipped"))
    patient(inner).put(two())
    assert inner.objects == {"a": b"a", "b": b"bb"}
    with pytest.raises(Corrupted):
        patient(Failing(Corrupted("flipped"), Corrupted("flipped"))).put(two())
    assert pauses == [0.0, 0.0]
