"""`gpu-train checkpoints tensors`: what tensors a checkpoint holds, and figures of them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from gpu_train_cas.errors import NotFound
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, note, reading, warn
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, plain, printable, size

if TYPE_CHECKING:
    from gpu_train.tensor_stats import TensorStats
    from gpu_train.tensor_table import StoredTensor, TensorTable, Trouble
    from gpu_train_cas import OnProgress

DAMAGED = 4
SHOWN_NAMES = 3
FIGURES = ("least", "largest", "mean", "std", "norm", "zeros", "nans", "infinities")


@click.command("tensors", cls=Command, exits=[3, 4])
@click.argument("ref", metavar="REF[/PATH]")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--filter",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Only names that match, such as '*.attn.*'; without * ? [ those that contain it. May be repeated.",
)
@click.option(
    "--stats", "with_stats", is_flag=True, help="Read them and reckon min, max, mean, std, norm, zeros, NaN, Inf."
)
@reading
@pass_invocation
def tensors(
    invocation: Invocation,
    ref: str,
    names: tuple[str, ...],
    patterns: tuple[str, ...],
    with_stats: bool,
    output: Output,
) -> None:
    """List the tensors of the checkpoint REF, or of the file or folder REF/PATH, with types, shapes and sizes.

    safetensors, torch archives (.pt, .ckpt, .bin), torch.distributed.checkpoint, npz, npy and GGUF are looked into;
    nothing is unpickled or executed. NAMEs are whole names. Figures are those of the finite elements; quantised blocks
    have none. A file or block that is damaged is told of, and the rest goes on.
    """
    from gpu_train.reading import opened  # noqa: PLC0415  help does without the store
    from gpu_train.tensor_table import table_of  # noqa: PLC0415
    from gpu_train.training_state import is_weight, training_state  # noqa: PLC0415

    with (
        invocation.workspace() as workspace,
        opened(workspace, ref, "tensors") as (checkpoint, entry, path),
        progress() as report,
    ):
        table = table_of(workspace.store.reader, entry, path)
        found = [tensor for tensor in table.tensors if _matches(tensor.name, names, patterns)]
        _insist(ref, names, [tensor.name for tensor in table.tensors])
        state = training_state(table)
        figures = _reckoned(table, found, report) if with_stats else [(tensor, None) for tensor in found]
    rows = [_row(tensor) | (_figures(stats) if with_stats else {}) for tensor, stats in figures]
    head = {
        "job_id": checkpoint.job_id,
        "checkpoint_id": checkpoint.name,
        "path": path or None,
        **_totals(found, is_weight),
        **(state.to_row() if not path else {}),
        "troubles": [trouble._asdict() for trouble in table.troubles],
    }
    columns = _columns(with_stats=with_stats)
    output.listing(Listing("tensors", columns, rows, lambda row: str(row["name"]), "no tensors in it", head))
    if output.for_people:
        note(_summary(found, is_weight))
        if not path:
            note(f"it can {state}")
    tell_troubles(table.troubles)
    broken = [(tensor.name, stats.damage) for tensor, stats in figures if stats is not None and stats.damage]
    for name, damage in broken:
        warn(f"tensor {name}: {damage}")
    if table.damaged or broken:
        click.get_current_context().exit(DAMAGED)


def _reckoned(
    table: TensorTable, tensors: Sequence[StoredTensor], report: OnProgress
) -> list[tuple[StoredTensor, TensorStats | None]]:
    from gpu_train.tensor_stats import stats_of  # noqa: PLC0415  listing does without numpy

    return list(stats_of(table, tensors, report))


def tell_troubles(troubles: Iterable[Trouble]) -> None:
    """Say on stderr which files are damaged, or cannot be looked into."""
    for trouble in troubles:
        (warn if trouble.damaged else note)(f"{trouble.path}: {trouble.reason}")


def shape_of(shape: Sequence[int]) -> str:
    """A shape as people write it: `30522x384`, `scalar`."""
    return "x".join(map(str, shape)) or "scalar"


def _matches(name: str, names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not (names or patterns):
        return True
    return name in names or any(
        fnmatch.fnmatchcase(name, p) if re.search(r"[*?\[]", p) else p in name for p in patterns
    )


def _insist(ref: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            near = f"; there are {', '.join(known[:SHOWN_NAMES])}, ..." if known else ""
            raise NotFound(f"{ref} has no tensor {name!r}{near}")


def _row(tensor: StoredTensor) -> dict[str, object]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype or None,
        "shape": list(tensor.shape),
        "elements": tensor.elements,
        "size_bytes": tensor.size_bytes,
        "path": tensor.path,
        "parts": [part._asdict() for part in tensor.parts],
    }


def _figures(stats: TensorStats | None) -> dict[str, object]:
    if stats is None:
        return dict.fromkeys((*FIGURES, "damage"))
    return {figure: getattr(stats, figure) for figure in FIGURES} | {"damage": stats.damage or None}


def _columns(*, with_stats: bool) -> list[Column]:
    columns = [
        Column("name", "NAME", wrap=True),
        Column("dtype", "DTYPE"),
        Column("shape", "SHAPE", shape_of, right=True),
    ]
    if not with_stats:
        return [*columns, Column("size_bytes", "SIZE", size, right=True), Column("path", "FILE", wrap=True)]
    headings = ("MIN", "MAX", "MEAN", "STD", "NORM", "ZEROS", "NAN", "INF")
    return [
        *columns,
        *(Column(key, head, _figure, right=True) for key, head in zip(FIGURES, headings, strict=True)),
    ]


def _figure(value: float | None) -> str:
    return plain(value) if value is None or isinstance(value, int) else f"{value:.4g}"


def _totals(tensors: Sequence[StoredTensor], is_weight: Callable[[StoredTensor], bool]) -> dict[str, object]:
    by_dtype: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        total = by_dtype.setdefault(tensor.dtype or "unknown", {"tensors": 0, "elements": 0, "size_bytes": 0})
        total["tensors"] += 1
        total["elements"] += tensor.elements
        total["size_bytes"] += tensor.size_bytes
    return {
        "total_tensors": len(tensors),
        "parameters": sum(tensor.elements for tensor in tensors if is_weight(tensor)),
        "size_bytes": sum(tensor.size_bytes for tensor in tensors),
        "dtypes": dict(sorted(by_dtype.items(), key=lambda item: -item[1]["size_bytes"])),
    }


def _summary(tensors: Sequence[StoredTensor], is_weight: Callable[[StoredTensor], bool]) -> str:
    """`199 tensors, 22,713,216 parameters, 43.3 MiB: BF16 43.3 MiB in 197, I64 1.00 KiB in 2`."""
    parameters = sum(tensor.elements for tensor in tensors if is_weight(tensor))
    by_dtype: dict[str, tuple[int, int]] = {}
    for tensor in tensors:
        bytes_before, before = by_dtype.get(tensor.dtype or "unknown", (0, 0))
        by_dtype[tensor.dtype or "unknown"] = bytes_before + tensor.size_bytes, before + 1
    total = sum(tensor.size_bytes for tensor in tensors)
    ordered = sorted(by_dtype.items(), key=lambda item: -item[1][0])
    parts = ", ".join(f"{printable(dtype)} {size(n)} in {times:,}" for dtype, (n, times) in ordered)
    said = f"{count(len(tensors), 'tensor')}, {count(parameters, 'parameter')}, {size(total)}"
    return f"{said}: {parts}" if parts else said
