"""`gpu-train repair`: a registry that is lost or broken, made anew from the packs."""

from __future__ import annotations

import click

import gpu_train
from gpu_train_cas import repair as rebuilding
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Details, Output, reading, warn
from gpu_train_cli.progress import progress
from gpu_train_cli.text import printable

INCOMPLETE = 4


@click.command("repair", cls=Command, exits=[3, 4, 6])
@click.option("--rebuild-registry", is_flag=True, help="Make the registry anew from the packs.")
@click.option("--check", is_flag=True, help="Decode every block meanwhile and leave out those that are broken.")
@reading
@pass_invocation
def repair(invocation: Invocation, rebuild_registry: bool, check: bool, output: Output) -> None:
    """Rebuild the registry from the packs.

    Every job, checkpoint, code and data version comes back as it was last made durable. The old registry is
    kept beside the new one; packs are not touched. Nothing else may use the home meanwhile. Exit code 4
    when something in the packs could not be read and was left out.
    """
    if not rebuild_registry:
        raise click.UsageError("say what to repair: --rebuild-registry")
    _rebuild(invocation, check, output)


def _rebuild(invocation: Invocation, check: bool, output: Output) -> None:
    home = gpu_train.Home.locate(invocation.home)
    with progress() as tell:
        report = rebuilding.rebuild_registry(home.root, check=check, progress=tell)
    fields = {
        "packs": report.packs,
        "packs_scanned": report.packs_scanned,
        "frames": report.frames,
        "records": report.records,
        "rows": report.rows,
        "problems": report.problems,
        "old_registry": report.old,
    }
    scanned = f", {report.packs_scanned:,} without a sound index" if report.packs_scanned else ""
    lines = [
        ("packs read", f"{report.packs:,}{scanned}"),
        ("blocks and objects", f"{report.frames:,}"),
        ("records", f"{report.records:,}"),
        ("jobs, checkpoints and other rows", f"{report.rows:,}"),
        ("old registry", printable(str(report.old)) if report.old else "there was none"),
    ]
    output.details(Details(fields, str(home.root), lines))
    for problem in report.problems:
        warn(problem)
    if report.problems:
        click.get_current_context().exit(INCOMPLETE)
