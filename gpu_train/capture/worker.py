"""The thread that stores checkpoints while the agent's other thread goes on watching."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from gpu_train.capture.board import Paused
from gpu_train.capture.candidate import Candidate
from gpu_train.capture.headroom import Headroom, NoRoom, Shortage
from gpu_train.capture.politeness import wait_for_disk
from gpu_train.capture.storing import Finished, History, Stored, store_checkpoint
from gpu_train.tables.checkpoint import VERIFIED
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import SourceChanged, StorageFull

MAX_ATTEMPTS = 5
"""For errors whose cause is not known to pass; a full disk is waited for without end."""

ROOM_S = 0.5
"""How often it is asked whether there is room again."""

UPKEEP_S = 10.0
"""How often, while there is no room, older checkpoints and plain files are looked for that may go."""

MORE = 2
"""A checkpoint that did not fit is not tried again before there is room for so many times what was written of it."""


PART, ASK_BYTES = 8, 8 << 20
"""After such a part of the room that was left, or so much, is written, it is asked again what is left."""

OVERHEAD, OVERHEAD_BYTES = 64, 1 << 20
"""The store never takes more for a checkpoint than its size, that part of it and so much."""


UNHELD = (
    "it was deleted or written over while nothing held it, since the disk had less room than the trainer's next save "
    "takes (capture.reserve_bytes)"
)


class GivenUp(Exception):
    """A checkpoint was given up before it was stored; the text says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt to store a checkpoint: Stored, or the error. Unless `final` it is tried again."""

    finished: Finished
    candidate: Candidate
    result: Stored | Exception
    attempt: int
    final: bool


@dataclass(slots=True, eq=False)
class _Task:
    """A checkpoint to be stored.

    `wants_bytes` is how much room there must be before it is tried; `given_up` says why it is not to be stored.
    """

    finished: Finished
    candidate: Candidate
    attempt: int = 0
    wants_bytes: int = 0
    given_up: str = ""


class Worker:
    """Stores checkpoints one after another in the order in which they come, by which `latest` goes.

    `on_stored` is called in this thread when one has been stored, `after` then too, and now and then while there is no
    room; neither must raise. `put`, `give_up` and `outcomes` are for the watching thread. Leaving it as a context
    manager waits for what is being stored.

    Attributes:
        is_hurried: whether what waits takes room that is needed. Then what is incomplete waits for what is whole, and
            the disk is used beside others. The watching thread sets it.
        paused: why nothing could be stored the last time; None while there is room, as far as anybody knows.
    """

    def __init__(
        self, workspace: Workspace, job_id: str, retry_s: float, headroom: Headroom,
        after: Callable[[], None] = lambda: None, on_stored: Callable[[Stored], None] = lambda stored: None,
    ) -> None:  # fmt: skip
        self._workspace = workspace
        self._after = after
        self._on_stored = on_stored
        self._history = History(workspace, job_id)
        self._retry_s = retry_s
        self._headroom = headroom
        self._waiting: deque[_Task] = deque()
        self._outcomes: deque[Outcome] = deque()
        self._changed = threading.Condition()
        self._at_work: _Task | None = None
        self._closing = False
        self._lacked_bytes = 0
        self._is_tidying = False
        self._tidy_at = 0.0
        self._uses_disk = False
        self.is_hurried = False
        self.paused: Paused | None = None
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
            return bool(self._waiting or self._at_work or self._outcomes or self._is_tidying)

    def in_hand(self) -> list[tuple[Candidate, bool]]:
        """What was put in and is not reported as stored yet; whether it is past its wait."""
        with self._changed:
            begun = [o.candidate for o in self._outcomes if o.final]
            if self._at_work is not None:
                begun.append(self._at_work.candidate)
            return [*((c, True) for c in begun), *((t.candidate, False) for t in self._waiting)]

    def unstored(self) -> list[tuple[Finished, Candidate, bool]]:
        """What is not stored yet, first come first, and whether it is being stored."""
        with self._changed:
            at_work = [self._at_work] if self._at_work is not None else []
            return [(t.finished, t.candidate, t is self._at_work) for t in (*at_work, *self._waiting)]

    def put(self, finished: Finished, candidate: Candidate) -> None:
        """Have a checkpoint stored."""
        with self._changed:
            self._waiting.append(_Task(finished, candidate))
            self._changed.notify_all()

    def if_waiting(self, candidate: Candidate, do: Callable[[], None]) -> bool:
        """Do something to a checkpoint unless it is being stored, and not while it is; whether that was done."""
        with self._changed:
            waits = any(t.candidate is candidate for t in self._waiting)
            if waits:
                do()
            return waits

    def give_up(self, candidate: Candidate, reason: str) -> None:
        """Have a checkpoint not stored. If it is not stored already, `GivenUp` is what comes of it."""
        with self._changed:
            for task in [t for t in self._waiting if t.candidate is candidate]:
                self._waiting.remove(task)
                self._outcomes.append(_given_up(task, reason))
            if self._at_work is not None and self._at_work.candidate is candidate:
                self._at_work.given_up = reason
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
            is_final = outcome is not None and outcome.final
            with self._changed:
                self._at_work = None
                if outcome is not None:
                    self._outcomes.append(outcome)
                if not is_final:
                    self._waiting.appendleft(task)
                self._changed.notify_all()
                if outcome is not None and not is_final:
                    self._changed.wait_for(lambda: self._closing, self._retry_s)

    def _next(self) -> _Task | None:
        """The next checkpoint, once there is room for it; None at the end."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing, ROOM_S if self.paused else None)
                if self._closing:
                    return None
                task = self._first() if self._waiting else None
            short = self._headroom.shortage(self._lacked_bytes if task is None else task.wants_bytes)
            if short is not None:
                self._wait_for_room(short)
                continue
            if task is None:
                self._go_on()
            with self._changed:
                if task is not None and task in self._waiting:  # it may have been given up meanwhile
                    self._waiting.remove(task)
                    self._at_work = task
                    return task

    def _first(self) -> _Task:
        """Which of those that wait is next. Whole ones keep their order; versions of a name keep theirs."""
        passed = set()
        for task in self._waiting if self.is_hurried else ():
            if task.finished.state == VERIFIED and task.finished.name not in passed:
                return task
            passed.add(task.finished.name)
        return self._waiting[0]

    def _wait_for_room(self, short: Shortage) -> None:
        since_ns = time.time_ns() if self.paused is None else self.paused.since_ns
        self.paused = Paused(
            since_ns, str(short.path), short.free_bytes, short.kept_bytes, short.wants_bytes, self._headroom.is_ended
        )
        if time.monotonic() >= self._tidy_at:
            self._tidy()
        with self._changed:
            self._changed.wait_for(lambda: self._closing, min(ROOM_S, self._retry_s))

    def _go_on(self) -> None:
        """There is room again, as far as anybody knows."""
        self.paused, self._lacked_bytes = None, 0

    def _store(self, task: _Task) -> Outcome | None:
        """Store a checkpoint; None when there was no room for it."""
        candidate = task.candidate
        finished = task.finished._replace(base=candidate.base())  # it may have been let go or held again
        self._be_as_quick_as_needed()
        written = unasked = 0

        def admit(size_bytes: int) -> None:
            nonlocal written, unasked
            if task.given_up:
                raise GivenUp(task.given_up)
            written += size_bytes
            unasked -= size_bytes
            if unasked < 0:
                left = self._headroom.left_bytes()
                if left < size_bytes:
                    raise NoRoom
                unasked = min(left // PART, ASK_BYTES)
            if MORE * written > self._lacked_bytes:  # further than what stopped last time
                self._go_on()

        task.attempt += 1
        try:
            result = store_checkpoint(
                self._workspace, finished, self._history, lambda: candidate.check(finished.base), admit=admit
            )
        except NoRoom:
            task.attempt -= 1
            most = candidate.size_bytes + candidate.size_bytes // OVERHEAD + OVERHEAD_BYTES
            task.wants_bytes = self._lacked_bytes = max(task.wants_bytes, min(MORE * written, most))
            return _given_up(task, task.given_up) if task.given_up else None
        except Exception as e:  # whatever storing raises must not end the watch, or every later checkpoint is lost
            if task.given_up:
                return _given_up(task, task.given_up)
            if candidate.was_let_go and not candidate.lies_there:
                return _given_up(task, UNHELD)
            waits = isinstance(e, StorageFull) or (not isinstance(e, SourceChanged) and task.attempt < MAX_ATTEMPTS)
            return Outcome(finished, candidate, e, task.attempt, final=not waits)
        self._go_on()
        candidate.discard()  # what is verified is not held a moment longer: its room may be wanted
        self._on_stored(result)
        self._tidy()
        return Outcome(finished, candidate, result, task.attempt, final=True)

    def _tidy(self) -> None:
        self._is_tidying = True
        self._after()
        self._is_tidying = False
        self._tidy_at = time.monotonic() + UPKEEP_S

    def _be_as_quick_as_needed(self) -> None:
        if self.is_hurried != self._uses_disk:
            self._uses_disk = self.is_hurried
            wait_for_disk(is_idle=not self._uses_disk)


def _given_up(task: _Task, reason: str) -> Outcome:
    return Outcome(task.finished, task.candidate, GivenUp(reason), task.attempt, final=True)
