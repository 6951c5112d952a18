"""What the library raises on purpose beside the engine's errors (gpu_train_cas.errors).

Damaged                       exit 4
└── DataChanged               exit 4   registered data that is no longer what it was
"""

from __future__ import annotations

from gpu_train_cas.errors import Damaged


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
