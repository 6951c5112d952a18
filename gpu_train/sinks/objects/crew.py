"""Threads that send several objects, or parts of one, at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, Generic, TypeVar

from gpu_train.errors import Unavailable

T = TypeVar("T")


class Crew:
    """A number of threads that all who write to a store share; they come into being when there is work."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gpu-train-objects")

    def begin(self, job: Callable[[], T]) -> Future[T]:
        """Have a job done when a thread is free."""
        return self._pool.submit(job)

    def close(self) -> None:
        """Wait for the threads to end; safe to call twice."""
        self._pool.shutdown(cancel_futures=True)


class Work(Generic[T]):
    """Jobs that belong together: when one fails, or the caller is interrupted, what has not begun never does."""

    def __init__(self, whole: Work[Any] | None = None) -> None:
        """`whole` is what these are a part of: they stop with it."""
        self._whole = whole
        self._stop = threading.Event()
        self._begun: list[Future[T]] = []

    @property
    def stopped(self) -> bool:
        """Whether no job begins any more."""
        return self._stop.is_set() or (self._whole is not None and self._whole.stopped)

    def begin(self, crew: Crew, jobs: Iterable[Callable[[], T]]) -> None:
        """Have jobs done."""
        self._begun += [crew.begin(self._unless_stopped(job)) for job in jobs]

    def finish(self) -> Sequence[T]:
        """Wait for all; what they returned, in their order. When it raises, none is running any more.

        Raises:
            Exception: what the first failed one raised.
        """
        try:
            done, _ = wait(self._begun, return_when=FIRST_EXCEPTION)
            failed = [one for one in done if one.exception() is not None]
        except BaseException:
            self._end()
            raise
        if failed:
            self._end()
            raise failed[0].exception() or AssertionError("it failed")
        return [one.result() for one in self._begun]

    def _end(self) -> None:
        self._stop.set()
        for one in self._begun:
            one.cancel()
        wait(self._begun)

    def _unless_stopped(self, job: Callable[[], T]) -> Callable[[], T]:
        def do() -> T:
            if self.stopped:
                raise Unavailable("broken off, since another one failed")
            return job()

        return do
