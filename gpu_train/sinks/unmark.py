"""Taking back what the rows of checkpoints say of a sink that no longer holds them."""

from __future__ import annotations

from collections.abc import Callable

from gpu_train.tables import Checkpoint
from gpu_train.workspace import Workspace


def unmark(workspace: Workspace, address: str, is_stale: Callable[[Checkpoint], bool] = lambda checkpoint: True) -> int:
    """Have the rows for which `is_stale` not say any more that the sink holds them; how many said so."""
    marked = [c for c in workspace.checkpoints.list() if address in c.pushed and is_stale(c)]
    if marked:
        with workspace.store.transaction("unmark") as txn:
            for checkpoint in marked:
                row = workspace.checkpoints.get_in(txn.txn, checkpoint.job_id, checkpoint.seq)
                if row is not None:
                    left = {other: when for other, when in row.pushed.items() if other != address}
                    workspace.checkpoints.put_in(txn, row._replace(pushed=left))
    return len(marked)
