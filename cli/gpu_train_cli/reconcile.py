"""`gpu-train reconcile`: jobs whose runner died."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

import gpu_train
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.jobs import job_row
from gpu_train_cli.output import Column, Listing, Output, note, reading
from gpu_train_cli.text import printable

if TYPE_CHECKING:
    from gpu_train import Checkpoint


@click.command("reconcile", cls=Command, exits=[3])
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Wait at most S seconds; what is not done then goes on in the background.",
)
@reading
@pass_invocation
def reconcile(invocation: Invocation, timeout_s: float | None, output: Output) -> None:
    """Find jobs whose runner is gone and finish them.

    Their processes are ended, what they had written is captured, and they are marked as lost; what could not be
    saved is named. Checkpoints of jobs that have ended are stored too if they are still pinned. Jobs that are being
    looked after are left alone.
    """
    began_ns = time.time_ns()
    changed = gpu_train.reconcile(
        timeout_s=timeout_s, home=invocation.home, notify=lambda text: note(f"gpu-train: {text}")
    )
    with invocation.workspace() as workspace:
        found = {job.id: workspace.checkpoints.list(job.id) for job in changed}
    fresh = {job_id: [c for c in rows if c.committed_ns >= began_ns] for job_id, rows in found.items()}
    rows = [job_row(job, len(found[job.id])) | _captured(fresh[job.id]) for job in changed]
    columns = [
        Column("job_id", "JOB"),
        Column("status", "STATUS"),
        Column("checkpoints", "CHECKPOINTS", right=True),
        Column("captured", "NEW", lambda names: str(len(names)), right=True),
        Column("incomplete", "INCOMPLETE", lambda names: str(len(names)), right=True),
        Column("gone", "GONE", lambda names: str(len(names)), right=True),
        Column("created_at", "CREATED", wrap=True),
    ]
    empty = "nothing to put right: every job has ended or is being looked after"
    output.listing(Listing("jobs", columns, rows, lambda row: str(row["job_id"]), empty))
    if output.for_people:
        for checkpoint in (c for rows_of_job in fresh.values() for c in rows_of_job if c.state != "verified"):
            note(f"{printable(checkpoint.ref)} is {checkpoint.state}: missing is {printable(checkpoint.proof)}")


def _captured(fresh: list[Checkpoint]) -> dict[str, object]:
    """The names of what was entered just now, by state."""
    words = {"verified": "captured", "incomplete": "incomplete", "gone": "gone"}
    return {word: [c.name for c in fresh if c.state == state] for state, word in words.items()}
