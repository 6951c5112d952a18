"""What changed between two versions, for people as `A path`, `M path`, `D path`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpu_train_cli.output import Column, Listing, Output

if TYPE_CHECKING:
    from gpu_train.difference import Difference

LETTERS = {"added": "A", "changed": "M", "removed": "D"}


def show_difference(output: Output, difference: Difference, head: Mapping[str, object]) -> None:
    """Write a difference: paths in order, each with what happened to it."""
    changes = [
        *(("added", path) for path in difference.added),
        *(("changed", path) for path in difference.changed),
        *(("removed", path) for path in difference.removed),
    ]
    rows = [{"path": path, "change": change} for change, path in sorted(changes, key=lambda pair: pair[1])]
    columns = [Column("change", "CHANGE", lambda change: LETTERS[change]), Column("path", "PATH", wrap=True)]
    output.listing(Listing("changes", columns, rows, lambda row: str(row["path"]), "no difference", head))
