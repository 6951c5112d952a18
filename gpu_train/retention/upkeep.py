"""What the agent does with a job's older checkpoints and their plain files, after each new one and at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpu_train.retention.plan import plan_for, retention_of
from gpu_train.retention.pruning import prune
from gpu_train.retention.setting import KEEP, LATEST
from gpu_train.retention.trash import POLICY
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace

REMOVED_EVENT = "removed"
RECLAIMED_EVENT = "reclaimed"


class OnEvent(Protocol):
    """Notes in the job's event log what happened."""

    def __call__(self, kind: str, text: str, **fields: object) -> None:
        """`kind` is for programs, `text` for people, `fields` are facts."""
        ...


class Upkeep:
    """Applies one job's retention policy and `defaults.plain_checkpoints`; without either it does nothing.

    Used by one thread at a time; nothing that goes wrong is raised: it must not end the watch over what is to come.
    """

    def __init__(self, workspace: Workspace, job: Job, event: OnEvent) -> None:
        self._workspace = workspace
        self._job = job
        self._event = event
        self._retention = retention_of(workspace, job)
        self._plain = workspace.config.defaults.plain_checkpoints

    def stored(self) -> None:
        """A checkpoint was stored: drop what the policy no longer preserves, free what the trainer is done with."""
        if not self._retention.keeps_all:
            self._try("older checkpoints could not be dropped", self._prune)
        if self._plain != KEEP:
            self._try("plain files could not be freed", self._reclaim)

    def ended(self) -> None:
        """The job has ended and its row says so: metrics that came last count, and no trainer needs a file any more."""
        self.stored()

    def _try(self, failure: str, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as e:
            self._event("agent", f"{failure}: {e}")

    def _prune(self) -> None:
        for checkpoint in prune(self._workspace, plan_for(self._workspace, self._job, self._retention), POLICY):
            self._event(
                REMOVED_EVENT, f"{checkpoint.name} went to the trash: the policy ({self._retention}) does not keep it",
                name=checkpoint.name, step=checkpoint.step, size_bytes=checkpoint.size_bytes,
            )  # fmt: skip

    def _reclaim(self) -> None:
        # Most jobs keep their plain files, and their agents do without all of this.
        from gpu_train.retention.plain import plan_reclaim  # noqa: PLC0415
        from gpu_train.retention.reclaiming import finish_reclaim, reclaim  # noqa: PLC0415

        job = self._workspace.jobs.get(self._job.id) or self._job
        finish_reclaim(self._workspace, job)
        plan = plan_reclaim(self._workspace, job, keep_latest=self._plain == LATEST, deep=False)
        for files in reclaim(self._workspace, plan):
            name = files.found.name
            self._event(
                RECLAIMED_EVENT, f"the plain files of {name} were deleted; it is stored, and defaults.plain_checkpoints"
                f" is {self._plain!r}", name=name, freed_bytes=files.size_bytes,
            )  # fmt: skip
