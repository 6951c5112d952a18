"""`gpu-train reclaim`: deleting plain files of checkpoints that are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from gpu_train_cli.checkpoints import checkpoint_row, ref_of
from gpu_train_cli.command import Command
from gpu_train_cli.confirm import confirm, yes_option
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, note, reading, warn
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, size

if TYPE_CHECKING:
    from gpu_train import Workspace
    from gpu_train.retention.plain import PlainFiles


@click.command("reclaim", cls=Command, exits=[3])
@click.argument("job", required=False)
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; say what would go, what stays, and why.")
@click.option("--keep-latest", is_flag=True, help="Leave the plain files of each job's newest checkpoint.")
@click.option("--no-verify", is_flag=True, help="Do not read back what is stored before its plain files are deleted.")
@yes_option
@reading
@pass_invocation
def reclaim(
    invocation: Invocation,
    job: str | None,
    dry_run: bool,
    keep_latest: bool,
    no_verify: bool,
    yes: bool,
    output: Output,
) -> None:
    """Delete plain files of checkpoints that are stored.

    They are the trainer's own, of JOB or of all jobs.

    Only files that are stored byte for byte go, from the jobs' folders `checkpoints` and `load`. While a job runs,
    what its trainer may come back to stays: the newest checkpoint, the best one, those that they or a `latest` file
    name, and all that is not named by a step. The checkpoints themselves stay as they are: `checkpoints restore` and
    `mount` give their files.
    """
    from gpu_train.retention.plain import read_back  # noqa: PLC0415  loads the engine, which help must not
    from gpu_train.retention.reclaiming import reclaim as delete  # noqa: PLC0415

    with invocation.workspace(write=not dry_run) as workspace:
        plan = _plan(workspace, job, keep_latest=keep_latest, finish=not dry_run)
        if not no_verify and any(one.goes for one in plan):
            with progress() as tell:
                plan = read_back(workspace, plan, tell)
        going = [one for one in plan if one.goes]
        gone = going
        if going and not dry_run:
            confirm(f"Delete the plain files of {count(len(going), 'checkpoint')}, {_size(going)}?", yes=yes)
            gone = delete(workspace, going)
        _show(plan, gone, output, dry_run)


def _plan(workspace: Workspace, job: str | None, *, keep_latest: bool, finish: bool) -> list[PlainFiles]:
    from gpu_train.retention.plain import plan_loaded, plan_reclaim  # noqa: PLC0415  loads the engine
    from gpu_train.retention.reclaiming import finish_reclaim  # noqa: PLC0415
    from gpu_train.retention.setting import LATEST  # noqa: PLC0415

    latest = keep_latest or workspace.config.defaults.plain_checkpoints == LATEST
    plan: list[PlainFiles] = []
    for one in [workspace.jobs.find(job)] if job else workspace.jobs.list():
        if finish:
            finish_reclaim(workspace, one)
        plan += [*plan_reclaim(workspace, one, keep_latest=latest), *plan_loaded(workspace, one)]
    return plan


def _show(plan: Sequence[PlainFiles], gone: Sequence[PlainFiles], output: Output, dry_run: bool) -> None:
    rows = [_row(one) for one in plan]
    if output.ids_only:
        rows = [_row(one) for one in gone]
    columns = [
        Column("job_id", "JOB"),
        Column("files", "FILES"),
        Column("disk_bytes", "ON DISK", size, right=True),
        Column("fate", "FATE"),
        Column("why", "WHY", "; ".join, wrap=True),
    ]
    freed = sum(one.size_bytes for one in gone)
    head = {"dry_run": dry_run, "deleted": len(gone), "stays": len(plan) - len(gone), "freed_bytes": freed}
    output.listing(Listing("plain_files", columns, rows, _path, "no plain files", head))
    if not output.for_people:
        return
    if gone:
        would = "would be " if dry_run else ""
        note(f"plain files of {count(len(gone), 'checkpoint')} {would}deleted, {size(freed)} {would}freed")
    elif plan:
        note("nothing to delete")
    if changed := [one.found.name for one in plan if one.goes and one not in gone]:
        warn(f"left as they are, for they have changed meanwhile: {', '.join(changed)}")


def _row(one: PlainFiles) -> dict[str, object]:
    row = one.checkpoint
    trashed = ("what is stored is in the trash",) if row is not None and row.removed_ns else ()
    return {
        "job_id": one.job.id,
        "files": one.found.name,
        "path": one.found.path,
        "checkpoint": None if row is None else ref_of(checkpoint_row(row)),
        "disk_bytes": one.size_bytes,
        "fate": "delete" if one.goes else "stay",
        "why": list(one.why or trashed),
    }


def _path(row: Mapping[str, object]) -> str:
    return str(row["path"])


def _size(plan: Sequence[PlainFiles]) -> str:
    return size(sum(one.size_bytes for one in plan))
