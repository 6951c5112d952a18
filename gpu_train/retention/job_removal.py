"""Removing whole jobs: all their checkpoints go to the trash, but for those that must stay, and the jobs with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_train.retention.guard import Guards
from gpu_train.retention.plan import Fate
from gpu_train.retention.trash import Moved, Trash
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import Busy, NotFound

COMMAND = "jobs rm"
PROJECT_COMMAND = "projects rm"


@dataclass(frozen=True, slots=True)
class JobsPlan:
    """What removing jobs would do: the fate of each of their checkpoints. A job stays when one of these does."""

    jobs: Sequence[Job]
    fates: Sequence[Fate]

    @property
    def going(self) -> list[Checkpoint]:
        """The checkpoints that go."""
        return [fate.checkpoint for fate in self.fates if fate.goes]

    @property
    def staying(self) -> list[Job]:
        """The jobs that stay."""
        kept = {fate.checkpoint.job_id for fate in self.fates if not fate.goes}
        return [job for job in self.jobs if job.id in kept]


def jobs_of_project(workspace: Workspace, project: str) -> list[Job]:
    """All jobs of a project, newest first.

    Raises:
        NotFound: when there is none.
    """
    found = workspace.jobs.list(project=project)
    if not found:
        raise NotFound(f"no project {project!r}; `gpu-train projects` lists what there is")
    return found


def plan_for_jobs(workspace: Workspace, jobs: Sequence[Job]) -> JobsPlan:
    """What would become of jobs' checkpoints.

    Raises:
        Busy: when one of the jobs is running.
    """
    with workspace.store.registry.read() as txn:
        guards = Guards(workspace, txn)
        _refuse_running(guards, jobs)
        rows = [c for job in jobs for c in workspace.checkpoints.scan(txn, job.id, reverse=True)]
        return JobsPlan(jobs, [_fate(guards, checkpoint) for checkpoint in rows])


def remove_jobs(workspace: Workspace, plan: JobsPlan, by: str = COMMAND) -> Moved:
    """Move all checkpoints of jobs to the trash, but for those that must stay, and the jobs that have none left.

    What stays is kept, deployed, or the start of a running job. Files and logs of a job that went are deleted when its
    days in the trash are over (`purging`).

    Raises:
        Busy: when one of the jobs is running; nothing was removed then.
        StorageFull: when there is not even room to note it.
    """

    def choose(guards: Guards, part: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
        _refuse_running(guards, plan.jobs)
        return (c for c in part if _fate(guards, c).goes)

    return Trash(workspace).remove([f.checkpoint for f in plan.fates], by, choose, jobs=plan.jobs)


def _fate(guards: Guards, checkpoint: Checkpoint) -> Fate:
    reasons = guards.against_removal(checkpoint)
    return Fate(checkpoint, not reasons, tuple(reasons))


def _refuse_running(guards: Guards, jobs: Sequence[Job]) -> None:
    running = [job.id for job in jobs if guards.is_live(job.id)]
    if running:
        some = ", ".join(running[:3]) + (f" and {len(running) - 3} more" if len(running) > 3 else "")
        verb = "is" if len(running) == 1 else "are"
        raise Busy(f"{some} {verb} running and cannot be removed; `gpu-train stop {running[0]}` ends a job")
