"""`python -m gpu_train.sinks`: pushes what is queued in a home, until there is nothing left to do."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from gpu_train.control import BUSY_EXIT
from gpu_train.sinks.pusher import Pusher
from gpu_train.sinks.replication import pusher_lock
from gpu_train.workspace import Workspace

NICE = 10


def main() -> int:
    """Push; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gpu_train.sinks")
    parser.add_argument("--home", required=True)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICE)
    with Workspace.open(Path(arguments.home), create=False) as workspace:
        lock = pusher_lock(workspace.home)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return BUSY_EXIT
        os.truncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        Pusher(workspace).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
