"""`gpu-train metrics`: the numbers that a job reported, as curves, as rows, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_train.spelling import near
from gpu_train_cas.errors import NotFound
from gpu_train_cli.chart import Curve, curves_of, drawn, save_png
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, Row, note, reading
from gpu_train_cli.text import count, moment, plain, printable

if TYPE_CHECKING:
    from gpu_train import Metric

DRAWN = 6
"""Curves that are drawn when none is named."""


@click.command("metrics", cls=Command, exits=[3])
@click.argument("job")
@click.argument("names", metavar="[METRIC]...", nargs=-1)
@click.option("--png", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Draw into FILE instead.")
@reading
@pass_invocation
def metrics(invocation: Invocation, job: str, names: tuple[str, ...], png: Path | None, output: Output) -> None:
    """Draw the numbers that a job reported.

    Those named are drawn by step, or the first six, losses before others; what is not finite is left out.
    `-o json` and `jsonl` have one row for each report, as it came; `-o csv` one column for each metric; `-q` the names.
    """
    with invocation.workspace() as workspace:
        job_id = workspace.jobs.find(job).id
        reports = workspace.metrics.list(job_id)
    known = list(dict.fromkeys(name for report in reports for name in report.values))
    for name in names:
        if name not in known:
            meant = near(name, known) or known[:5]
            hint = f"there are {', '.join(meant)}" if meant else "it reported none"
            raise NotFound(f"{job_id} has no metric {name!r}; {hint}")
    curves = [curve for curve in curves_of(reports) if not names or curve.name in names]
    if png is not None:
        if not curves:
            raise NotFound(f"{job_id} reported no metrics; there is nothing to draw")
        save_png(curves, png, job_id)
        note(f"drew {count(len(curves), 'metric')} of {job_id} into {png}")
    elif output.for_people and curves:
        _show(curves, everything=bool(names))
    else:
        _write(output, job_id, reports, list(names) or known, curves)


def _show(curves: Sequence[Curve], *, everything: bool) -> None:
    shown = curves if everything else curves[:DRAWN]
    blocks = []
    for curve in shown:
        at, best = curve.best
        line = f"{printable(curve.name)}: last {curve.ys[-1]:.6g}, best {best:.6g} at {curve.axis} {at:.10g}"
        line += f", {count(len(curve.ys), 'value')}"
        blocks.append(line if len(curve.ys) < 2 else f"{line}\n{drawn(curve)}")
    click.echo("\n\n".join(blocks))
    if len(shown) < len(curves):
        more = ", ".join(printable(curve.name) for curve in curves[len(shown) :])
        note(f"not drawn: {more}; name what to draw")


def _write(
    output: Output, job_id: str, reports: Sequence[Metric], names: Sequence[str], curves: Sequence[Curve]
) -> None:
    if output.ids_only:
        output.listing(Listing("metrics", [], [{"name": name} for name in names], lambda row: str(row["name"]), ""))
        return
    rows: list[Row] = []
    for report in reports:
        values = {name: report.values[name] for name in names if name in report.values}
        if values:
            spread: dict[str, Any] = {name: values.get(name) for name in names} if output.format == "csv" else {}
            row = {"step": report.step, "time": moment(report.time_ns), "source": report.source}
            rows.append(row | (spread if output.format == "csv" else {"values": values}))
    columns = [Column(key, key.upper(), plain) for key in ("step", "time", "source")]
    head = {
        "job_id": job_id,
        "total_reports": len(rows),
        "last": {curve.name: curve.ys[-1] for curve in curves},
        "best": {curve.name: curve.best[1] for curve in curves},
    }
    empty = f"{job_id} reported no metrics; `gpu_train.log({{'loss': 1.2}}, step=10)` in a training does"
    output.listing(Listing("metrics", columns, rows, lambda row: str(row["step"]), empty, head))
