"""How a job is doing: what of it is safe, what would be lost if the machine died now, and how long the disks last."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_train.capture.board import InHand, Notice, Paused, read_board
from gpu_train.capture.pins import Holdings, PinUse, bound_bytes, places_of
from gpu_train.config import Config
from gpu_train.errors import AtRisk
from gpu_train.process import boot_id, is_alive, start_time
from gpu_train.rescue import rescue
from gpu_train.room import Disk, Room, room_for, shortage
from gpu_train.saves import NS, Saves, finished_ns
from gpu_train.sinks.queue import Queue
from gpu_train.tables.checkpoint import STATES, VERIFIED, Checkpoint
from gpu_train.tables.job import Job
from gpu_train.whereabouts import plain_path
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import GpuTrainError, ReadOnly

ALIVE = "alive"
DEAD = "dead"
NONE = "none"
RESTART_S = 2.0
"""How long a dead agent's runner is given to start another one before the agent is called dead."""

RESCUE_S = 5.0
"""How long `status` waits for jobs that are being put right."""

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class SinkState:
    """How far a configured sink is behind: whole checkpoints that it does not hold, since when the oldest waits.

    `error` is why the last attempt failed, "" when it did not.
    """

    address: str
    behind: int = 0
    behind_bytes: int = 0
    since_ns: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job at one moment.

    Attributes:
        job: its row.
        at_ns: the moment.
        agent: its capture agent: "alive", "dead", or "none" for a job that has ended or does not run yet.
        newest: the whole checkpoint that holds the most of the training; None when there is none.
        counts: how many checkpoints are in each state. plain: how many lie in the trainer's folder as they were stored.
        agent_log: where that agent complains.
        in_hand: those that are not stored yet, as the agent last told.
        paused: why its agent stores nothing at the moment; None when it does, or has nothing to store.
        reserve_bytes: what its agent keeps free of the disk that the trainer writes to.
        pins: what its pins hold. max_pin_bytes: what they may hold; None when no agent says so.
        room: how it saves, and how long the disks last.
        sinks: the configured sinks for checkpoints, and how far each is behind.
    """

    job: Job
    at_ns: int
    agent: str
    agent_log: Path
    newest: Checkpoint | None
    counts: Mapping[str, int]
    plain: int
    in_hand: tuple[InHand, ...]
    paused: Paused | None
    reserve_bytes: int
    pins: PinUse
    max_pin_bytes: int | None
    room: Room
    sinks: tuple[SinkState, ...]

    @property
    def saves(self) -> Saves | None:
        """How it saves."""
        return self.room.saves

    @property
    def disks(self) -> tuple[Disk, ...]:
        """The disks that it fills."""
        return self.room.disks

    @property
    def finished_ns(self) -> int | None:
        """When the trainer had finished what the newest whole checkpoint holds."""
        return None if self.newest is None else finished_ns(self.newest, self.job)

    @property
    def age_s(self) -> float:
        """How old the training in its newest whole checkpoint is; without one, how long ago the job began."""
        since = self.finished_ns or self.job.started_ns or self.job.created_ns
        return max(0.0, (self.at_ns - since) / NS)

    @property
    def at_risk_s(self) -> float | None:
        """Seconds of training that would be lost if the machine died now; None when the job does not run."""
        return self.age_s if self.job.status == "running" else None

    @property
    def warnings(self) -> list[str]:
        """What a person should see to, in words."""
        found = [f"{self.job.id}: its capture agent is dead, nothing is being captured"] if self.agent == DEAD else []
        found += [f"{self.job.id}: {self.paused}"] if self.paused is not None else []
        return found + [f"{self.job.id}: {text}" for text in shortage(self.room)]


def check_status(statuses: Iterable[JobStatus], max_age_s: float | None = None) -> None:
    """Complain about jobs that are not as safe as they should be, for monitoring.

    Raises:
        AtRisk: when an agent is dead, or the newest whole checkpoint is older than `max_age_s`; names all such jobs.
    """
    wrong = []
    for one in statuses:
        if one.agent == DEAD:
            wrong.append(f"{one.job.id}: its capture agent is dead; see the log {one.agent_log}")
        if max_age_s is not None and one.age_s > max_age_s:
            what = "there is no whole checkpoint yet" if one.newest is None else f"{one.newest.name} is the newest"
            wrong.append(f"{one.job.id}: {one.age_s:.0f} s of training are in no whole checkpoint ({what}), "
                         f"the limit is {max_age_s:.0f} s")  # fmt: skip
    if wrong:
        raise AtRisk("; ".join(wrong))


def status(job: str | None = None, *, home: Path | str | None = None) -> list[JobStatus]:
    """How the jobs that run or are queued are doing, newest first; or the one that is named, whether it runs or not.

    Jobs that nobody looks after any more are put right first (`rescue`), for a few seconds at most; what
    that does not finish goes on in the background.

    Raises:
        NotFound, UsageError: when there is no such job.
    """
    with _opened(home, create=job is None) as workspace:
        if not workspace.read_only:
            with suppress(GpuTrainError, OSError):  # such a job is shown as it is: its agent is dead
                rescue(workspace, RESCUE_S)
        wanted = [workspace.jobs.find(job)] if job is not None else workspace.jobs.live()
        return [status_of(workspace, one) for one in wanted]


def _opened(home: Path | str | None, *, create: bool) -> Workspace:
    try:
        return Workspace.open(home, create=create)
    except ReadOnly:
        return Workspace.open(home, read_only=True)


def status_of(workspace: Workspace, job: Job) -> JobStatus:
    """How a job is doing now."""
    notice, agent = _agent(workspace, job)
    newest: Checkpoint | None = None
    counts: Counter[str] = Counter(dict.fromkeys(STATES, 0))
    plain = 0
    behind = {address: SinkState(address) for address in _sinks(workspace, job)}
    with closing(workspace.checkpoints.newest(job.id)) as rows:
        for checkpoint in rows:
            counts[checkpoint.state] += 1
            plain += plain_path(checkpoint) is not None
            if checkpoint.state == VERIFIED:
                if newest is None or finished_ns(checkpoint, job) > finished_ns(newest, job):
                    newest = checkpoint
                for address in (s for s in behind if s not in checkpoint.pushed):
                    behind[address] = _one_more(behind[address], checkpoint)
    if behind:
        for item in Queue(workspace.store.registry).waiting(job_id=job.id):
            if item.error and item.address in behind:
                behind[item.address] = replace(behind[item.address], error=item.error)
    places = places_of(workspace.home, job.id)
    holdings = Holdings(places)
    is_watched = job.is_live and notice.is_current
    return JobStatus(
        job, time.time_ns(), agent, workspace.home.logs(job.id) / "agent.log", newest, dict(counts), plain,
        notice.in_hand if job.is_live else (), notice.paused if is_watched else None,
        notice.reserve_bytes if is_watched else 0, holdings.use,
        bound_bytes(notice.max_pin_bytes, holdings, places, notice.reserve_bytes) if is_watched else None,
        room_for(workspace, job),
        tuple(behind.values()),
    )  # fmt: skip


def _agent(workspace: Workspace, job: Job) -> tuple[Notice, str]:
    """What the job's agent tells, and whether it is alive; one that is about to be started again counts as alive."""
    deadline = time.monotonic() + RESTART_S
    while True:
        notice = read_board(workspace.home.control(job.id))
        if job.status != "running":
            return notice, NONE
        if notice.is_current or _older_agent(job, notice):
            return notice, ALIVE
        if time.monotonic() > deadline or not is_alive(job.runner_pid, job.runner_start, job.boot_id):
            return notice, DEAD
        time.sleep(POLL_S)
        job = workspace.jobs.get(job.id) or job


def _older_agent(job: Job, notice: Notice) -> bool:
    """Whether there is an agent of a version that tells nothing."""
    known = job.agent_pid is not None and job.boot_id == boot_id()
    return known and notice.pid is None and start_time(job.agent_pid or 0) is not None


def _sinks(workspace: Workspace, job: Job) -> tuple[str, ...]:
    """The sinks that the job's own settings name."""
    cwd = Path(job.cwd)
    settings = Config.load(workspace.home, cwd=cwd if cwd.is_dir() else None).sinks
    return tuple(sink.address for sink in settings.checkpoints)


def _one_more(state: SinkState, checkpoint: Checkpoint) -> SinkState:
    return replace(
        state, behind=state.behind + 1, behind_bytes=state.behind_bytes + checkpoint.size_bytes,
        since_ns=min(state.since_ns or checkpoint.committed_ns, checkpoint.committed_ns),
    )  # fmt: skip
