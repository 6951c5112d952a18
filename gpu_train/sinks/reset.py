"""Forgetting a sink that was emptied or lost."""

from __future__ import annotations

from gpu_train.sinks.holdings import Holdings
from gpu_train.sinks.queue import Queue
from gpu_train.sinks.setting import SinkSetting
from gpu_train.sinks.unmark import unmark
from gpu_train.workspace import Workspace


def reset(workspace: Workspace, setting: SinkSetting) -> int:
    """Forget what a sink holds, and what waits to be pushed there; how many checkpoints counted as held by it."""
    queue = Queue(workspace.store.registry)
    queue.done(queue.waiting(setting.address))
    holdings = Holdings(workspace.store.registry, setting.address)
    with workspace.store.registry.write() as raw:
        holdings.forget(raw)
    return unmark(workspace, setting.address)
