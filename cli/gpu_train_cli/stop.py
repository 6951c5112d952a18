"""`gpu-train stop` and `kill`: ending running jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import gpu_train
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import note

if TYPE_CHECKING:
    from gpu_train import Job


@click.command("stop", cls=Command, exits=[3, 6])
@click.argument("job")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), metavar="S", help="Wait at most S seconds.")
@pass_invocation
def stop(invocation: Invocation, job: str, timeout_s: float | None) -> None:
    """Ask a job to end and wait until its last checkpoints are captured.

    It gets SIGTERM, so that it may save, and SIGKILL after the setting run.interrupt_grace_s.
    """
    note(_outcome(gpu_train.stop(job, timeout_s=timeout_s, home=invocation.home)))


@click.command("kill", cls=Command, exits=[3, 6])
@click.argument("jobs", metavar="[JOB]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All jobs that are running or queued.")
@pass_invocation
def kill(invocation: Invocation, jobs: tuple[str, ...], everything: bool) -> None:
    """End jobs at once. What they had finished writing is still captured."""
    if bool(jobs) == everything:
        raise click.UsageError("name jobs, or give --all")
    if everything:
        ended = gpu_train.kill_all(home=invocation.home)
        if not ended:
            note("no job is running")
    else:
        ended = [gpu_train.kill(job, home=invocation.home) for job in jobs]
    for job in ended:
        note(_outcome(job))


def _outcome(job: Job) -> str:
    code = "" if job.exit_code is None else f" (exit code {job.exit_code})"
    return f"job {job.id} is {job.status}{code}"
