"""`gpu-train mount` and `umount`: checkpoints as a read-only folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

import click

import gpu_train
import gpu_train_fuse as fuse
from gpu_train_cas.errors import NotFound
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Details, Listing, Output, note, reading, warn
from gpu_train_fuse.server import LOOPBACK, PORT, is_loopback

PASSWORD = "GPU_TRAIN_WEBDAV_PASSWORD"
NO_MOUNTS = "nothing is mounted: `gpu-train mount JOB` mounts a job, `gpu-train mount all` the whole home"


@click.command("mount", cls=Command, exits=[3, 4, 6])
@click.argument("target", metavar="[JOB|all]", required=False)
@click.argument("mountpoint", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("-f", "--foreground", is_flag=True, help="Stay until it is unmounted or interrupted.")
@click.option("--allow-other", is_flag=True, help="Let other users in, as far as the stored modes do.")
@click.option("--nonempty", is_flag=True, help="Mount over a folder that has something in it.")
@click.option("--webdav", is_flag=True, help="Mount nothing, but serve the same over WebDAV until interrupted.")
@click.option("--host", help=f"The address to serve at.  [default: {LOOPBACK}]")
@click.option("--port", type=click.IntRange(0, 65535), help=f"The port, 0 for any that is free.  [default: {PORT}]")
@click.option(
    "--password-file", type=click.File(), help="What clients have to know, on the first line; `-` is standard input."
)
@reading
@pass_invocation
def mount(
    invocation: Invocation, target: str | None, mountpoint: Path | None, foreground: bool, allow_other: bool,
    nonempty: bool, webdav: bool, host: str | None, port: int | None, password_file: TextIO | None, output: Output,
) -> None:  # fmt: skip
    """Mount a job's checkpoints as a read-only folder.

    JOB is a job, "all" the whole home; the path of the mount is printed. In it are checkpoints/, latest and
    best as links, logs/, code/ and job.json; new checkpoints appear as they are captured. MOUNTPOINT is made
    when it is not there; without one it is in the home's mnt/. Without arguments, list what is mounted.

    Where there is no FUSE, `--webdav` serves the same to clients on this machine, or on others that come through
    `ssh -L`; the address is printed, and how to use it. For another `--host` than this machine alone a password is
    needed, from a file or $GPU_TRAIN_WEBDAV_PASSWORD. Over plain HTTP it can be read on the way.
    """
    if webdav:
        if target is None or mountpoint is not None or allow_other or nonempty:
            raise click.UsageError("--webdav takes a job or all, and neither MOUNTPOINT, --allow-other nor --nonempty")
        password = password_file.readline().rstrip("\r\n") if password_file else os.environ.get(PASSWORD)
        _serve(invocation, target, host or LOOPBACK, PORT if port is None else port, password, output)
        return
    if host is not None or port is not None or password_file is not None:
        raise click.UsageError("--host, --port and --password-file are for --webdav")
    if target is None:
        _list(output)
        return
    with invocation.workspace() as workspace:
        if foreground:
            fuse.mount_here(
                workspace, target, mountpoint, allow_other=allow_other, nonempty=nonempty,
                on_ready=lambda path: _mounted(fuse.find(str(path), workspace.home.root)[0], output),
            )  # fmt: skip
            return
        mounted = fuse.mount(workspace, target, mountpoint, allow_other=allow_other, nonempty=nonempty)
    _mounted(mounted, output)


def _mounted(mounted: fuse.Mount, output: Output) -> None:
    if output.for_people:
        click.echo(str(mounted.path))
        note(f"`gpu-train umount {mounted.path}` takes it away")
    else:
        output.details(Details(_row(mounted), str(mounted.path), []))
    sys.stdout.flush()


def _serve(invocation: Invocation, target: str, host: str, port: int, password: str | None, output: Output) -> None:
    if password == "":
        raise click.UsageError("the password is empty")

    with invocation.workspace() as workspace:
        name = target if target == fuse.ALL else workspace.jobs.find(target).id

        def ready(url: str) -> None:
            if output.for_people:
                click.echo(url)
                for line in ways_to_use(url):
                    note(line)
            else:
                output.details(Details({"url": url, "target": name, "pid": os.getpid()}, url, []))
            sys.stdout.flush()

        fuse.serve_webdav(workspace, name, host=host, port=port, password=password, on_ready=ready)


def ways_to_use(url: str) -> list[str]:
    """What clients have to be told, one line each."""
    parts = urlsplit(url)
    tunnel = f"from elsewhere through  ssh -N -L {parts.port}:{parts.netloc} THIS-MACHINE"
    return [
        "until interrupted (Ctrl-C); it is read by browsers, and by",
        f"  rclone   rclone copy :webdav:latest DIR --webdav-url {url}  (or `rclone mount`)",
        f"  Linux    mount -t davfs -o ro {url} DIR  (davfs2)",
        f"  macOS    Finder, Go, Connect to Server: {url}",
        f"  Windows  net use X: {url}",
        *([tunnel] if is_loopback(parts.hostname or "") else []),
    ]


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
