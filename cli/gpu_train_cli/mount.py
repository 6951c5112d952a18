"""`gpu-train mount` and `umount`: checkpoints as a read-only folder."""

from __future__ import annotations

from pathlib import Path

import click

import gpu_train
import gpu_train_fuse as fuse
from gpu_train_cas.errors import NotFound
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Details, Listing, Output, note, reading, warn

NO_MOUNTS = "nothing is mounted: `gpu-train mount JOB` mounts a job, `gpu-train mount all` the whole home"


@click.command("mount", cls=Command, exits=[3, 4, 6])
@click.argument("target", metavar="[JOB|all]", required=False)
@click.argument("mountpoint", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("-f", "--foreground", is_flag=True, help="Stay until it is unmounted or interrupted.")
@click.option("--allow-other", is_flag=True, help="Let other users in, as far as the stored modes do.")
@click.option("--nonempty", is_flag=True, help="Mount over a folder that has something in it.")
@reading
@pass_invocation
def mount(
    invocation: Invocation, target: str | None, mountpoint: Path | None, foreground: bool, allow_other: bool,
    nonempty: bool, output: Output,
) -> None:  # fmt: skip
    """Mount a job's checkpoints as a read-only folder.

    JOB is a job, "all" the whole home; the path of the mount is printed. In it are checkpoints/, latest and
    best as links, logs/, code/ and job.json; new checkpoints appear as they are captured. MOUNTPOINT is made
    when it is not there; without one it is in the home's mnt/. Without arguments, list what is mounted.
    """
    if target is None:
        _list(output)
        return
    with invocation.workspace() as workspace:
        if foreground:
            fuse.mount_here(
                workspace, target, mountpoint, allow_other=allow_other, nonempty=nonempty,
                on_ready=lambda path: click.echo(str(path)),
            )  # fmt: skip
            return
        mounted = fuse.mount(workspace, target, mountpoint, allow_other=allow_other, nonempty=nonempty)
    if not output.for_people:
        output.details(Details(_row(mounted), str(mounted.path), []))
        return
    click.echo(str(mounted.path))
    note(f"`gpu-train umount {mounted.path}` takes it away")


def _row(mounted: fuse.Mount) -> dict[str, object]:
    return {
        "mountpoint": str(mounted.path),
        "target": mounted.target,
        "state": mounted.state.value,
        "home": str(mounted.home) if mounted.home else None,
        "pid": mounted.pid,
    }


def _list(output: Output) -> None:
    rows = [_row(mounted) for mounted in fuse.mounts()]
    columns = [
        Column("mountpoint", "MOUNT POINT", wrap=True),
        Column("target", "SHOWS", wrap=True),
        Column("state", "STATE"),
        Column("home", "HOME", wrap=True),
    ]
    output.listing(Listing("mounts", columns, rows, lambda row: str(row["mountpoint"]), NO_MOUNTS))


@click.command("umount", cls=Command, exits=[3, 6])
@click.argument("targets", metavar="[MOUNTPOINT|JOB|all]...", nargs=-1)
@click.option("--lazy", is_flag=True, help="Take the name away at once, whoever still reads.")
@click.option("--stale", is_flag=True, help="Take away all mounts whose process is gone.")
@pass_invocation
def umount(invocation: Invocation, targets: tuple[str, ...], lazy: bool, stale: bool) -> None:
    """Take mounts away.

    They are named by folder, or by the job they show; "all" is the mount of the whole home.
    """
    if not targets and not stale:
        raise click.UsageError("name a mount point or a job, or give --stale")
    home = gpu_train.Home.locate(invocation.home)
    for target in targets:
        for mounted in _find(invocation, target, home.root):
            fuse.umount(mounted, home.mounts, lazy=lazy)
            note(f"unmounted {mounted.path}")
    if stale:
        done, failed = fuse.umount_stale(home.mounts)
        for mounted in done:
            note(f"unmounted {mounted.path}")
        for message in failed:
            warn(message)
        if failed:
            click.get_current_context().exit(1)


def _find(invocation: Invocation, target: str, home: Path) -> list[fuse.Mount]:
    """The mounts of a folder or an exact id, else those of the job that a person means by it."""
    try:
        return fuse.find(target, home)
    except NotFound as error:
        try:
            with invocation.workspace() as workspace:
                job_id = workspace.jobs.find(target).id
        except NotFound:
            raise error from None
        return fuse.find(job_id, home)
