"""Removing checkpoints by their refs, keeping them from it, and taking removals back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpu_train.errors import Protected
from gpu_train.ref import Ref
from gpu_train.retention.guard import Guards
from gpu_train.retention.trash import Moved, Trash
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import NotFound, UsageError

COMMAND = "checkpoints rm"


@dataclass(frozen=True, slots=True)
class Undone:
    """What came back, and what could not since gc has taken its bytes."""

    checkpoints: Sequence[Checkpoint]
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


def keep(workspace: Workspace, checkpoints: Iterable[Checkpoint], *, kept: bool = True) -> list[Checkpoint]:
    """Forbid, or with `kept` False allow again, that checkpoints are removed; those for which that is new.

    Raises:
        NotFound: when one was removed meanwhile.
    """
    changed = []
    with workspace.store.transaction("keep") as txn:
        for old in checkpoints:
            now = workspace.checkpoints.get_in(txn.txn, old.job_id, old.seq)
            if now is None or now.kept != kept:
                workspace.checkpoints.put_in(txn, replace(now or old, kept=kept))
                changed.append(replace(now or old, kept=kept))
    return changed


def undo(workspace: Workspace, refs: Sequence[str] = ()) -> Undone:
    """Bring back what the last command removed, or what refs name: a checkpoint, or a job with all that it lost.

    Raises:
        NotFound: when there is nothing of the kind in the trash.
        StorageFull: when there is not even room to note it.
    """
    trash = Trash(workspace)
    wanted = _named(workspace, refs) if refs else trash.last()
    if not wanted:
        raise NotFound("nothing was removed that could be brought back; `gpu-train checkpoints list --trash` is empty")
    back = trash.undo(wanted)
    there = {(c.job_id, c.seq) for c in back.checkpoints}
    with workspace.store.registry.read() as txn:
        left = [workspace.checkpoints.get_removed_in(txn, c.job_id, c.seq) for c in wanted.checkpoints]
    lost = [c for c in left if c is not None and (c.job_id, c.seq) not in there]
    return Undone(back.checkpoints, back.jobs, lost)


def _named(workspace: Workspace, refs: Iterable[str]) -> Moved:
    found: dict[tuple[str, int], Checkpoint] = {}
    jobs: dict[str, Job] = {}
    for text in refs:
        ref = Ref.parse(text)
        job = workspace.jobs.find_removed(ref.job) if workspace.jobs.look_up(ref.job) is None else None
        if job is not None:
            jobs[job.id] = job
        owner = job or workspace.jobs.find(ref.job)
        named = workspace.checkpoints.removed(owner.id, ref)
        if not named and (job is None or ref.selector):
            raise NotFound(f"{text} names nothing that was removed; `gpu-train checkpoints list --trash` shows what is")
        found |= {(c.job_id, c.seq): c for c in named}
    return Moved(list(found.values()), list(jobs.values()))
