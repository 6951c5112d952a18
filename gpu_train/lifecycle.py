"""Jobs from outside: ending them, waiting for them, and putting right what died."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from gpu_train.control import KILL_FILE
from gpu_train.process import is_alive, job_processes, send, start_time
from gpu_train.rescue import Rescue, is_unattended, rescue
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import Busy

POLL_S = 0.05
KILL_TIMEOUT_S = 120.0


def stop(job: str, *, timeout_s: float | None = None, home: Path | str | None = None) -> Job:
    """Tell a job to end in its own time: SIGTERM, so that it may save, SIGKILL after `run.interrupt_grace_s`.

    Returns its row when all of it is captured. A job that has ended already is returned as it is.

    Raises:
        NotFound, UsageError: when there is no such job.
        Busy: when it has not ended after `timeout_s` seconds.
    """
    with Workspace.open(home, create=False) as workspace:
        found = workspace.jobs.find(job)
        if found.is_live and is_alive(found.runner_pid, found.runner_start, found.boot_id):
            send({found.runner_pid or 0}, signal.SIGTERM)
            return _wait(workspace, found, timeout_s)
        return _settled(workspace, found)


def kill(job: str, *, timeout_s: float | None = KILL_TIMEOUT_S, home: Path | str | None = None) -> Job:
    """End a job at once: SIGKILL to all its processes. What it had finished writing is still captured.

    Returns its row when that is done. A job that has ended already is returned as it is.

    Raises:
        NotFound, UsageError: when there is no such job.
        Busy: when it is not through after `timeout_s` seconds.
    """
    with Workspace.open(home, create=False) as workspace:
        return _kill(workspace, workspace.jobs.find(job), timeout_s)


def kill_all(*, timeout_s: float | None = KILL_TIMEOUT_S, home: Path | str | None = None) -> list[Job]:
    """`kill` all jobs that are running or queued; their rows afterwards."""
    with Workspace.open(home, create=False) as workspace:
        live = workspace.jobs.live()
        for job in live:
            _mark_and_kill(workspace, job)
        return [_kill(workspace, job, timeout_s) for job in live]


def reconcile(
    *, timeout_s: float | None = None, home: Path | str | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Job]:  # fmt: skip
    """Put right what died: end the processes of jobs whose runner is gone, capture what is left, mark them lost.

    Checkpoints of jobs that have ended are stored too, if they are still pinned. Returns the rows of the jobs that
    changed; what could not be saved is in their checkpoints as incomplete or gone. Jobs that are watched by a living
    runner or agent are left alone. Several may run at once; a second one changes nothing. What is not done after
    `timeout_s` seconds goes on in the background. `notify` is told, in words, of what takes long.

    Raises:
        GpuTrainError: when a capture failed, naming its log.
    """
    with Workspace.open(home, create=False) as workspace:
        return rescue(workspace, timeout_s, leftovers=True, notify=notify)


def _kill(workspace: Workspace, job: Job, timeout_s: float | None) -> Job:
    if not job.is_live:
        return job
    _mark_and_kill(workspace, job)
    if is_alive(job.runner_pid, job.runner_start, job.boot_id):
        return _wait(workspace, job, timeout_s)
    return _settled(workspace, job)


def _mark_and_kill(workspace: Workspace, job: Job) -> None:
    control = workspace.home.control(job.id)
    control.mkdir(parents=True, exist_ok=True)
    (control / KILL_FILE).touch()
    # A number that another process has by now is not ours to kill; members of its old session still are.
    if job.pid is not None and start_time(job.pid) in (None, job.pid_start):
        send(job_processes(job.pid, job.id), signal.SIGKILL)


def _wait(workspace: Workspace, job: Job, timeout_s: float | None) -> Job:
    """Wait until a job's runner and agent are through."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        now = workspace.jobs.get(job.id) or job
        if not now.is_live:
            return now
        if not is_alive(now.runner_pid, now.runner_start, now.boot_id) and now.runner_pid is not None:
            return _settled(workspace, now)
        if deadline is not None and time.monotonic() > deadline:
            raise Busy(f"job {job.id} has not ended after {timeout_s:.0f} s; `gpu-train kill {job.id}` ends it at once")
        if now.status == "running" and (workspace.home.control(job.id) / KILL_FILE).exists():
            _mark_and_kill(workspace, now)  # processes that were born between the mark and the first signal
        time.sleep(POLL_S)


def _settled(workspace: Workspace, job: Job) -> Job:
    """Have a job without a runner captured and marked; its row as it is when somebody still looks after it."""
    if not is_unattended(job):
        return workspace.jobs.get(job.id) or job
    attended = Rescue(workspace, job)
    try:
        attended.wait()
    finally:
        attended.leave()
    return attended.job
