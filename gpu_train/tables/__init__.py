"""The library's tables in the registry: jobs, their checkpoints, metrics and events.

Each module has a frozen row class and the table class that reads and writes it. Rows are msgpack maps:
fields that a newer version wrote survive a rewrite. (They are a package of their own because `checkpoint`,
`event` and `run` are functions of `gpu_train`, which a module of that name would hide.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_train_cas.lazy import lazy_names

if TYPE_CHECKING:
    from gpu_train.tables.checkpoint import Checkpoint, Checkpoints
    from gpu_train.tables.event import Event, Events
    from gpu_train.tables.job import Job, Jobs
    from gpu_train.tables.metric import Metric, Metrics

__all__ = ["Checkpoint", "Checkpoints", "Event", "Events", "Job", "Jobs", "Metric", "Metrics"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gpu_train.tables.checkpoint": ("Checkpoint", "Checkpoints"),
        "gpu_train.tables.event": ("Event", "Events"),
        "gpu_train.tables.job": ("Job", "Jobs"),
        "gpu_train.tables.metric": ("Metric", "Metrics"),
    },
)
