"""What became of each commit: the agent's answers to the job, one line each in control/answers.jsonl.

A line is {"commit": ID, "stored": true} or {"commit": ID, "stored": false, "why": TEXT}. After a restart of the
agent the same answer may come twice. Light on purpose: a training script waits here.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpu_train.capture.tail import Tail

COMMITS = "commits.jsonl"
ANSWERS = "answers.jsonl"
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of waiting: paths of commits that have no answer yet, and of those that could not be stored, with why.

    Each of the latter is told once.
    """

    waiting: list[str] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_all_stored(self) -> bool:
        """Whether there is nothing to complain about."""
        return not self.waiting and not self.lost


class Answers:
    """The commits of one job, by whichever of its processes, and what became of them. Threads may share it."""

    def __init__(self, control: Path) -> None:
        self._commits = Tail(control / COMMITS)
        self._answers = Tail(control / ANSWERS)
        self._open: dict[str, str] = {}
        self._early: dict[str, tuple[bool, str]] = {}
        self._lost: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def wait(self, timeout_s: float, only: str | None = None) -> Settled:
        """Wait until every commit made so far is answered, or `only` the one of that id, or the time is over."""
        deadline = time.monotonic() + timeout_s
        wanted = self._read() if only is None else {only}
        while wanted & (still := self._read()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        with self._lock:
            waiting = [self._open[i] for i in sorted(wanted & still) if i in self._open]
            lost, self._lost = self._lost, []
        return Settled(waiting, lost)

    def _read(self) -> set[str]:
        """The ids of the commits without an answer, as of now."""
        with self._lock:
            for line, _ in self._commits.read():
                if isinstance(name := line.get("id"), str):
                    self._open[name] = str(line.get("path"))
            for line, _ in self._answers.read():
                if isinstance(name := line.get("commit"), str):
                    self._early[name] = bool(line.get("stored")), str(line.get("why"))
            # An answer may be read before its commit: both were written after the commits had been read.
            for name in self._open.keys() & self._early.keys():
                path, (stored, why) = self._open.pop(name), self._early.pop(name)
                if not stored:
                    self._lost.append((path, why))
            return set(self._open)
