"""The process that pushes a home's checkpoints goes on trying for an hour; a test must not leave one."""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path


def end_pusher(home: Path) -> None:
    """End the pusher of a home, if there is one."""
    with suppress(FileNotFoundError), (home / "store" / "sinks" / "pusher.lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(ValueError, ProcessLookupError):
                os.kill(int(lock.read()), signal.SIGKILL)
