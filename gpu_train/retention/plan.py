"""What a policy would do to a job's checkpoints: which go, which stay, and why each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_train.retention.guard import Guards
from gpu_train.retention.policy import (
    AnyOf,
    BestN,
    EveryNSeconds,
    EveryNSteps,
    LatestDuration,
    LatestN,
    Policy,
)
from gpu_train.retention.setting import Retention
from gpu_train.tables.checkpoint import GONE, INCOMPLETE, VERIFIED, Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Fate:
    """What is to become of one checkpoint: whether it goes, and the reasons why it does or why it stays."""

    checkpoint: Checkpoint
    goes: bool
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy would do to a job as things are.

    Attributes:
        job: the job.
        retention: what is applied.
        fates: each checkpoint that has bytes, newest first.
    """

    job: Job
    retention: Retention
    fates: Sequence[Fate]

    @property
    def going(self) -> list[Checkpoint]:
        """What goes."""
        return [fate.checkpoint for fate in self.fates if fate.goes]


def plan_for(workspace: Workspace, job: Job, retention: Retention | None = None) -> Plan:
    """What is to become of a job's checkpoints, by what is set for it or by `retention` in its place."""
    chosen = retention_of(workspace, job) if retention is None else retention
    with workspace.store.registry.read() as txn:
        rows = list(workspace.checkpoints.scan(txn, job.id, reverse=True))
        return Plan(job, chosen, fates(rows, chosen, Guards(workspace, txn)))


def policy_of(retention: Retention) -> Policy | None:
    """The policy that settings mean; None when they keep everything."""
    if retention.keeps_all:
        return None
    policies: list[Policy] = []
    if retention.latest:
        policies.append(LatestN(retention.latest))
    policies += [BestN(best.metric, best.n, best.mode) for best in retention.best]
    if retention.every_steps:
        policies.append(EveryNSteps(retention.every_steps))
    if retention.every_seconds:
        policies.append(EveryNSeconds(retention.every_seconds))
    if retention.latest_duration:
        policies.append(LatestDuration(retention.latest_duration))
    return AnyOf(tuple(policies))


def retention_of(workspace: Workspace, job: Job) -> Retention:
    """What is set for a job: what it was started with, else its project's, else everybody's."""
    if job.retention is not None:
        return Retention.from_row(job.retention)
    return workspace.config.projects.get(job.project, workspace.config.retention)


def fates(checkpoints: Sequence[Checkpoint], retention: Retention, guards: Guards) -> list[Fate]:
    """What is to become of a job's checkpoints, in their order; those that are gone have no bytes and no fate."""
    policy = policy_of(retention)
    whole = [c for c in checkpoints if c.state == VERIFIED]
    preserved = policy.preserved(whole) if policy is not None else {}
    last = max((c.seq for c in whole), default=0)
    found = []
    for checkpoint in checkpoints:
        if checkpoint.state == GONE:
            continue
        stays = guards.against_retention(checkpoint)
        if policy is None:
            stays.insert(0, "no policy is set")
        elif checkpoint.seq in preserved:
            stays.insert(0, preserved[checkpoint.seq])
        elif checkpoint.state == INCOMPLETE and not (retention.incomplete and checkpoint.seq < last):
            stays.insert(0, "it is incomplete; only a person can say what it is worth")
        elif checkpoint.state not in (VERIFIED, INCOMPLETE):
            stays.insert(0, f"it is {checkpoint.state}")
        found.append(Fate(checkpoint, not stays, tuple(stays) or ("no policy preserves it",)))
    return found
