"""`gpu-train checkpoints rm|undo`: taking single checkpoints away and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpu_train_cli.checkpoints import checkpoint_row, ref_of
from gpu_train_cli.command import Command
from gpu_train_cli.confirm import confirm, yes_option
from gpu_train_cli.freed import freed_fields, freed_words, warn_unknown
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, note, reading, warn
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_train import Checkpoint

FAILED = 1


@click.command("rm", cls=Command, exits=[3, 4])
@click.argument("refs", metavar="REF...", nargs=-1, required=True)
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; say what would be freed.")
@yes_option
@reading
@pass_invocation
def remove(invocation: Invocation, refs: tuple[str, ...], dry_run: bool, yes: bool, output: Output) -> None:
    """Move checkpoints to the trash, all that are named or none.

    `checkpoints undo` brings them back until defaults.trash_days are over; from then on `gpu-train gc` takes their
    bytes. One that is kept, deployed or needed by a running job is refused.
    """
    from gpu_train.retention import removal  # noqa: PLC0415  loads the engine, which help must not

    with invocation.workspace(write=not dry_run) as workspace:
        found = removal.find(workspace, refs)
        with progress() as tell:
            forecast = workspace.store.forecast([c.record for c in found if c.record], progress=tell)
        if not dry_run:
            total = size(sum(c.size_bytes for c in found))
            confirm(f"Move {count(len(found), 'checkpoint')}, {total}, to the trash?", yes=yes)
            found = removal.remove(workspace, found)
        trash_days = workspace.config.defaults.trash_days
    show_changed(found, output, {"dry_run": dry_run, **freed_fields(forecast)})
    if output.for_people:
        would = "would be" if dry_run else "were" if len(found) > 1 else "was"
        note(f"{count(len(found), 'checkpoint')} {would} moved to the trash; {freed_words(forecast, trash_days)}")
        warn_unknown(forecast)


@click.command("undo", cls=Command, exits=[3])
@click.argument("refs", metavar="[REF|JOB]...", nargs=-1)
@reading
@pass_invocation
def undo(invocation: Invocation, refs: tuple[str, ...], output: Output) -> None:
    """Bring back what the last removal took, or what is named: a checkpoint, or JOB with all that it lost.

    The optimizer's state that `thin` dropped comes back in the same way.

    What a retention policy dropped by itself comes back when it is named. `checkpoints list --trash` lists what can
    be brought back.
    """
    from gpu_train.retention import removal  # noqa: PLC0415  loads the engine, which help must not
    from gpu_train.retention.plan import retention_of  # noqa: PLC0415

    with invocation.workspace(write=True) as workspace:
        done = removal.undo(workspace, refs)
        jobs = [workspace.jobs.get(job_id) for job_id in dict.fromkeys(c.job_id for c in done.checkpoints)]
        governed = [job.id for job in jobs if job is not None and not retention_of(workspace, job).keeps_all]
    found = [*done.checkpoints, *done.whole]
    show_changed(found, output, {"jobs": [job.id for job in done.jobs], "lost": [c.ref for c in done.lost]})
    if output.for_people:
        for job in done.jobs:
            note(f"job {job.id} came back")
        if done.checkpoints or not done.whole:
            note(f"{count(len(done.checkpoints), 'checkpoint')} came back")
        if done.whole:
            note(f"{count(len(done.whole), 'thinned checkpoint')} whole again")
        for job_id in governed:
            note(f"the policy of {job_id} may drop them again; `gpu-train checkpoints keep REF` forbids that")
    for checkpoint in done.lost:
        warn(f"{checkpoint.ref} cannot come back: gc has taken its bytes")
    if done.lost and not (found or done.jobs):
        click.get_current_context().exit(FAILED)


def show_changed(found: Sequence[Checkpoint], output: Output, head: Mapping[str, object]) -> None:
    """List the checkpoints that a command has changed."""
    if output.for_people and not found:
        return
    columns = [
        Column("job_id", "JOB"),
        Column("checkpoint_id", "CHECKPOINT"),
        Column("step", "STEP", right=True),
        Column("size_bytes", "SIZE", size, right=True),
    ]
    rows = [checkpoint_row(c) for c in found]
    output.listing(Listing("checkpoints", columns, rows, ref_of, "none", head))
