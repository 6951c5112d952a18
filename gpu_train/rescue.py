"""Jobs that nobody looks after any more: an agent of their own captures what they left and closes their rows."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from gpu_train.capture.board import read_board
from gpu_train.capture.pins import places_of
from gpu_train.control import BUSY_EXIT, KILL_FILE
from gpu_train.delay import SLOW_S, reason_for_delay
from gpu_train.environment import JOB_ID, current
from gpu_train.process import is_alive, let_go, module_command, module_environment
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import GpuTrainError

POLL_S = 0.05
BUSY_S = 0.5
"""How long to wait for an agent that is at work but has not told of itself yet."""

QUEUED_GRACE_S = 60.0
"""How long a job may be queued without a runner before the runner counts as never started."""


class Rescue:
    """An agent for one job that nobody looks after; or the wait for the one that is at it already."""

    def __init__(self, workspace: Workspace, job: Job) -> None:
        self._workspace = workspace
        self._job = job
        self.job_id = job.id
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def wait(self, deadline: float | None = None) -> bool:
        """Wait until the agent is through, until the deadline (monotonic) at most; whether it is.

        Raises:
            GpuTrainError: when the agent failed, naming its log.
        """
        while deadline is None or time.monotonic() < deadline:
            if self._process is None:
                if not self._is_at_work():
                    if not is_unattended(now := self._row()) and not _leftovers(self._workspace, now):
                        return True
                    self._start()
                time.sleep(POLL_S)
                continue
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
                self._process = None
                if code == 0:
                    return True
                if code != BUSY_EXIT:
                    log = self._workspace.home.logs(self.job_id) / "agent.log"
                    raise GpuTrainError(f"the last capture of {self.job_id} failed ({code}); its log is {log}")
                time.sleep(BUSY_S)
        return False

    @property
    def job(self) -> Job:
        """The job's row as it is now."""
        after = self._row()
        if after.status == "lost" and (self._workspace.home.control(after.id) / KILL_FILE).exists():
            after = self._workspace.jobs.update(after.id, status="killed")
        return after

    @property
    def is_started(self) -> bool:
        """Whether it has an agent of its own, rather than one that was at it already."""
        return self._process is not None

    def leave(self) -> None:
        """Let the agent go on by itself."""
        if self._process is not None:
            let_go(self._process)
            self._process = None

    def _start(self) -> None:
        if self._is_at_work():
            return
        home = self._workspace.home
        env = {k: v for k, v in module_environment(current()).items() if k != JOB_ID}
        command = module_command("gpu_train.capture", "--home", str(home.root), "--job", self.job_id)
        home.logs(self.job_id).mkdir(parents=True, exist_ok=True)
        with open(home.logs(self.job_id) / "agent.log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def _is_at_work(self) -> bool:
        return read_board(self._workspace.home.control(self.job_id)).is_current

    def _row(self) -> Job:
        return self._workspace.jobs.get(self.job_id) or self._job


def rescue(
    workspace: Workspace, timeout_s: float | None = None, *, leftovers: bool = False,
    notify: Callable[[str], None] = lambda text: None,
) -> list[Job]:  # fmt: skip
    """See to all jobs that nobody looks after; the rows of those that have changed when that is done.

    After `timeout_s` seconds what is not done goes on in the background. With `leftovers` jobs that have ended are
    looked at too, for checkpoints that are pinned and were never stored. `notify` is told of what takes long.

    Raises:
        GpuTrainError: when an agent failed; the others went on by themselves.
    """
    jobs = [job for job in workspace.jobs.live() if is_unattended(job)]
    before = {job.id: (job.status, 0) for job in jobs}
    if leftovers:
        ended = [job for job in _ended(workspace) if _leftovers(workspace, job)]
        before |= {job.id: (job.status, workspace.checkpoints.count(job.id)) for job in ended}
        jobs += ended
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    at_work = [Rescue(workspace, job) for job in jobs]  # all at once: each may have to wait for processes to end
    slow = time.monotonic() + SLOW_S
    changed = []
    try:
        for one in at_work:
            if not one.wait(slow if deadline is None else min(slow, deadline)) and (
                deadline is None or slow < deadline
            ):
                why = reason_for_delay(workspace.home, one.job_id)
                notify(f"the last capture of {one.job_id} is still running{why}")
                one.wait(deadline)
            now = one.job
            status, checkpoints = before[now.id]
            if now.status != status or (not now.is_live and workspace.checkpoints.count(now.id) != checkpoints):
                changed.append(now)
    finally:
        for one in at_work:
            one.leave()
    return changed


def begin_rescue(workspace: Workspace) -> list[Job]:
    """Have agents see to all jobs that nobody looks after, in the background; the jobs for which one was started."""
    begun = []
    for job in workspace.jobs.live():
        if is_unattended(job):
            with suppress(OSError):  # the next one tries again
                one = Rescue(workspace, job)
                if one.is_started:
                    begun.append(job)
                one.leave()
    return begun


def is_unattended(job: Job) -> bool:
    """Whether a job has not ended, as its row says, and its runner is not there."""
    if not job.is_live or is_alive(job.runner_pid, job.runner_start, job.boot_id):
        return False
    return job.runner_pid is not None or time.time_ns() - job.created_ns >= QUEUED_GRACE_S * 1e9


def _ended(workspace: Workspace) -> Iterator[Job]:
    """The jobs that have ended and have files of their own."""
    with suppress(OSError):
        for name in sorted(os.listdir(workspace.home.root / "artifacts")):
            job = workspace.jobs.get(name)
            if job is not None and not job.is_live and job.removed_ns is None:
                yield job


def _leftovers(workspace: Workspace, job: Job) -> bool:
    """Whether something of a job that has ended is still pinned."""
    for place in places_of(workspace.home, job.id) if not job.is_live else ():
        with suppress(OSError):
            if os.listdir(place):
                return True
    return False
