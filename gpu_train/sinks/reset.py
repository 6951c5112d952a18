"""Forgetting a sink that was emptied or lost."""

from __future__ import annotations

from gpu_train.sinks.holdings import Holdings
from gpu_train.sinks.queue import Queue
from gpu_train.sinks.setting import SinkSetting
from gpu_train.workspace import Workspace


def reset(workspace: Workspace, setting: SinkSetting) -> int:
    """Forget what a sink holds, and what waits to be pushed there; how many checkpoints counted as held by it."""
    queue = Queue(workspace.store.registry)
    queue.done(queue.waiting(setting.address))
    holdings = Holdings(workspace.store.registry, setting.address)
    with workspace.store.registry.write() as raw:
        holdings.forget(raw)
    held = [c for c in workspace.checkpoints.list() if setting.address in c.pushed]
    with workspace.store.transaction("reset") as txn:
        for checkpoint in held:
            row = workspace.checkpoints.get_in(txn.txn, checkpoint.job_id, checkpoint.seq)
            if row is not None:
                left = {address: when for address, when in row.pushed.items() if address != setting.address}
                workspace.checkpoints.put_in(txn, row._replace(pushed=left))
    return len(held)
