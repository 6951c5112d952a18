"""`python -m gpu_train.capture`: the capture agent of one job, started by its runner."""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import platform
import signal
import sys
from contextlib import suppress
from pathlib import Path

from gpu_train.capture.agent import Agent
from gpu_train.capture.watch.lookout import Lookout
from gpu_train.collector import at_ease
from gpu_train.control import AGENT_LOCK, BUSY_EXIT
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import NotFound

NICE = 10
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_IDLE = 3 << 13


def main() -> int:
    """Watch the job until it has ended; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gpu_train.capture")
    parser.add_argument("--home", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--lifeline", type=int, help="file descriptor of the runner's pipe")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the job's end is what ends an agent
    with Workspace.open(Path(arguments.home)) as workspace:
        job = workspace.jobs.get(arguments.job)
        if job is None:
            raise NotFound(f"no job {arguments.job!r} in {arguments.home}")
        control = workspace.home.control(job.id)
        control.mkdir(parents=True, exist_ok=True)
        with open(control / AGENT_LOCK, "a", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return BUSY_EXIT
            home = workspace.home
            lookout = Lookout(home.checkpoints(job.id), home.pins(job.id), control, job.id)
            lookout.start()  # before this process gives way to the training: its sentry must not
            _be_polite()
            agent = Agent(workspace, job, arguments.lifeline, lookout)
            agent.begin()
            with suppress(BrokenPipeError):  # a runner that is gone by now is noticed by its lifeline
                os.write(1, b"ready\n")
            agent.run()
    return 0


def _be_polite() -> None:
    """Take the processor and the disk only when the training does not need them, where that is possible."""
    try:
        os.nice(NICE)
        number = _IOPRIO_SET.get(platform.machine())
        if number is not None:
            ctypes.CDLL(None).syscall(number, 1, 0, _IOPRIO_IDLE)
    except (OSError, AttributeError):
        return


if __name__ == "__main__":
    with at_ease():
        sys.exit(main())
