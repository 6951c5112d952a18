"""How far a long piece of work has come, told at most ten times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

INTERVAL_S = 0.1


@dataclass(slots=True)
class Progress:
    """One report.

    Attributes:
        phase: what is being done: "reading", "restoring", "verifying", "collecting".
        done_bytes: original bytes dealt with so far.
        total_bytes: bytes there are in all; None where that is not known.
        files_done: files dealt with so far.
        files_total: files there are in all; None where that is not known.
        new_bytes: of done_bytes, those that the store did not have.
        path: what is being dealt with.
    """

    phase: str
    done_bytes: int = 0
    total_bytes: int | None = None
    files_done: int = 0
    files_total: int | None = None
    new_bytes: int = 0
    path: str = ""


OnProgress = Callable[[Progress], None]


class Meter:
    """Counts work and reports it, always from the thread that does `tick`."""

    def __init__(self, phase: str, report: OnProgress | None) -> None:
        self.progress = Progress(phase)
        self._report = report
        self._next = 0.0

    def tick(self, *, last: bool = False) -> None:
        """Report if the last report is old enough, or if it is the last."""
        if self._report is None:
            return
        now = time.monotonic()
        if last or now >= self._next:
            self._next = now + INTERVAL_S
            self._report(self.progress)
