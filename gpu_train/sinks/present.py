"""What a home has of what is to be brought into it."""

from __future__ import annotations

from gpu_train.workspace import Workspace
from gpu_train_cas.digest import Digest, Kind


class Present:
    """Says of blocks and objects whether the home has them, whole as far as is known (see `closure.Has`).

    Attributes:
        relied: those of which it said yes, for `Store.adopt`: gc must not have taken them by then.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._store = workspace.store
        self.relied: list[Digest] = []

    def __call__(self, digest: Digest, kind: Kind) -> bool:
        """Whether it is here."""
        with self._store.registry.read() as txn:
            usable = self._store.tables.index.usable(txn, digest)
        if usable:
            self.relied.append(digest)
        return usable
