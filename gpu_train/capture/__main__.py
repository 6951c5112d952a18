"""`python -m gpu_train.capture`: the capture agent of one job, started by its runner."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from gpu_train.capture.agent import Agent
from gpu_train.capture.politeness import be_polite
from gpu_train.capture.watch.lookout import Lookout
from gpu_train.collector import at_ease
from gpu_train.control import AGENT_LOCK, BUSY_EXIT
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import NotFound


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
            be_polite()
            agent = Agent(workspace, job, arguments.lifeline, lookout)
            agent.begin()
            with suppress(BrokenPipeError):  # a runner that is gone by now is noticed by its lifeline
                os.write(1, b"ready\n")
            agent.run()
    return 0


if __name__ == "__main__":
    with at_ease():
        sys.exit(main())
