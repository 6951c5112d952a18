"""`gpu-train jobs rm` and `projects rm`: taking whole jobs away."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from gpu_train_cli.checkpoints import checkpoint_row, ref_of
from gpu_train_cli.command import Command
from gpu_train_cli.confirm import confirm, yes_option
from gpu_train_cli.freed import freed_fields, freed_words, warn_unknown
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, note, reading
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, size

if TYPE_CHECKING:
    from gpu_train import Job, Workspace
    from gpu_train.retention.job_removal import JobsPlan
    from gpu_train_cas import Forecast

Find = Callable[["Workspace"], "list[Job]"]


@click.command("rm", cls=Command, exits=[3, 6])
@click.argument("jobs", metavar="JOB...", nargs=-1, required=True)
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; say what would go and what stays.")
@yes_option
@reading
@pass_invocation
def remove_jobs(invocation: Invocation, jobs: tuple[str, ...], dry_run: bool, yes: bool, output: Output) -> None:
    """Move jobs with all their checkpoints to the trash.

    A checkpoint that is kept, deployed, or the start of a running job stays, and its job with it. `checkpoints undo`
    brings all of it back until defaults.trash_days are over; from then on `gpu-train gc` takes the checkpoints' bytes
    and the jobs' files and logs. Running jobs are refused.
    """
    from gpu_train.retention.job_removal import COMMAND  # noqa: PLC0415  loads the engine

    def find(workspace: Workspace) -> list[Job]:
        return list({job.id: job for job in map(workspace.jobs.find, jobs)}.values())

    _remove(invocation, find, COMMAND, output, dry_run=dry_run, yes=yes)


@click.command("rm", cls=Command, exits=[3, 6])
@click.argument("project", metavar="NAME")
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; say what would go and what stays.")
@yes_option
@reading
@pass_invocation
def remove_project(invocation: Invocation, project: str, dry_run: bool, yes: bool, output: Output) -> None:
    """Move all jobs of the project NAME to the trash, as `jobs rm` does.

    It is refused while one of them is running.
    """
    from gpu_train.retention.job_removal import PROJECT_COMMAND, jobs_of_project  # noqa: PLC0415  loads the engine

    def find(workspace: Workspace) -> list[Job]:
        return jobs_of_project(workspace, project)

    _remove(invocation, find, PROJECT_COMMAND, output, dry_run=dry_run, yes=yes)


def _remove(invocation: Invocation, find: Find, by: str, output: Output, *, dry_run: bool, yes: bool) -> None:
    from gpu_train.retention import job_removal  # noqa: PLC0415  loads the engine

    with invocation.workspace(write=not dry_run) as workspace:
        plan = job_removal.plan_for_jobs(workspace, find(workspace))
        with progress() as tell:
            forecast = workspace.store.forecast([c.record for c in plan.going if c.record], progress=tell)
        if not dry_run:
            total = size(sum(c.size_bytes for c in plan.going))
            what = f"{count(len(plan.jobs), 'job')} with {count(len(plan.going), 'checkpoint')}, {total},"
            confirm(f"Move {what} to the trash?", yes=yes)
            job_removal.remove_jobs(workspace, plan, by)
        _show(plan, forecast, workspace.config.defaults.trash_days, output, dry_run)


def _show(plan: JobsPlan, forecast: Forecast, trash_days: float, output: Output, dry_run: bool) -> None:
    fates = [fate for fate in plan.fates if not fate.goes] if output.for_people else plan.fates
    rows = [checkpoint_row(f.checkpoint) | {"fate": "remove" if f.goes else "stay", "why": list(f.why)} for f in fates]
    staying = {job.id for job in plan.staying}
    head = {
        "dry_run": dry_run,
        "removed_jobs": [job.id for job in plan.jobs if job.id not in staying],
        "staying_jobs": sorted(staying),
        **freed_fields(forecast),
    }
    columns = [
        Column("job_id", "JOB"),
        Column("checkpoint_id", "CHECKPOINT"),
        Column("fate", "FATE"),
        Column("why", "WHY", "; ".join, wrap=True),
    ]
    if rows or not output.for_people:
        output.listing(Listing("checkpoints", columns, rows, ref_of, "", head))
    if not output.for_people:
        return
    would = "would be moved" if dry_run else "moved"
    note(
        f"{count(len(plan.jobs) - len(staying), 'job')} and {count(len(plan.going), 'checkpoint')} {would} to the trash"
    )
    for job in plan.staying:
        note(f"job {job.id} stays, with the checkpoints above")
    note(freed_words(forecast, trash_days) + "; the plain files and logs of the jobs that went go then as well")
    warn_unknown(forecast)
