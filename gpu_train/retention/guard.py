"""What no policy may drop, and what no command may remove: the reasons, in words, at one moment."""

from __future__ import annotations

from gpu_train.tables.checkpoint import VERIFIED, Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.registry import Txn

_DEPLOYED = "it is tagged as deployed"


class Guards:
    """The reasons as they are in one transaction; inside a write transaction nothing can change under them."""

    def __init__(self, workspace: Workspace, txn: Txn) -> None:
        self._workspace = workspace
        self.txn = txn
        self._sinks = [sink.address for sink in workspace.config.sinks.checkpoints]
        self._live: dict[str, Job] = {job.id: job for job in workspace.jobs.live_in(txn)}
        self._started_from: dict[str, str] = {}
        for job in self._live.values():
            for ref in (job.parent, *job.loads):
                if ref:
                    self._started_from[ref] = job.id
        self._last: dict[str, int | None] = {}

    def is_live(self, job_id: str) -> bool:
        """Whether the job has not ended."""
        return job_id in self._live

    def against_removal(self, checkpoint: Checkpoint) -> list[str]:
        """Why nobody may remove a checkpoint now."""
        found = []
        if checkpoint.kept:
            found.append("it is kept (`gpu-train checkpoints unkeep`)")
        if checkpoint.is_deployed:
            found.append(_DEPLOYED)
        job = self._started_from.get(checkpoint.ref)
        if job is not None:
            found.append(f"job {job} started from it and is still running")
        if self.is_live(checkpoint.job_id) and self.is_last(checkpoint):
            found.append("it is the newest whole one of a job that is still running")
        return found

    def against_thinning(self, checkpoint: Checkpoint) -> list[str]:
        """Why nobody may take a checkpoint's optimizer's state away now. One that only serves does not need it."""
        found = self.against_removal(checkpoint)
        if checkpoint.is_deployed:
            found.remove(_DEPLOYED)
        return found + self._not_pushed(checkpoint)

    def against_retention(self, checkpoint: Checkpoint) -> list[str]:
        """Why no policy may drop a checkpoint now."""
        found = self.against_removal(checkpoint)
        if self.is_last(checkpoint) and not self.is_live(checkpoint.job_id):
            found.append("it is the newest whole one")
        return found + self._not_pushed(checkpoint)

    def is_last(self, checkpoint: Checkpoint) -> bool:
        """Whether it is its job's newest whole one."""
        return checkpoint.seq == self.last_whole(checkpoint.job_id)

    def last_whole(self, job_id: str) -> int | None:
        """The number of a job's newest whole checkpoint; None when it has none."""
        if job_id not in self._last:
            newest = self._workspace.checkpoints.scan(self.txn, job_id, reverse=True)
            self._last[job_id] = next((c.seq for c in newest if c.state == VERIFIED), None)
        return self._last[job_id]

    def _not_pushed(self, checkpoint: Checkpoint) -> list[str]:
        missing = [sink for sink in self._sinks if sink not in checkpoint.pushed]
        return [f"it is not yet in {', '.join(missing)}"] if missing else []
