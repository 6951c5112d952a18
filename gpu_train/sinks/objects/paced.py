"""A limit to how much is sent in a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpu_train.sinks.objects.content import Content

_STEP_BYTES = 256 << 10
"""What is passed on between two pauses, so that a slow line is used evenly."""


class Pace:
    """Lets so many bytes a second pass, over all threads that ask it."""

    def __init__(
        self, bytes_per_s: float, *, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        """Wait until so many bytes may pass."""
        with self._lock:
            now = self._clock()
            begin = max(now, self._free_at)
            self._free_at = begin + size_bytes / self._bytes_per_s
        if begin > now:
            self._sleep(begin - now)


class PacedContent:
    """A content that is given no faster than a pace; see `Content`."""

    def __init__(self, inner: Content, pace: Pace) -> None:
        self._inner = inner
        self._pace = pace

    @property
    def size_bytes(self) -> int:
        """See `Content`."""
        return self._inner.size_bytes

    def read(self, length: int, offset: int) -> bytes:
        """See `Content`."""
        data = self._inner.read(length, offset)
        for at in range(0, len(data), _STEP_BYTES):
            self._pace.take(min(_STEP_BYTES, len(data) - at))
        return data
