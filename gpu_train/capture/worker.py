"""The thread that stores checkpoints while the agent's other thread goes on watching."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gpu_train.capture.candidate import Candidate
from gpu_train.capture.storing import Finished, History, Stored, store_checkpoint
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import SourceChanged, StorageFull

MAX_ATTEMPTS = 5
"""For errors whose cause is not known to pass; a full disk is waited for without end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt to store a checkpoint: Stored, or the error. Unless `final` it is tried again."""

    finished: Finished
    candidate: Candidate
    result: Stored | Exception
    attempt: int
    final: bool


@dataclass(slots=True)
class _Task:
    finished: Finished
    candidate: Candidate
    attempt: int = 0


class Worker:
    """Stores checkpoints one after another in the order in which they come.

    `after` is called in this thread when one has been stored; it must not raise. `put` and `outcomes` are for the
    watching thread. Leaving it as a context manager waits for what is being stored.
    """

    def __init__(
        self, workspace: Workspace, job_id: str, retry_s: float, after: Callable[[], None] = lambda: None
    ) -> None:
        self._workspace = workspace
        self._after = after
        self._history = History(workspace, job_id)
        self._retry_s = retry_s
        self._waiting: deque[_Task] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._changed = threading.Condition()
        self._at_work: _Task | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def is_busy(self) -> bool:
        """Whether something waits to be stored or reported."""
        with self._changed:
            return bool(self._waiting or self._at_work or self._outcomes)

    def in_hand(self) -> list[tuple[Candidate, bool]]:
        """What was put in and is not reported as stored yet; whether it is past its wait."""
        with self._changed:
            begun = [o.candidate for o in self._outcomes if o.final]
            if self._at_work is not None:
                begun.append(self._at_work.candidate)
            return [*((c, True) for c in begun), *((t.candidate, False) for t in self._waiting)]

    def put(self, finished: Finished, candidate: Candidate) -> None:
        """Have a checkpoint stored."""
        with self._changed:
            self._waiting.append(_Task(finished, candidate))
            self._changed.notify_all()

    def outcomes(self) -> list[Outcome]:
        """What came of those that were tried, once each."""
        with self._changed:
            made = list(self._outcomes)
            self._outcomes.clear()
            return made

    def wait(self, timeout_s: float) -> None:
        """Wait until something was tried, or the time is over."""
        with self._changed:
            if not self._outcomes:
                self._changed.wait(timeout_s)

    def _run(self) -> None:
        while (task := self._next()) is not None:
            outcome = self._store(task)
            with self._changed:
                self._at_work = None
                self._outcomes.append(outcome)
                if not outcome.final:
                    self._waiting.appendleft(task)
                self._changed.notify_all()
                if not outcome.final:
                    self._changed.wait_for(lambda: self._closing, self._retry_s)

    def _next(self) -> _Task | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            if self._closing:
                return None
            self._at_work = self._waiting.popleft()
            return self._at_work

    def _store(self, task: _Task) -> Outcome:
        task.attempt += 1
        finished, candidate = task.finished, task.candidate
        try:
            result = store_checkpoint(self._workspace, finished, self._history, lambda: candidate.check(finished.base))
            self._after()
        except SourceChanged as e:
            return Outcome(finished, candidate, e, task.attempt, final=True)
        except StorageFull as e:
            return Outcome(finished, candidate, e, task.attempt, final=False)
        except Exception as e:  # whatever storing raises must not end the watch, or every later checkpoint is lost
            return Outcome(finished, candidate, e, task.attempt, final=task.attempt >= MAX_ATTEMPTS)
        return Outcome(finished, candidate, result, task.attempt, final=True)
