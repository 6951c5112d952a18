"""When the real disk is compared with what the sentry has told: seldom while it sees everything, else at every turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gpu_train_cas.filesystem import mount_of

FIRST_S = 1.0
SELDOM_S = 30.0
SHARE = 300
"""A comparison is not made again before so many times the seconds that it took, while the sentry sees everything."""


class Rescan:
    """The times of comparisons for one folder."""

    def __init__(
        self, scan_s: float, is_watching: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`scan_s` is how often to look where nobody tells what changes."""
        self._scan_s = scan_s
        self._is_watching = is_watching
        self._clock = clock
        self._interval_s = FIRST_S
        self._next = clock()
        self._is_remote = False

    def also_on(self, path: Path) -> None:
        """Checkpoints lie at that path too: on network file systems what other machines do is told by nobody."""
        mount = mount_of(path)
        self._is_remote = self._is_remote or (mount is not None and not mount.fit_for_registry)

    @property
    def is_polling(self) -> bool:
        """Whether only looking helps."""
        return self._is_remote or not self._is_watching()

    @property
    def left_s(self) -> float:
        """Seconds until the next comparison; none are left when it is due."""
        return 0.0 if self.is_polling else max(0.0, self._next - self._clock())

    def done(self, took_s: float, *, was_news: bool) -> None:
        """A comparison was made, and whether there was something that the sentry had not told."""
        self._interval_s = FIRST_S if was_news else min(SELDOM_S, 2 * self._interval_s)
        self._next = self._clock() + max(self._interval_s, SHARE * took_s)
