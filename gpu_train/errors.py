"""What the library raises on purpose beside the engine's errors (gpu_train_cas.errors).

Damaged                       exit 4
└── DataChanged               exit 4   registered data that is no longer what it was
Incomplete                    exit 4
└── AtRisk                    exit 4   a job with too much training in no checkpoint yet, or without an agent
GpuTrainError                 exit 1
├── Protected                 exit 1   a checkpoint or job that may not be removed now
└── SinkFailed                exit 5   a destination outside did not do what it was asked
    ├── Unavailable           exit 5   it may work in a while: no answer, an error of the server, too many requests
    ├── Refused               exit 5   it will not work before a person does something: credentials, rights
    ├── Corrupted             exit 5   what it holds, or sent, is not what was written
    └── Taken                 exit 5   an object is there already that was to be new
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


class SinkFailed(GpuTrainError):
    """A sink did not do what it was asked; the message names the sink."""

    exit_code = 5


class Unavailable(SinkFailed):
    """A sink that may work again in a while.

    Attributes:
        retry_after_s: how long it asked to be left alone; None when it did not say.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Refused(SinkFailed):
    """A sink that will not work before a person does something about it."""


class Corrupted(SinkFailed):
    """What a sink holds, or sent, is not what was written to it."""


class Taken(SinkFailed):
    """An object of that key is there already."""
