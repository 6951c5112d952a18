"""`gpu-train reconcile`: jobs whose runner died."""

from __future__ import annotations

import click

import gpu_train
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.jobs import job_row
from gpu_train_cli.output import Column, Listing, Output, reading


@click.command("reconcile", cls=Command, exits=[3])
@reading
@pass_invocation
def reconcile(invocation: Invocation, output: Output) -> None:
    """Find jobs whose runner is gone and finish them.

    Their processes are ended, what they had written is captured, and they are marked as lost. Jobs that are
    being looked after are left alone.
    """
    changed = gpu_train.reconcile(home=invocation.home)
    with invocation.workspace() as workspace:
        rows = [job_row(job, workspace.checkpoints.count(job.id)) for job in changed]
    columns = [
        Column("job_id", "JOB"),
        Column("status", "STATUS"),
        Column("checkpoints", "CHECKPOINTS", right=True),
        Column("created_at", "CREATED", wrap=True),
    ]
    empty = "nothing to put right: every job has ended or is being looked after"
    output.listing(Listing("jobs", columns, rows, lambda row: str(row["job_id"]), empty))
