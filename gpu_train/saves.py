"""How a job saves, as its last checkpoints tell: how often, how much, how far it has come."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median

from gpu_train.tables.checkpoint import VERIFIED, Checkpoint
from gpu_train.tables.job import Job
from gpu_train.whereabouts import plain_path
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import GpuTrainError

RECENT = 16
"""How many of the newest checkpoints are looked at. The store's deltas begin afresh now and then, so it takes some."""

SAMPLE = 32
"""How many of the older half are asked whether the trainer still has them."""

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Saves:
    """What one save of a job is and takes. What a trainer writes at one step (`best` beside `step-500`) is one save.

    Attributes:
        interval_s: seconds from one save to the next; for the first one since the start.
        interval_steps: training steps from one to the next; None when they are not known.
        stored_bytes: what one adds to the store.
        plain_bytes: what one is as plain files.
        plain_share: the share of them that the trainer leaves in its folder for good, from 0 to 1.
        step, total_steps: how far the training had come with the newest, and how far it is to go.
    """

    interval_s: float | None = None
    interval_steps: int | None = None
    stored_bytes: int = 0
    plain_bytes: int = 0
    plain_share: float = 0.0
    step: int | None = None
    total_steps: int | None = None

    @property
    def left(self) -> int | None:
        """How many are still to come; None when nothing says how long the run is."""
        if self.total_steps is None or self.step is None or not self.interval_steps:
            return None
        return max(0, math.ceil((self.total_steps - self.step) / self.interval_steps))


def finished_ns(checkpoint: Checkpoint, job: Job) -> int:
    """When the trainer had finished what a checkpoint holds; training since then is not in it.

    That is the newest change of its files. Files that are older than the run were copied in with their times.
    """
    changed = min(checkpoint.created_ns or checkpoint.committed_ns, checkpoint.committed_ns)
    return max(changed, job.started_ns or job.created_ns)


def saves_of(workspace: Workspace, job: Job) -> Saves | None:
    """How a job saves; None before its first checkpoint is stored."""
    with closing(workspace.checkpoints.history(job.id)) as rows:
        recent = list(islice((c for c in rows if c.record is not None), RECENT))
    if not any(c.state == VERIFIED for c in recent):
        return None
    recent.sort(key=lambda c: (finished_ns(c, job), c.seq))
    steps = sorted({c.step for c in recent if c.step is not None})
    moments = _moments(recent, job)
    return Saves(
        interval_s=_interval_s(moments, job),
        interval_steps=_interval_steps(workspace, steps, job),
        stored_bytes=round(sum(c.stored_bytes for c in recent) / len(moments)),
        plain_bytes=round(sum(c.size_bytes for c in recent) / len(moments)),
        plain_share=_plain_share(workspace, job.id, recent),
        step=steps[-1] if steps else None,
        total_steps=next((c.total_steps for c in reversed(recent) if c.total_steps), None),
    )


def largest_save_bytes(workspace: Workspace, job: Job) -> int:
    """What the largest of a job's recent saves was as plain files; before its first one, what it went on from was.

    0 when nothing is known.
    """
    with closing(workspace.checkpoints.history(job.id)) as rows:
        recent = list(islice(rows, RECENT))
    if not recent and job.parent:
        with suppress(GpuTrainError):  # it was removed since
            recent = [workspace.checkpoints.resolve(job.parent)[0]]
    return largest_of((row.base_name, row.step, row.thin.get("size_bytes", row.size_bytes)) for row in recent)


def largest_of(checkpoints: Iterable[tuple[str, int | None, int]]) -> int:
    """The most bytes that were written at once, by names, steps and sizes; 0 without any.

    What has one name is written over, what was written at one step lies there together.
    """
    saves: dict[object, dict[str, int]] = defaultdict(dict)
    for name, step, size_bytes in checkpoints:
        save = saves[name if step is None else step]
        save[name] = max(size_bytes, save.get(name, 0))
    return max((sum(save.values()) for save in saves.values()), default=0)


def _moments(recent: Sequence[Checkpoint], job: Job) -> list[int]:
    """When each save was finished, oldest first."""
    at = {c.step: finished_ns(c, job) for c in reversed(recent) if c.step is not None}
    named = sum(c.step is not None for c in recent)
    if 3 * named >= len(recent):  # those without a step, such as `last.ckpt`, were written beside them
        return sorted(at.values())
    return [finished_ns(c, job) for c in recent]


def _interval_s(moments: Sequence[int], job: Job) -> float:
    if len(moments) > 1:
        return (moments[-1] - moments[0]) / NS / (len(moments) - 1)
    return (moments[0] - (job.started_ns or job.created_ns)) / NS


def _interval_steps(workspace: Workspace, steps: Sequence[int], job: Job) -> int | None:
    if len(steps) > 1:
        return max(1, round(median(b - a for a, b in pairwise(steps))))
    if not steps:
        return None
    began = 0
    if job.parent:
        with suppress(GpuTrainError):  # what it went on from has been removed
            began = workspace.checkpoints.resolve(job.parent)[0].step or 0
    return steps[0] - began if steps[0] > began else max(1, steps[0])


def _plain_share(workspace: Workspace, job_id: str, recent: Sequence[Checkpoint]) -> float:
    """How much of what was saved in the first half of the job so far is still there as plain files.

    A trainer that keeps the last few has none of it left, one that keeps every tenth has a tenth.
    """
    half = max(c.seq for c in recent) // 2
    numbers = range(1, half + 1, max(1, half // SAMPLE))
    with workspace.store.registry.read() as txn:
        older = [c for n in numbers if (c := workspace.checkpoints.get_in(txn, job_id, n)) is not None]
    older = [c for c in older if c.record is not None] or list(recent[:1])
    return sum(plain_path(c) is not None for c in older) / len(older)
