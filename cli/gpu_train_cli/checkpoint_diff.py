"""`gpu-train checkpoints diff`: how two checkpoints differ, file by file and tensor by tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpu_train_cli.checkpoint_tensors import DAMAGED, shape_of, tell_troubles
from gpu_train_cli.command import Command
from gpu_train_cli.difference import LETTERS
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, note, reading, warn
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, printable

if TYPE_CHECKING:
    from gpu_train.comparison import Comparison, TensorChange
    from gpu_train.difference import Difference
    from gpu_train.tensor_table import StoredTensor


@click.command("diff", cls=Command, exits=[3, 4])
@click.argument("old", metavar="REF_A[/PATH]")
@click.argument("new", metavar="REF_B[/PATH]")
@click.option("--weights-only", is_flag=True, help="Only the model's tensors: no optimizer state, no counters.")
@click.option("--all", "everything", is_flag=True, help="List tensors that are the same, too.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="At most so many tensors, the most changed first."
)
@reading
@pass_invocation
def diff(
    invocation: Invocation,
    old: str,
    new: str,
    weights_only: bool,
    everything: bool,
    limit: int | None,
    output: Output,
) -> None:
    """Show which files differ between two checkpoints A and B, and how much each tensor does.

    Tensors are matched by name, whatever files and containers they are in. RELATIVE is ||A - B|| / ||B||, LARGEST the
    greatest change of one element, CHANGED how many elements are not equal. What consists of the same blocks is the
    same, and is not read. A tensor with a damaged block is told of, and the rest goes on.
    """
    from gpu_train.comparison import IDENTICAL  # noqa: PLC0415  help does without numpy
    from gpu_train.inspection import compare_refs  # noqa: PLC0415

    with invocation.workspace() as workspace, progress() as report:
        found = compare_refs(workspace, old, new, weights_only=weights_only, progress=report)
    changes = [change for change in found.tensors if everything or change.state != IDENTICAL]
    head = {
        "old": old,
        "new": new,
        "files": _file_fields(found.files) if found.files is not None else None,
        "counts": _counts(found),
        "troubles": [trouble._asdict() for trouble in found.troubles],
    }
    if output.for_people and found.files is not None:
        _show_files(found.files)
    rows = [_row(change) for change in changes[:limit]]
    output.listing(Listing("tensors", _columns(), rows, lambda row: str(row["name"]), "no tensor differs", head))
    if output.for_people:
        note(", ".join(f"{n:,} {state}" for state, n in _counts(found).items()) or "there are no tensors to compare")
        if len(rows) < len(changes):
            note(f"{count(len(changes) - len(rows), 'more tensor')} not shown: --limit {limit}")
    tell_troubles(found.troubles)
    for change in found.tensors:
        if change.damage:
            warn(f"tensor {change.name}: {change.damage}")
    if found.damaged:
        click.get_current_context().exit(DAMAGED)


def _counts(found: Comparison) -> dict[str, int]:
    return {state: found.count(state) for state in dict.fromkeys(change.state for change in found.tensors)}


def _file_fields(files: Difference) -> dict[str, list[str]]:
    return {"added": list(files.added), "removed": list(files.removed), "changed": list(files.changed)}


def _show_files(files: Difference) -> None:
    changes = sorted((path, word) for word, paths in _file_fields(files).items() for path in paths)
    click.echo("".join(f"{LETTERS[word]}  {printable(path)}\n" for path, word in changes), nl=False)
    if changes:
        click.echo()


def _row(change: TensorChange) -> dict[str, object]:
    return {
        "name": change.name,
        "state": change.state,
        "relative_change": change.relative,
        "largest_change": change.largest,
        "changed_elements": change.changed,
        "not_finite": change.not_finite,
        "damage": change.damage or None,
        **{f"{key}_old": value for key, value in _about(change.old).items()},
        **{f"{key}_new": value for key, value in _about(change.new).items()},
    }


def _about(tensor: StoredTensor | None) -> dict[str, object]:
    if tensor is None:
        return dict.fromkeys(("name", "dtype", "shape", "path"))
    return {"name": tensor.name, "dtype": tensor.dtype or None, "shape": list(tensor.shape), "path": tensor.path}


def _columns() -> list[Column]:
    return [
        Column("state", "STATE"),
        Column("relative_change", "RELATIVE", _figure, right=True),
        Column("largest_change", "LARGEST", _figure, right=True),
        Column("changed_elements", "CHANGED", right=True),
        Column("dtype_new", "DTYPE"),
        Column("shape_new", "SHAPE", lambda shape: "-" if shape is None else shape_of(shape), right=True),
        Column("name", "NAME", wrap=True),
    ]


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
