"""`gpu-train checkpoints thin`: dropping the optimizer's state of old checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpu_train_cli.checkpoints import checkpoint_row, ref_of
from gpu_train_cli.command import Command
from gpu_train_cli.confirm import confirm, yes_option
from gpu_train_cli.duration import DURATION
from gpu_train_cli.freed import freed_fields, freed_words, warn_unknown
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, note, reading
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, size

if TYPE_CHECKING:
    from gpu_train import Checkpoint, Workspace
    from gpu_train.retention.thinning import Thinning
    from gpu_train_cas import Forecast


@click.command("thin", cls=Command, exits=[3, 4])
@click.argument("targets", metavar="REF|JOB...", nargs=-1, required=True)
@click.option("--keep-latest", type=click.IntRange(min=1), metavar="N", help="Of a JOB, all but the newest N.")
@click.option("--older-than", type=DURATION, metavar="T", help="Of a JOB, those made longer than T ago (7d).")
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; say what would be dropped.")
@yes_option
@reading
@pass_invocation
def thin(
    invocation: Invocation,
    targets: tuple[str, ...],
    keep_latest: int | None,
    older_than: float | None,
    dry_run: bool,
    yes: bool,
    output: Output,
) -> None:
    """Drop the optimizer's state of checkpoints: they can then serve, but not resume.

    A JOB needs --keep-latest or --older-than, and its newest whole checkpoint is never among them. Weights and all
    other files stay bit for bit. `checkpoints undo` brings the state back until defaults.trash_days are over. A
    checkpoint without known optimizer state, or one whose state cannot be told from its weights, stays as it is.
    """
    from gpu_train.retention import thinning  # noqa: PLC0415  loads the engine

    with invocation.workspace(write=not dry_run) as workspace:
        found = _chosen(workspace, targets, keep_latest, older_than)
        plan = thinning.plan_thinning(workspace, found)
        going = [one for one in plan if one.goes]
        with progress() as tell:
            forecast = thinning.forecast_thinning(workspace, going, tell)
        if not dry_run and going:
            confirm(f"Drop the optimizer's state of {count(len(going), 'checkpoint')}?", yes=yes)
            with progress() as tell:
                thinning.thin(workspace, going, tell)
        _show(plan, forecast, workspace.config.defaults.trash_days, output, dry_run)


def _chosen(
    workspace: Workspace, targets: Sequence[str], keep_latest: int | None, older_than: float | None
) -> list[Checkpoint]:
    from gpu_train.retention.removal import find  # noqa: PLC0415  loads the engine
    from gpu_train.retention.thinning import old_ones  # noqa: PLC0415

    by_age = keep_latest is not None or older_than is not None
    found: list[Checkpoint] = []
    for target in targets:
        if "@" in target:
            found += find(workspace, [target])
        elif by_age:
            job = workspace.jobs.find(target)
            found += old_ones(workspace, job, keep_latest=keep_latest or 1, older_than_s=older_than)
        else:
            raise click.UsageError(
                f"{target!r} is a job: say which of its checkpoints with --keep-latest N or --older-than T, "
                f"or name them: {target}@NAME"
            )
    return list({(c.job_id, c.seq): c for c in found}.values())


def _show(plan: Sequence[Thinning], forecast: Forecast, trash_days: float, output: Output, dry_run: bool) -> None:
    rows = [
        checkpoint_row(one.checkpoint)
        | {
            "fate": "thin" if one.goes else "stay",
            "dropped_bytes": one.state.size_bytes if one.goes else 0,
            "dropped": sorted(path.decode(errors="surrogateescape") for path in one.state.edits) if one.goes else [],
            "why": list(one.why),
        }
        for one in plan
    ]
    going = [one for one in plan if one.goes]
    if output.ids_only:
        rows = [row for row in rows if row["fate"] == "thin"]
    columns = [
        Column("job_id", "JOB"),
        Column("checkpoint_id", "CHECKPOINT"),
        Column("size_bytes", "SIZE", size, right=True),
        Column("fate", "FATE"),
        Column("dropped_bytes", "DROPS", size, right=True),
        Column("why", "WHY", "; ".join, wrap=True),
    ]
    head = {"dry_run": dry_run, "thinned": len(going), **freed_fields(forecast)}
    output.listing(Listing("checkpoints", columns, rows, ref_of, "no checkpoint is so old", head))
    if output.for_people and going:
        total = size(sum(one.state.size_bytes for one in going))
        would = "would go" if dry_run else "went"
        note(f"{total} of optimizer state of {count(len(going), 'checkpoint')} {would} to the trash")
        note(freed_words(forecast, trash_days))
        if not dry_run:
            note("`gpu-train checkpoints undo` brings it back")
        warn_unknown(forecast)
