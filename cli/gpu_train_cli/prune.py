"""`gpu-train checkpoints prune`: dropping what no retention policy preserves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from gpu_train_cli.checkpoints import checkpoint_row, ref_of
from gpu_train_cli.command import Command
from gpu_train_cli.confirm import confirm, yes_option
from gpu_train_cli.freed import freed_fields, freed_words, warn_unknown
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, note, reading
from gpu_train_cli.progress import progress
from gpu_train_cli.retention_options import retention_options
from gpu_train_cli.text import count, size

if TYPE_CHECKING:
    from gpu_train import Workspace
    from gpu_train.retention.plan import Plan
    from gpu_train.retention.setting import Retention
    from gpu_train_cas import Forecast

NO_POLICY = (
    "no policy is set: give options such as --keep-latest 3, or set [retention] in gpu-train.toml "
    "(`gpu-train config show`)"
)


@click.command("prune", cls=Command, exits=[3])
@click.argument("job", required=False)
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; say what would go, what stays, and why.")
@retention_options
@click.option("--incomplete", is_flag=True, help="Also those that are incomplete and older than a whole one.")
@yes_option
@reading
@pass_invocation
def prune(
    invocation: Invocation,
    job: str | None,
    dry_run: bool,
    retention: Retention | None,
    incomplete: bool,
    yes: bool,
    output: Output,
) -> None:
    """Move the checkpoints of JOB, or of all jobs, that no policy preserves to the trash.

    The policy is what the options say, else what JOB was started with, else what [projects.NAME.retention] or
    [retention] in the settings says. A checkpoint stays when any part of the policy preserves it. The newest whole one
    of a job always stays; so does one that is kept, deployed, the start of a running job, or not yet in every sink.
    What went can be brought back with `checkpoints undo` until defaults.trash_days are over.
    """
    from gpu_train.retention.pruning import prune as prune_job  # noqa: PLC0415  loads the engine, which help must not

    with invocation.workspace(write=not dry_run) as workspace:
        plans = _plans(workspace, job, retention, incomplete)
        going = [checkpoint for plan in plans for checkpoint in plan.going]
        with progress() as tell:
            forecast = workspace.store.forecast([c.record for c in going if c.record], progress=tell)
        if not dry_run and going:
            confirm(f"Move {count(len(going), 'checkpoint')}, {_size(plans)}, to the trash?", yes=yes)
            for plan in plans:
                prune_job(workspace, plan)
        _show(plans, forecast, workspace.config.defaults.trash_days, output, dry_run)


def _plans(workspace: Workspace, job: str | None, retention: Retention | None, incomplete: bool) -> list[Plan]:
    from gpu_train.retention.plan import plan_for, retention_of  # noqa: PLC0415  loads the engine, which help must not

    plans = []
    for one in [workspace.jobs.find(job)] if job else workspace.jobs.list():
        chosen = retention or retention_of(workspace, one)
        plans.append(plan_for(workspace, one, chosen._replace(incomplete=chosen.incomplete or incomplete)))
    return plans


def _show(plans: Sequence[Plan], forecast: Forecast, trash_days: float, output: Output, dry_run: bool) -> None:
    rows = list(_rows(plans))
    going = sum(row["fate"] == "remove" for row in rows)
    if output.ids_only:
        rows = [row for row in rows if row["fate"] == "remove"]
    columns = [
        Column("job_id", "JOB"),
        Column("checkpoint_id", "CHECKPOINT"),
        Column("step", "STEP", right=True),
        Column("size_bytes", "SIZE", size, right=True),
        Column("fate", "FATE"),
        Column("why", "WHY", "; ".join, wrap=True),
    ]
    head = {"dry_run": dry_run, "removed": going, "stays": len(rows) - going, **freed_fields(forecast)}
    output.listing(Listing("checkpoints", columns, rows, ref_of, "no checkpoints", head))
    if not output.for_people:
        return
    if all(plan.retention.keeps_all for plan in plans) and not going:
        note(NO_POLICY)
    elif going:
        would = "would be" if dry_run else "were" if going > 1 else "was"
        note(f"{count(going, 'checkpoint')}, {_size(plans)}, {would} moved to the trash")
        note(freed_words(forecast, trash_days))
        if not dry_run:
            note("`gpu-train checkpoints undo` brings back what this removed")
    else:
        note("nothing to remove: all checkpoints are preserved")
    warn_unknown(forecast)


def _rows(plans: Sequence[Plan]) -> Iterator[dict[str, object]]:
    for plan in plans:
        for fate in plan.fates:
            row = checkpoint_row(fate.checkpoint)
            yield row | {"fate": "remove" if fate.goes else "stay", "why": list(fate.why)}


def _size(plans: Sequence[Plan]) -> str:
    return size(sum(checkpoint.size_bytes for plan in plans for checkpoint in plan.going))
