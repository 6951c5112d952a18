"""A limit to the bandwidth, over all threads."""

from __future__ import annotations

from gpu_train.sinks.objects.content import Held
from gpu_train.sinks.objects.paced import Pace, PacedContent


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_bytes_pass_no_faster() -> None:
    clock = Clock()
    pace = Pace(1_000_000, clock=lambda: clock.now, sleep=clock.sleep)
    first, second = (PacedContent(Held(bytes(3_000_000)), pace) for _ in range(2))
    assert first.size_bytes == 3_000_000
    assert sum(len(one.read(1_000_000, at)) for one in (first, second) for at in range(0, 3_000_000, 1_000_000)) == 6e6
    assert 5.5 <= clock.now - 100.0 <= 6.0


def test_an_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    pace = Pace(1_000, clock=lambda: clock.now, sleep=clock.sleep)
    clock.now += 1_000
    began = clock.now
    for _ in range(10):
        pace.take(1_000)
    assert clock.now - began == 9.0
