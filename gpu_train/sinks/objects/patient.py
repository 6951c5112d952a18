"""Tries again what may work in a while: with growing pauses, as long as the other side asks for, up to a limit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from gpu_train.errors import Corrupted, Unavailable
from gpu_train.sinks.objects.content import Content
from gpu_train.sinks.objects.objectstore import Found, ObjectStore, OnBytes, Put

T = TypeVar("T")

ATTEMPTS = 5
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class PatientObjects:
    """An object store that is asked up to `attempts` times; see `ObjectStore`.

    Pauses double from `first_s`, each shortened by chance to between half and all of it, so that many writers do not
    come back together; one that the other side asks for is kept, unless it is longer than `longest_s`: then it is left
    to whoever called. Corrupted uploads are sent once more: what breaks bytes on the way rarely does it twice.
    """

    def __init__(
        self, inner: ObjectStore, *, attempts: int = ATTEMPTS, first_s: float = FIRST_PAUSE_S,
        longest_s: float = LONGEST_PAUSE_S, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._inner = inner
        self._attempts = attempts
        self._first_s = first_s
        self._longest_s = longest_s
        self._sleep = sleep
        self.address = inner.address

    @property
    def few_files(self) -> bool:
        """See `ObjectStore`."""
        return self._inner.few_files

    def put(self, objects: Sequence[Put], on_bytes: OnBytes = lambda count: None) -> None:
        """See `ObjectStore`."""
        left = list(objects)
        sent = 0

        def count(size: int) -> None:
            nonlocal sent
            sent += size
            on_bytes(size)

        def once() -> None:
            nonlocal sent
            try:
                self._inner.put(left, count)
            except (Unavailable, Corrupted):
                on_bytes(-sent)
                sent = 0
                left[:] = [one._replace(again=True) for one in left]
                raise

        self._try(once)

    def size(self, key: str) -> int | None:
        """See `ObjectStore`."""
        return self._try(lambda: self._inner.size(key))

    def holds(self, key: str, content: Content) -> bool:
        """See `ObjectStore`."""
        return self._try(lambda: self._inner.holds(key, content))

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        """See `ObjectStore`."""
        return self._try(lambda: self._inner.read(key, length, offset))

    def list(self, prefix: str = "") -> Iterator[Found]:
        """See `ObjectStore`."""
        yield from self._try(lambda: list(self._inner.list(prefix)))

    def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore`."""
        self._try(lambda: self._inner.delete(keys))

    def close(self) -> None:
        """See `ObjectStore`."""
        self._inner.close()

    def _try(self, do: Callable[[], T]) -> T:
        pause_s, corrupted = self._first_s, False
        for attempt in range(1, self._attempts + 1):
            try:
                return do()
            except Corrupted:
                if corrupted or attempt == self._attempts:
                    raise
                corrupted = True
                wait_s = 0.0
            except Unavailable as e:
                asked_s = e.retry_after_s or 0.0
                if attempt == self._attempts or asked_s > self._longest_s:
                    raise
                wait_s = max(asked_s, pause_s * random.uniform(0.5, 1.0))
            self._sleep(wait_s)
            pause_s = min(2 * pause_s, self._longest_s)
        raise AssertionError("the last attempt returns or raises")
