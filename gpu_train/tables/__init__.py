"""The library's tables in the registry: jobs, their checkpoints, metrics and events.

Each module has a frozen row class and the table class that reads and writes it. Rows are msgpack maps:
fields that a newer version wrote survive a rewrite. (They are a package of their own because `checkpoint`,
`event` and `run` are functions of `gpu_train`, which a module of that name would hide.)
"""

from gpu_train.tables.checkpoint import Checkpoint, Checkpoints
from gpu_train.tables.event import Event, Events
from gpu_train.tables.job import Job, Jobs
from gpu_train.tables.metric import Metric, Metrics

__all__ = ["Checkpoint", "Checkpoints", "Event", "Events", "Job", "Jobs", "Metric", "Metrics"]
