"""Dropping what no policy preserves: `checkpoints prune`, and the agent after each checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_train.retention.guard import Guards
from gpu_train.retention.plan import Plan, fates
from gpu_train.retention.trash import Trash
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.workspace import Workspace

COMMAND = "checkpoints prune"


def prune(workspace: Workspace, plan: Plan, by: str = COMMAND) -> list[Checkpoint]:
    """Move what no policy preserves to the trash; what was.

    Never dropped: a job's newest whole checkpoint, one that is kept, deployed or the start of a running job, and one
    that is not yet in every sink that checkpoints are pushed to.

    Raises:
        StorageFull: when there is not even room to note it.
    """
    if not plan.going:
        return []

    def choose(guards: Guards, part: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
        """What goes as things are now: a checkpoint stored meanwhile, or another removal, may have changed it."""
        rows = list(workspace.checkpoints.scan(guards.txn, plan.job.id))
        wanted = {c.seq for c in part}
        yield from (f.checkpoint for f in fates(rows, plan.retention, guards) if f.goes and f.checkpoint.seq in wanted)

    return Trash(workspace).remove(plan.going, by, choose, "no policy preserved it").checkpoints
