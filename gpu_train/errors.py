"""What the library raises on purpose beside the engine's errors (gpu_train_cas.errors).

Damaged                       exit 4
└── DataChanged               exit 4   registered data that is no longer what it was
Incomplete                    exit 4
└── AtRisk                    exit 4   a job with too much training in no checkpoint yet, or without an agent
GpuTrainError                 exit 1
└── Protected                 exit 1   a checkpoint or job that may not be removed now
"""

from __future__ import annotations

from gpu_train_cas.errors import Damaged, GpuTrainError, Incomplete


class DataChanged(Damaged):
    """The bytes at a data version's path are not that version any more.

    Attributes:
        name: the data's name.
        version: the version that was wanted.
    """

    def __init__(self, message: str, name: str, version: str) -> None:
        super().__init__(message)
        self.name = name
        self.version = version


class AtRisk(Incomplete):
    """A job whose newest whole checkpoint is too old, or whose capture agent is dead."""


class Protected(GpuTrainError):
    """A checkpoint or a job that may not be removed as things are; the message says why."""
