"""Everything that goes wrong between a store and its server: in the end the bytes are right, or the error is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from uuid import uuid4

import pytest
from faulty import (
    ALWAYS,
    Fault,
    Proxy,
    answer,
    answer_xml,
    faulty,
    flip_request,
    flip_response,
    lose_answer,
    reset_request,
    reset_response,
    stall_request,
    stall_response,
    truncate_response,
)
from objectservers import BUCKET, Server, credentials
from objectstore_suite import Counter, pattern

from gpu_train.errors import Corrupted, Refused, SinkFailed, Unavailable
from gpu_train.sinks.objects.content import Held
from gpu_train.sinks.objects.gcs import PART_BYTES as PIECE_BYTES
from gpu_train.sinks.objects.gcs import GcsObjects
from gpu_train.sinks.objects.objectstore import ObjectStore, Put
from gpu_train.sinks.objects.patient import PatientObjects
from gpu_train.sinks.objects.s3 import S3Objects

ATTEMPTS = 4
SHORT_S = 1.0
"""How long an answer is waited for where none comes; elsewhere long enough for a busy machine."""

PART_BYTES = 5 << 20
SMALL = pattern(70_000, 1)
LARGE = {"s3": pattern(PART_BYTES + 9, 2), "gcs": pattern(PIECE_BYTES + 9, 3)}
"""More than one part."""


class Way(NamedTuple):
    """What the requests of a kind of store look like.

    Attributes:
        make: a store, from a server and its timeout in seconds.
        upload: the requests that carry bytes there, data: those that carry nothing else, fetch: those that carry them
            back.
        error: answers with an error as that server writes it.
    """

    make: Callable[[str, str, float], ObjectStore]
    upload: str
    data: str
    fetch: str
    error: Callable[..., Fault]


WAYS = {
    "s3": Way(
        lambda endpoint, prefix, timeout_s: S3Objects(
            BUCKET, prefix, endpoint=endpoint, credentials=credentials, timeout_s=timeout_s, part_bytes=PART_BYTES
        ),
        "^PUT",
        "^PUT",
        "^GET .*/",
        answer_xml,
    ),
    "gcs": Way(
        lambda endpoint, prefix, timeout_s: GcsObjects(
            BUCKET, prefix, endpoint=endpoint, credentials=lambda: {"token": "any"}, timeout_s=timeout_s
        ),
        "^(PUT|POST) /.*upload",
        "^PUT|uploadType=multipart",
        "^GET .*alt=media",
        answer,
    ),
}


class Place(NamedTuple):
    """Stores behind a proxy, and one without; the same objects lie in all."""

    kind: str
    way: Way
    proxy: Proxy
    store: PatientObjects
    hasty: PatientObjects
    straight: ObjectStore
    pauses: list[float]


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    kind, prefix, pauses = request.param, f"faults/{uuid4().hex}", []
    server: Server = request.getfixturevalue("seaweedfs" if kind == "s3" else "fake_gcs")
    with faulty(server) as proxy:
        stores = [WAYS[kind].make(one.endpoint, prefix, s) for one, s in ((proxy, 60), (proxy, SHORT_S), (server, 60))]
        behind, hasty = (
            PatientObjects(one, attempts=attempts, first_s=0.0, longest_s=60.0, sleep=pauses.append)
            for one, attempts in zip(stores, (ATTEMPTS, 2 * ATTEMPTS), strict=False)
        )
        yield Place(kind, WAYS[kind], proxy, behind, hasty, stores[-1], pauses)
        for one in stores:
            one.close()


Making = Callable[[Way], Fault]
SENDING: dict[str, Making] = {
    "500": lambda way: way.error(500, "InternalError", on=way.upload),
    "503": lambda way: way.error(503, "SlowDown", on=way.upload),
    "429": lambda way: way.error(429, "TooManyRequests", after_s="7", on=way.upload),
    "502 of another program": lambda way: Fault(way.upload, 1, 502, {}, b"<html>bad gateway</html>"),
    "reset before the body": lambda way: reset_request(0, on=way.upload),
    "reset within the body": lambda way: reset_request(20_000, on=way.upload),
    "done, but the answer is lost": lambda way: lose_answer(on=way.upload),
    "flipped": lambda way: flip_request(30_000, on=way.data),
}
STALLING: dict[str, Making] = {
    "within the body": lambda way: stall_request(20_000, on=way.upload),
    "after all is done": lambda way: stall_response(-1, on=way.upload),
}
READING: dict[str, Making] = {
    "503": lambda way: way.error(503, "SlowDown", on=way.fetch),
    "reset": lambda way: reset_response(20_000, on=way.fetch),
    "truncated": lambda way: truncate_response(20_000, on=way.fetch),
    "empty": lambda way: truncate_response(0, on=way.fetch),
}


def both(faults: dict[str, Making], often: Sequence[str]) -> list[object]:
    """Each fault for a small object, and for a large one: of these only some in the normal suite."""
    small = [pytest.param(fault, False, id=f"{name}-small") for name, fault in faults.items()]
    return small + [
        pytest.param(fault, True, id=f"{name}-large", marks=[] if name in often else pytest.mark.long)
        for name, fault in faults.items()
    ]


@pytest.mark.parametrize(("fault", "large"), both(SENDING, ["reset within the body", "flipped"]))
def test_what_fails_once_is_right_in_the_end(place: Place, fault: Making, large: bool) -> None:
    data, counter = LARGE[place.kind] if large else SMALL, Counter()
    place.proxy.fail(fault(place.way))
    place.store.put([Put("x", Held(data)), Put("y", Held(b"another"))], counter)
    assert len(place.pauses) == 1
    assert 0 <= counter.total <= len(data) + len(b"another")
    assert place.straight.holds("x", Held(data))
    assert place.straight.read("y", 100) == b"another"
    assert sorted(found.key for found in place.straight.list()) == ["x", "y"]


@pytest.mark.parametrize(("fault", "large"), both(STALLING, []))
def test_what_hangs_once_is_right_in_the_end(place: Place, fault: Making, large: bool) -> None:
    data = LARGE[place.kind] if large else SMALL
    place.proxy.fail(fault(place.way))
    place.hasty.put([Put("x", Held(data))])
    assert place.pauses
    assert place.straight.holds("x", Held(data))


def test_the_server_is_left_alone_as_long_as_it_asks(place: Place) -> None:
    place.proxy.fail(place.way.error(503, "SlowDown", after_s=17, on=place.way.upload))
    place.store.put([Put("x", Held(SMALL))])
    assert place.pauses == [17.0]


@pytest.mark.parametrize("fault", READING.values(), ids=READING)
def test_reading_goes_on(place: Place, fault: Making) -> None:
    place.straight.put([Put("x", Held(SMALL))])
    place.proxy.fail(fault(place.way))
    assert place.store.read("x", 50_000, 5_000) == SMALL[5_000:55_000]
    assert len(place.pauses) == 1


@pytest.mark.parametrize("fault", [stall_request, lambda on: stall_response(20_000, on=on)], ids=["at once", "midway"])
def test_reading_goes_on_after_a_stall(place: Place, fault: Callable[..., Fault]) -> None:
    place.straight.put([Put("x", Held(SMALL))])
    place.proxy.fail(fault(on=place.way.fetch))
    assert place.hasty.read("x", 50_000, 5_000) == SMALL[5_000:55_000]
    assert place.pauses


@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.long)], ids=["small", "large"])
@pytest.mark.parametrize(
    ("fault", "error", "attempts"),
    [
        pytest.param(lambda way: way.error(503, "SlowDown", times=ALWAYS), Unavailable, ATTEMPTS, id="503"),
        pytest.param(lambda way: reset_request(0, times=ALWAYS), Unavailable, ATTEMPTS, id="reset"),
        pytest.param(lambda way: way.error(403, "AccessDenied", times=ALWAYS), Refused, 1, id="denied"),
        pytest.param(lambda way: flip_request(30_000, on=way.data, times=ALWAYS), Corrupted, 2, id="flipped"),
    ],
)
def test_what_fails_for_good_is_told(
    place: Place, fault: Making, error: type[SinkFailed], attempts: int, large: bool
) -> None:
    data = LARGE[place.kind] if large else SMALL
    place.proxy.fail(fault(place.way))
    with pytest.raises(error, match="faults/"):
        place.store.put([Put("x", Held(data), only_new=True)])
    assert len(place.pauses) == attempts - 1
    assert list(place.straight.list()) == []
    place.proxy.heal()
    place.store.put([Put("x", Held(data), only_new=True, again=True)])
    assert place.straight.holds("x", Held(data))


def test_what_hangs_for_good_is_told(place: Place) -> None:
    place.proxy.fail(stall_request(0, times=ALWAYS))
    with pytest.raises(Unavailable, match="faults/"):
        PatientObjects(place.hasty._inner, attempts=2, first_s=0.0, sleep=place.pauses.append).put(
            [Put("x", Held(SMALL))]
        )
    assert len(place.pauses) == 1
    assert list(place.straight.list()) == []


def test_a_flipped_fetch(place: Place) -> None:
    place.straight.put([Put("x", Held(SMALL))])
    place.proxy.fail(flip_response(100, on=place.way.fetch))
    read = place.store.read("x", len(SMALL))
    assert len(read) == len(SMALL)  # whoever reads compares digests of their own
    assert read != SMALL
    assert place.store.holds("x", Held(SMALL))


def test_what_arrived_is_not_sent_again(place: Place) -> None:
    """S3: whole parts; GCS: what the session took."""
    size = PART_BYTES if place.kind == "s3" else PIECE_BYTES
    data = pattern(2 * size + 9, 3)
    second = r"partNumber=2\b" if place.kind == "s3" else "^PUT"
    if place.kind == "gcs":
        place.proxy.fail(Fault(second))  # the first piece passes
    place.proxy.fail(reset_request(1000, on=second))
    place.store.put([Put("x", Held(data))])
    assert len(place.pauses) == 1
    assert place.straight.holds("x", Held(data))
    assert len(data) <= place.proxy.sent_bytes(place.way.upload) < len(data) + 10_000
