"""Saying once what goes wrong while a view is served: a program that reads on page by page would repeat it for each."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

log = logging.getLogger("gpu_train_fuse")

MAX_KNOWN = 1000
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


class Report:
    """The log of a view. Threads may share it."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, message: str) -> None:
        """Log an error in one line, unless it was just logged; a name in it may hold anything."""
        message = message.translate(_ESCAPES)
        with self._lock:
            if message in self._known:
                return
            self._known[message] = None
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        log.error("%s", message)
