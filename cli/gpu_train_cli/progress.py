"""One line on stderr while bytes move: how much, how fast, how long yet, how much was known already.

Silent when stderr is not a terminal, so that logs and pipes stay clean.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from gpu_train_cli.text import count, duration, printable, size

if TYPE_CHECKING:
    from gpu_train_cas import Progress

WINDOW_S = 5.0  # the speed shown is that of the last seconds, not the average since the start
ERASE_LINE = "\r\x1b[K"


@dataclass(slots=True)
class Meter:
    """Words for a stream of reports; knows the time only through `clock`."""

    deduplicated: bool = False
    clock: Callable[[], float] = time.monotonic
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def line(self, report: Progress) -> str:
        """The line for this report."""
        speed = self._speed(report.done_bytes)
        parts = [size(report.done_bytes)]
        if report.total_bytes:
            parts = [f"{size(report.done_bytes)} of {size(report.total_bytes)}"]
        if report.files_total:
            parts.append(f"{report.files_done:,} of {count(report.files_total, 'file')}")
        elif report.files_done:
            parts.append(count(report.files_done, "file"))
        if speed is not None:
            parts.append(f"{size(round(speed))}/s")
            if report.total_bytes and speed > 0:
                parts.append(f"ETA {duration(max(0, report.total_bytes - report.done_bytes) / speed)}")
        if self.deduplicated:
            parts.append(f"{size(max(0, report.done_bytes - report.new_bytes))} deduplicated")
        return f"{report.phase}: " + ", ".join(parts)

    def _speed(self, done_bytes: int) -> float | None:
        now = self.clock()
        if self._samples and done_bytes < self._samples[-1][1]:
            self._samples.clear()  # the next piece of work has begun
        self._samples.append((now, done_bytes))
        while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        start, bytes_then = self._samples[0]
        return (done_bytes - bytes_then) / (now - start) if now > start else None


@contextmanager
def progress(*, deduplicated: bool = False, stream: TextIO | None = None) -> Iterator[Callable[[Progress], None]]:
    """A callback for the engine's `progress=`; the line is gone when the block ends.

    `deduplicated` adds the bytes that were in the store already, which only makes sense while storing.
    """
    out = stream or sys.stderr
    if not out.isatty():
        yield lambda _: None
        return
    from shutil import get_terminal_size  # noqa: PLC0415  slow to import, and only a terminal is drawn on

    meter = Meter(deduplicated=deduplicated)

    def draw(report: Progress) -> None:
        out.write(ERASE_LINE + printable(meter.line(report))[: get_terminal_size().columns - 1])
        out.flush()

    try:
        yield draw
    finally:
        out.write(ERASE_LINE)
        out.flush()
