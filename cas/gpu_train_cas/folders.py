"""Where a store keeps its files below a home."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self


class Folders(NamedTuple):
    """The packs, what is not finished, the marks of the writers and those of the readers."""

    packs: Path
    tmp: Path
    leases: Path
    holds: Path

    @classmethod
    def of(cls, root: Path) -> Self:
        """Those of the home at `root`."""
        store = root / "store"
        return cls(store / "packs", store / "tmp", store / "leases", store / "holds")
