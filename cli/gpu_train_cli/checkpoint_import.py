"""`gpu-train checkpoints import`: existing runs."""

from __future__ import annotations

from pathlib import Path

import click

import gpu_train
from gpu_train_cli.checkpoints import checkpoint_row
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, note, reading
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, size


@click.command("import", cls=Command, exits=[3, 4])
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--job", required=True, help="The job they become part of; made when it does not exist.")
@click.option(
    "--name",
    metavar="CKPT",
    help="The name of a single checkpoint, which DIR then is unless it holds others. [default: its folder's or file's]",
)
@reading
@pass_invocation
def import_checkpoints(invocation: Invocation, directory: Path, job: str, name: str | None, output: Output) -> None:
    """Bring existing checkpoints in: each one in the run folder DIR, oldest first, or the one that DIR is.

    DIR stays as it is. Importing the same content under the same name again changes nothing.
    """
    with invocation.workspace(write=True) as workspace, progress(deduplicated=True) as tell:
        stored = gpu_train.import_checkpoints(workspace, directory, job, name, progress=tell)
    rows = [{**checkpoint_row(one.checkpoint), "is_new": one.is_new} for one in stored]
    columns = [
        Column("checkpoint_id", "CHECKPOINT"),
        Column("step", "STEP", right=True),
        Column("state", "STATE"),
        Column("size_bytes", "SIZE", size, right=True),
        Column("stored_bytes", "STORED", size, right=True),
        Column("is_new", "NEW"),
    ]
    job_id = stored[0].checkpoint.job_id if stored else None
    output.listing(
        Listing(
            "checkpoints",
            columns,
            rows,
            lambda row: f"{row['job_id']}@{row['checkpoint_id']}",
            f"{directory} holds no checkpoints",
            {"job_id": job_id, "total_checkpoints": len(rows)},
        )
    )
    if not output.for_people:
        return
    back = sum(one.brought_back for one in stored)
    if back:
        note(f"{count(back, 'checkpoint')} came back from the trash, where the same content was")
    known = sum(not one.is_new for one in stored) - back
    if known:
        was = "was" if known == 1 else "were"
        note(f"{count(known, 'checkpoint')} {was} there already with the same content; nothing was changed for them")
    note(f"`gpu-train checkpoints list {job_id}` lists all of the job")
