"""What the agent does with a job's older checkpoints whenever it has stored a new one."""

from __future__ import annotations

from typing import Protocol

from gpu_train.retention.plan import plan_for, retention_of
from gpu_train.retention.pruning import prune
from gpu_train.retention.trash import POLICY
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace

REMOVED_EVENT = "removed"


class OnEvent(Protocol):
    """Notes in the job's event log what happened."""

    def __call__(self, kind: str, text: str, **fields: object) -> None:
        """`kind` is for programs, `text` for people, `fields` are facts."""
        ...


class Upkeep:
    """Applies one job's retention policy, if it has one. Used by one thread; nothing that goes wrong is raised."""

    def __init__(self, workspace: Workspace, job: Job, event: OnEvent) -> None:
        self._workspace = workspace
        self._job = job
        self._event = event
        self._retention = retention_of(workspace, job)

    def stored(self) -> None:
        """A checkpoint was stored: drop what the policy does not preserve any more."""
        if self._retention.keeps_all:
            return
        try:
            removed = prune(self._workspace, plan_for(self._workspace, self._job, self._retention), POLICY)
        except Exception as e:  # a checkpoint that stays too long must not end the watch over those to come
            self._event("agent", f"older checkpoints could not be dropped, which is tried again with the next one: {e}")
            return
        for checkpoint in removed:
            self._event(
                REMOVED_EVENT, f"{checkpoint.name} went to the trash: the policy ({self._retention}) does not keep it",
                name=checkpoint.name, step=checkpoint.step, size_bytes=checkpoint.size_bytes,
            )  # fmt: skip
