"""`gpu-train run`: a training command as a job."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

import gpu_train
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import note
from gpu_train_cli.retention_options import retention_options
from gpu_train_cli.text import count, duration, size

if TYPE_CHECKING:
    from gpu_train import Checkpoint, Job
    from gpu_train.retention.setting import Retention

FAILED = 1
NS = 1_000_000_000


@click.command(
    "run",
    cls=Command,
    exits=[3, 4],
    exit_note="the command's own, 128 + N when signal N ended it; where it was not run",
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False},
    options_metavar="[OPTIONS] [--]",
)
@click.argument("command", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--name", help="What to call the job. [default: after the script or program]")
@click.option("--project", help="The project it belongs to. [default: the setting defaults.project]")
@click.option("--provider", help="Where it runs. [default: the setting defaults.provider, local]")
@click.option("--gpus", metavar="SPEC", help="Its GPUs: cpu, all, how many (2) or which (0,2). [default: all]")
@click.option("--data", multiple=True, metavar="NAME[@V]", help="A data version it needs; checked. May be repeated.")
@click.option(
    "--resume-from",
    metavar="REF",
    help="A checkpoint to go on from: restored, its path in GPU_TRAIN_RESUME_FROM.",
)
@click.option(
    "--load",
    multiple=True,
    metavar="REF",
    help="A checkpoint to restore into GPU_TRAIN_LOAD_CHECKPOINT_DIR. May be repeated.",
)
@click.option(
    "--env",
    multiple=True,
    metavar="K=V",
    help="A variable for the command; K alone takes it from here. May be repeated.",
)
@retention_options
@click.option("--keep-all", is_flag=True, help="Keep all checkpoints, whatever the settings say.")
@click.option("-d", "--detach", is_flag=True, help="Go on in the background; print the job's id.")
@pass_invocation
def run(
    invocation: Invocation,
    command: tuple[str, ...],
    name: str | None,
    project: str | None,
    provider: str | None,
    gpus: str | None,
    data: tuple[str, ...],
    resume_from: str | None,
    load: tuple[str, ...],
    env: tuple[str, ...],
    retention: Retention | None,
    keep_all: bool,
    detach: bool,
) -> None:
    """Run a training command and capture its checkpoints.

    First the code in the working directory is recorded. Then COMMAND runs with GPU_TRAIN_CHECKPOINT_DIR
    pointing to a folder of the job: every checkpoint that it finishes there is stored while it runs, also
    those that it deletes later. Its output is passed through and kept for `gpu-train logs`; what gpu-train
    itself has to say goes to stderr. The first Ctrl-C goes to the command, so that it may save; a second
    one ends it. Whatever its end, what it had finished is captured.
    """
    if keep_all and retention is not None:
        raise click.UsageError("--keep-all and other --keep-... options exclude each other")
    job = gpu_train.run(
        {"command": list(command)},
        provider,
        name=name,
        project=project,
        data=data,
        resume_from=resume_from,
        load=load,
        env=_variables(env),
        retention={} if keep_all else None if retention is None else retention.to_row(),
        detach=detach,
        gpus=gpus,
        home=invocation.home,
        on_start=lambda job: _say(_beginning(invocation, job)),
        notify=_say,
    )
    if detach:
        click.echo(job.id)
        return
    for line in _ending(invocation, job):
        _say(line)
    click.get_current_context().exit(FAILED if job.exit_code is None else job.exit_code)


def _say(text: str) -> None:
    note(f"gpu-train: {text}")


def _variables(pairs: tuple[str, ...]) -> dict[str, str]:
    variables = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key:
            raise click.BadParameter(f"{pair!r} is not K=V", param_hint="--env")
        if not equals and key not in os.environ:
            raise click.BadParameter(f"{key!r} is not set here; write {key}=VALUE", param_hint="--env")
        variables[key] = value if equals else os.environ[key]
    return variables


def _beginning(invocation: Invocation, job: Job) -> str:
    if job.code is None:
        return f"job {job.id}, without its code"
    with invocation.workspace() as workspace:
        version = workspace.code.get(job.code)
    left = version.left_out
    words = f"job {job.id}, code {job.code} ({count(version.files, 'file')}, {size(version.size_bytes)}"
    if left.files:
        about = "" if left.exact else "at least "
        words += f"; left out {about}{count(left.files, 'file')}, {size(left.size_bytes)}"
        words += f": `gpu-train code show {job.code[:8]}`"
    return f"{words})"


def _ending(invocation: Invocation, job: Job) -> list[str]:
    with invocation.workspace() as workspace:
        found = workspace.checkpoints.list(job.id)
    ran_s = ((job.ended_ns or time.time_ns()) - (job.started_ns or job.created_ns)) / NS
    why = f": {job.reason}" if job.reason else ""
    lines = [f"job {job.id} {job.status} (exit code {job.exit_code}) after {duration(ran_s)}{why}"]
    look = f"`gpu-train checkpoints list {job.id}`"
    kept = [checkpoint for checkpoint in found if checkpoint.record is not None]
    if kept:
        plain, stored = sum(c.size_bytes for c in kept), sum(c.stored_bytes for c in kept)
        lines.append(f"{_kinds(found)} captured, {size(plain)} in {size(stored)}: {look}")
    elif found:
        lines.append(f"{_kinds(found)}: {look}")
    else:
        lines.append("no checkpoints: the command wrote none to $GPU_TRAIN_CHECKPOINT_DIR")
    return lines


def _kinds(found: list[Checkpoint]) -> str:
    """`5 checkpoints`, and how many of them are not whole."""
    odd = [
        f"{number} {state}"
        for state in ("incomplete", "gone")
        if (number := sum(checkpoint.state == state for checkpoint in found))
    ]
    return count(len(found), "checkpoint") + (f" ({', '.join(odd)})" if odd else "")
