"""Ranges that come in time or not at all: attempts with a limit, pauses, then a rest (cas/spec/sources.md)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from gpu_train_cas.errors import GpuTrainError, NotFound, Unreachable


class Ranges(Protocol):
    """Objects that lie elsewhere, of which parts can be read. Threads may share it."""

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        """Bytes of an object; fewer only at its end.

        Raises:
            NotFound: when there is no such object.
            GpuTrainError, OSError: anything else is taken for something that may pass.
        """
        ...


class Patience(NamedTuple):
    """How long to wait for one range.

    Attributes:
        attempt_s: for one attempt.
        attempts: how many there are.
        pause_s: between the first two; each later pause is twice as long.
        all_s: for all of them together, pauses included.
        rest_s: for so long after the last one failed nothing is tried.
        at_once: how many ranges are read at the same time.
    """

    attempt_s: float = 20.0
    attempts: int = 3
    pause_s: float = 0.5
    all_s: float = 60.0
    rest_s: float = 5.0
    at_once: int = 16


class PatientRanges:
    """See `Ranges`. `read` returns or raises within `all_s`, whatever those behind it do.

    An attempt runs on a thread of its own, which is left behind when it does not come back: nothing can end it. It then
    holds its place among those that read at once, so that there never are more.
    """

    def __init__(
        self, inner: Ranges, patience: Patience | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inner = inner
        self._patience = patience or Patience()
        self._clock = clock
        self._places = threading.Semaphore(self._patience.at_once)
        self._rest_until = 0.0
        self._why = ""

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        """See `Ranges`.

        Raises:
            NotFound: as there.
            Unreachable: when no attempt succeeded, or the last ones before this were in vain a moment ago.
        """
        began = self._clock()
        if began < self._rest_until:
            raise Unreachable(f"{key} cannot be had now ({self._why}); it is tried again in a few seconds")
        pause_s = self._patience.pause_s
        for attempt in range(1, self._patience.attempts + 1):
            left_s = began + self._patience.all_s - self._clock()
            try:
                data = self._attempt(key, length, offset, min(self._patience.attempt_s, left_s))
            except NotFound:
                raise
            except (GpuTrainError, OSError) as e:
                failure = e
            else:
                self._rest_until = 0.0
                return data
            left_s = began + self._patience.all_s - self._clock()
            if attempt == self._patience.attempts or left_s <= pause_s:
                break
            time.sleep(pause_s)
            pause_s *= 2
        self._why = str(failure) or type(failure).__name__
        self._rest_until = self._clock() + self._patience.rest_s
        raise Unreachable(f"{key} cannot be had after {attempt} attempts: {self._why}") from failure

    def _attempt(self, key: str, length: int, offset: int, limit_s: float) -> bytes:
        ends = time.monotonic() + limit_s
        if not self._places.acquire(timeout=limit_s):
            raise TimeoutError(f"{self._patience.at_once} reads before it did not come back")
        answer: Future[bytes] = Future()

        def run() -> None:
            try:
                answer.set_result(self._inner.read(key, length, offset))
            except BaseException as e:
                answer.set_exception(e)
            finally:
                self._places.release()

        try:
            threading.Thread(target=run, name=f"range of {key}", daemon=True).start()
        except BaseException:
            self._places.release()
            raise
        try:
            return answer.result(max(0.0, ends - time.monotonic()))
        except TimeoutError:
            if answer.done():
                raise  # its own
            raise TimeoutError(f"no answer within {limit_s:.0f} s") from None
