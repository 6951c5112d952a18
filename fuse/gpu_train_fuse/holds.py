"""Keeping what is read in the store: while a file of it is open, and a moment longer, for the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

from gpu_train_cas import Digest

IDLE_S = 1.0
"""For so long a record is held on after the last close: a program that reads many files opens them one by one."""


@dataclass(slots=True)
class _Held:
    files: int = 0
    idle_since_s: float = 0.0
    hold: ExitStack = field(default_factory=ExitStack)


class Holds:
    """The records of which files are open, or were a moment ago. Threads may share it."""

    def __init__(self, hold: Callable[[Digest], AbstractContextManager[None]], clock: Callable[[], float]) -> None:
        """`hold` is how one is held; it raises NotFound for one that is gone."""
        self._hold = hold
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[Digest, _Held] = {}

    @contextmanager
    def holding(self, record: Digest) -> Iterator[None]:
        """While a file of a record is open."""
        with self._lock:
            held = self._held.get(record)
            if held is None:
                held = _Held()
                held.hold.enter_context(self._hold(record))
                self._held[record] = held
            held.files += 1
        try:
            yield
        finally:
            with self._lock:
                held.files -= 1
                held.idle_since_s = self._clock()

    def drop_idle(self) -> None:
        """Let go of what nobody has opened again; to be called now and then."""
        now = self._clock()
        with self._lock:
            idle = [r for r, held in self._held.items() if not held.files and now - held.idle_since_s >= IDLE_S]
            for record in idle:
                self._held.pop(record).hold.close()
