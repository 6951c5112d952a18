"""An object store that fails, or kills its process, at calls that it is told: for what is built on object stores."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from gpu_train.errors import SinkFailed
from gpu_train.sinks.objects.content import Content
from gpu_train.sinks.objects.objectstore import Found, ObjectStore, OnBytes, Put

T = TypeVar("T")

BEFORE, HALF, AFTER = "before", "half", "after"


class Trouble(NamedTuple):
    """What happens at one call.

    Attributes:
        call: which one: the first is 1.
        error: what it raises; None kills the process with SIGKILL.
        when: `BEFORE` anything is done, `AFTER` all is done, or at `HALF` of the objects of a put or delete.
    """

    call: int
    error: SinkFailed | None
    when: str = BEFORE


class FaultyObjects:
    """See `ObjectStore`. Calls of the methods named in `on` are counted, over all threads."""

    def __init__(
        self,
        inner: ObjectStore,
        *troubles: Trouble,
        on: Sequence[str] = ("put", "size", "holds", "read", "list", "delete"),
    ) -> None:
        self._inner = inner
        self._troubles = {trouble.call: trouble for trouble in troubles}
        self._on = on
        self._lock = threading.Lock()
        self.calls = 0
        self.address = inner.address

    @property
    def few_files(self) -> bool:
        return self._inner.few_files

    def put(self, objects: Sequence[Put], on_bytes: OnBytes = lambda count: None) -> None:
        half = objects[: len(objects) // 2]
        self._do("put", lambda: self._inner.put(objects, on_bytes), lambda: self._inner.put(half, on_bytes))

    def size(self, key: str) -> int | None:
        return self._do("size", lambda: self._inner.size(key))

    def holds(self, key: str, content: Content) -> bool:
        return self._do("holds", lambda: self._inner.holds(key, content))

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        return self._do("read", lambda: self._inner.read(key, length, offset))

    def list(self, prefix: str = "") -> Iterator[Found]:
        yield from self._do("list", lambda: [*self._inner.list(prefix)])

    def delete(self, keys: Sequence[str]) -> None:
        self._do("delete", lambda: self._inner.delete(keys), lambda: self._inner.delete(keys[: len(keys) // 2]))

    def close(self) -> None:
        self._inner.close()

    def _do(self, method: str, do: Callable[[], T], half: Callable[[], object] = lambda: None) -> T:
        if method not in self._on:
            return do()
        with self._lock:
            self.calls += 1
            trouble = self._troubles.get(self.calls)
        if trouble is None:
            return do()
        if trouble.when == AFTER:
            do()
        elif trouble.when == HALF:
            half()
        if trouble.error is None:
            os.kill(os.getpid(), signal.SIGKILL)
        raise trouble.error or AssertionError("it is dead")
