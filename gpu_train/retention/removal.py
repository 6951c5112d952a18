"""Removing checkpoints by their refs, and taking removals back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_train.errors import Protected
from gpu_train.ref import Ref
from gpu_train.retention.guard import Guards
from gpu_train.retention.thinning import make_whole, thinned
from gpu_train.retention.trash import Moved, Trash
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import Incomplete, NotFound, UsageError

COMMAND = "checkpoints rm"


@dataclass(frozen=True, slots=True)
class Undone:
    """What came back, what was thinned and is whole again, and what could not since gc has taken its bytes."""

    checkpoints: Sequence[Checkpoint]
    whole: Sequence[Checkpoint] = ()
    jobs: Sequence[Job] = ()
    lost: Sequence[Checkpoint] = ()


def find(workspace: Workspace, refs: Iterable[str]) -> list[Checkpoint]:
    """The checkpoints that refs name, each once.

    Raises:
        NotFound, Incomplete, UsageError: as for `Checkpoints.resolve`; UsageError also for a ref with a path.
    """
    found: dict[tuple[str, int], Checkpoint] = {}
    for ref in refs:
        checkpoint, path = workspace.checkpoints.resolve(ref)
        if path:
            raise UsageError(f"{ref} names a path inside a checkpoint; only a whole one can be named: {checkpoint.ref}")
        found[checkpoint.job_id, checkpoint.seq] = checkpoint
    return list(found.values())


def remove(workspace: Workspace, checkpoints: Sequence[Checkpoint], by: str = COMMAND) -> list[Checkpoint]:
    """Move checkpoints to the trash, all of them or none; those that were there still.

    Raises:
        Protected: when one of them must stay, with the reason.
        StorageFull: when there is not even room to note it.
    """

    def choose(guards: Guards, part: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
        for checkpoint in part:
            reasons = guards.against_removal(checkpoint)
            if reasons:
                raise Protected(f"{checkpoint.ref} cannot be removed: {'; '.join(reasons)}")
        return part

    return Trash(workspace).remove(checkpoints, by, choose).checkpoints


def undo(workspace: Workspace, refs: Sequence[str] = ()) -> Undone:
    """Take back what the last command did, or what refs name: a checkpoint that was removed or thinned, or a job's all.

    Raises:
        NotFound: when there is nothing of the kind in the trash.
        StorageFull: when there is not even room to note it.
    """
    removed, thin = _named(workspace, refs) if refs else _last(workspace)
    if not (removed or thin):
        raise NotFound("nothing was removed that could be brought back; `gpu-train checkpoints list --trash` is empty")
    back = Trash(workspace).undo(removed)
    whole = make_whole(workspace, thin)
    there = {(c.job_id, c.seq) for c in (*back.checkpoints, *whole)}
    with workspace.store.registry.read() as txn:
        left = [workspace.checkpoints.get_removed_in(txn, c.job_id, c.seq) for c in removed.checkpoints]
    lost = [c for c in (*left, *thin) if c is not None and (c.job_id, c.seq) not in there]
    return Undone(back.checkpoints, whole, back.jobs, lost)


def _last(workspace: Workspace) -> tuple[Moved, list[Checkpoint]]:
    """What the last command removed or thinned."""
    removed, thin = Trash(workspace).last(), thinned(workspace)
    last_thin_ns = max((c.thin["thinned_ns"] for c in thin), default=0)
    if removed and removed.when_ns > last_thin_ns:
        return removed, []
    return Moved(), [c for c in thin if c.thin["thinned_ns"] == last_thin_ns]


def _named(workspace: Workspace, refs: Iterable[str]) -> tuple[Moved, list[Checkpoint]]:
    found: dict[tuple[str, int], Checkpoint] = {}
    thin: dict[tuple[str, int], Checkpoint] = {}
    jobs: dict[str, Job] = {}
    for text in refs:
        ref = Ref.parse(text)
        job = workspace.jobs.find_removed(ref.job) if workspace.jobs.look_up(ref.job) is None else None
        if job is not None:
            jobs[job.id] = job
        owner = job or workspace.jobs.find(ref.job)
        named = workspace.checkpoints.removed(owner.id, ref)
        slim = [] if named and ref.selector else _thin_ones(workspace, owner, ref)
        if not (named or slim) and (job is None or ref.selector):
            raise NotFound(f"{text} names nothing that was removed; `gpu-train checkpoints list --trash` shows what is")
        found |= {(c.job_id, c.seq): c for c in named}
        thin |= {(c.job_id, c.seq): c for c in slim}
    return Moved(list(found.values()), list(jobs.values())), list(thin.values())


def _thin_ones(workspace: Workspace, job: Job, ref: Ref) -> list[Checkpoint]:
    """The thinned checkpoints that a ref names: one, or all of its job."""
    if not ref.selector:
        return [c for c in workspace.checkpoints.list(job.id) if c.thin]
    try:
        checkpoint, _ = workspace.checkpoints.resolve(ref)
    except (NotFound, Incomplete):
        return []
    return [checkpoint] if checkpoint.thin else []
