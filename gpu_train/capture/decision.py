"""What becomes of a candidate, and when that is decided."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_train.capture.candidate import Candidate
from gpu_train.capture.judge import Verdict
from gpu_train.capture.openfiles import Processes


@dataclass(slots=True)
class Decision:
    """A candidate whose fate is known: to be stored as whole or as incomplete, or gone.

    While it `waits` for copies of its files it is not to be stored yet; `decide` gives it again when they are there.
    """

    candidate: Candidate
    verdict: Verdict
    gone: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Occasion:
    """What holds for all candidates that are decided at the same time.

    Attributes:
        now: monotonic seconds.
        processes: the job's.
        ended: whether the job is over; clean_end: whether with exit code 0.
        lived_ns: when it still lived (wall clock), 0 when nobody asks.
    """

    now: float
    processes: Processes
    ended: bool
    clean_end: bool
    lived_ns: int
