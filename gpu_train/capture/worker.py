"""The thread that stores checkpoints while the agent's other thread goes on watching."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gpu_train.capture.candidate import Candidate
from gpu_train.capture.storing import Finished, History, Stored, store_checkpoint
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import SourceChanged

MAX_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one checkpoint: Stored, or the error; after any but SourceChanged it is tried again."""

    finished: Finished
    candidate: Candidate
    result: Stored | Exception
    final: bool = True


class Worker:
    """Stores checkpoints one after another in the order in which they come."""

    def __init__(self, workspace: Workspace, job_id: str, retry_s: float) -> None:
        self._workspace = workspace
        self._history = History(workspace, job_id)
        self._retry_s = retry_s
        self._waiting: deque[tuple[Finished, Candidate]] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._changed = threading.Condition()
        self._working = False
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
            return bool(self._waiting or self._working or self._outcomes)

    def put(self, finished: Finished, candidate: Candidate) -> None:
        """Have a checkpoint stored."""
        with self._changed:
            self._waiting.append((finished, candidate))
            self._changed.notify_all()

    def outcomes(self) -> list[Outcome]:
        """What came of those that are through, once each."""
        with self._changed:
            made = list(self._outcomes)
            self._outcomes.clear()
            return made

    def wait(self, timeout_s: float) -> None:
        """Wait until something is through, or the time is over."""
        with self._changed:
            if not self._outcomes:
                self._changed.wait(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                finished, candidate = self._waiting.popleft()
                self._working = True
            outcome = self._store(finished, candidate)
            with self._changed:
                self._working = False
                self._outcomes.append(outcome)
                if not outcome.final:
                    self._waiting.appendleft((finished, candidate))
                self._changed.notify_all()
                if not outcome.final and not self._closing:
                    until = time.monotonic() + self._retry_s
                    while not self._closing and (left := until - time.monotonic()) > 0:
                        self._changed.wait(left)
                if not outcome.final and self._closing:
                    return

    def _store(self, finished: Finished, candidate: Candidate) -> Outcome:
        try:
            result = store_checkpoint(self._workspace, finished, self._history, lambda: candidate.check(finished.base))
        except SourceChanged as e:
            return Outcome(finished, candidate, e)
        except Exception as e:  # nothing that storing can raise may end the watch, or a checkpoint is lost
            return Outcome(finished, candidate, e, final=False)
        return Outcome(finished, candidate, result)
