"""`gpu-train jobs diff`: in what two jobs differ."""

from __future__ import annotations

from typing import Any

import click

from gpu_train.job_difference import job_difference
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, reading
from gpu_train_cli.text import plain


@click.command("diff", cls=Command, exits=[3])
@click.argument("old", metavar="A")
@click.argument("new", metavar="B")
@reading
@pass_invocation
def diff_jobs(invocation: Invocation, old: str, new: str, output: Output) -> None:
    """Show in what the jobs A and B differ.

    That is code (with its files), data, arguments, environment, packages, settings, and of each metric the last value
    and the best. Options of the command are compared by name, whatever their order. `data diff` tells which files of
    data differ. Without a difference there is nothing in the listing, and the exit code is 0 as well.
    """
    with invocation.workspace() as workspace:
        a, b = workspace.jobs.find(old), workspace.jobs.find(new)
        found = job_difference(workspace, a, b)
    rows = [change._asdict() for change in found]
    columns = [
        Column("section", "WHAT"),
        Column("name", "NAME", wrap=True),
        Column("old", "A", _value, wrap=True),
        Column("new", "B", _value, wrap=True),
    ]
    head = {"old": a.id, "new": b.id, "total_differences": len(rows)}
    empty = f"{a.id} and {b.id} differ in nothing that is known of them"
    output.listing(Listing("differences", columns, rows, lambda row: f"{row['section']} {row['name']}", empty, head))


def _value(value: Any) -> str:
    return plain(value or None) if isinstance(value, list | tuple | dict | str) else plain(value)
