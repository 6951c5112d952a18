"""Looking once a second for what changed in a view, so that caches in front of it can be told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpu_train_fuse.report import Report
from gpu_train_fuse.tree import FileTree

REFRESH_S = 1.0
SHARE = 20
"""One part in so many of the time is spent on looking, however much there is to look at."""


class Watcher:
    """A thread that hands each path that is no longer what it was to `drop`, between `start` and `stop`.

    It also lets go of what nobody reads any more, so that a view without any cache in front of it needs one too.
    """

    def __init__(self, tree: FileTree, drop: Callable[[bytes], None], report: Report) -> None:
        self._tree = tree
        self._drop = drop
        self._report = report
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="changes", daemon=True)

    def is_alive(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; returns when the thread has ended, or after some seconds when a disk does not answer."""
        self._ending.set()
        self._thread.join(timeout=5)

    def _watch(self) -> None:
        pause_s = REFRESH_S
        while not self._ending.wait(pause_s):
            started = time.monotonic()
            try:
                for path in self._tree.changes():
                    self._drop(path)
            except Exception as e:
                self._report(f"looking for changes: {e!r}")
            pause_s = max(REFRESH_S, SHARE * (time.monotonic() - started))
