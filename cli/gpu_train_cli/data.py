"""`gpu-train data`: data versions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_train_cli.command import Group
from gpu_train_cli.difference import show_difference
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Details, Listing, Output, note, reading
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, local, moment, plain, printable, size

if TYPE_CHECKING:
    from gpu_train.data_version import DataVersion

NO_DATA = "no data versions yet: `gpu-train data --register PATH --name NAME` records what a folder holds"
DIFFERENT = 4


@click.group("data", cls=Group, default="list", flags={"--register": "register"})
def data() -> None:
    """Register, list and verify data versions.

    A data version is what a file or folder held: paths, sizes and SHA-256, named by its content. The data
    stays where it is. NAME means its newest version, NAME@VERSION (or the beginning of one) that version.
    """


@data.command("list")
@click.argument("name", required=False)
@reading
@pass_invocation
def list_versions(invocation: Invocation, name: str | None, output: Output) -> None:
    """List data versions, of all names or of NAME, the last registered first."""
    with invocation.workspace() as workspace:
        rows = [_row(version) for version in workspace.data.list(name)]
    columns = [
        Column("name", "NAME", wrap=True),
        Column("version", "VERSION"),
        Column("num_files", "FILES", right=True),
        Column("size_bytes", "SIZE", size, right=True),
        Column("registered_at", "REGISTERED", wrap=True),
        Column("path", "PATH", wrap=True),
    ]
    empty = NO_DATA if name is None else f"no data named {name!r}; `gpu-train data` lists all"
    output.listing(Listing("data", columns, rows, lambda row: f"{row['name']}@{row['version']}", empty))


@data.command("register", exits=[3])
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="The name to register it under.")
@click.option("--rehash", is_flag=True, help="Read every file again, also those that look unchanged.")
@reading
@pass_invocation
def register(invocation: Invocation, path: Path, name: str, rehash: bool, output: Output) -> None:
    """Record what the file or folder PATH holds; it stays where it is.

    The same content again is the same version. Files that look unchanged since they were last read are not read again.
    """
    with invocation.workspace(write=True) as workspace, progress() as report:
        version = workspace.data.register(path, name, rehash=rehash, progress=report)
    output.details(Details(_row(version), version.ref, _lines(version)))
    if not version.new and output.for_people:
        note(f"{version.ref} was registered before: the content is the same")


@data.command("show", exits=[3, 4])
@click.argument("version", metavar="NAME[@VERSION]")
@click.option("--files", "with_files", is_flag=True, help="List its files with sizes and SHA-256.")
@reading
@pass_invocation
def show(invocation: Invocation, version: str, with_files: bool, output: Output) -> None:
    """Show a data version, and the jobs that used it."""
    with invocation.workspace() as workspace:
        found = workspace.data.get(version)
        jobs = [job.id for job in workspace.jobs.list() if found.ref in job.data]
        files = workspace.data.manifest(version).files if with_files else ()
    if not with_files:
        fields = {**_row(found), "skipped": list(found.skipped), "jobs": jobs}
        output.details(Details(fields, found.ref, [*_lines(found), ("jobs", plain(jobs))]))
        return
    rows = [
        {"path": os.fsdecode(file.path), "size_bytes": file.size_bytes, "sha256": file.sha256.hex()} for file in files
    ]
    columns = [
        Column("path", "PATH", wrap=True),
        Column("size_bytes", "SIZE", size, right=True),
        Column("sha256", "SHA-256"),
    ]
    head = {"name": found.name, "version": found.version}
    output.listing(Listing("files", columns, rows, lambda row: str(row["path"]), "it has no files", head))


@data.command("verify", exits=[3, 4])
@click.argument("version", metavar="NAME[@VERSION]")
@reading
@pass_invocation
def verify(invocation: Invocation, version: str, output: Output) -> None:
    """Read every file of a data version again and list those that differ; exit code 4 when some do."""
    with invocation.workspace() as workspace, progress() as report:
        found = workspace.data.get(version)
        difference = workspace.data.verify(version, progress=report)
    head = {"name": found.name, "version": found.version, "unchanged": not difference}
    if difference:
        show_difference(output, difference, head)
        note(f"{found.path} is not {found.ref} any more; register it again to make a new version")
        click.get_current_context().exit(DIFFERENT)
    if output.for_people:
        note(f"{found.path} is {found.ref}: {count(found.num_files, 'file')}, {size(found.size_bytes)} read")
    else:
        show_difference(output, difference, head)


@data.command("diff", exits=[3, 4])
@click.argument("old", metavar="NAME@VERSION")
@click.argument("new", metavar="NAME@VERSION")
@reading
@pass_invocation
def diff(invocation: Invocation, old: str, new: str, output: Output) -> None:
    """Show which files differ between two data versions."""
    with invocation.workspace() as workspace:
        difference = workspace.data.diff(old, new)
    show_difference(output, difference, {"old": old, "new": new})


def _row(version: DataVersion) -> dict[str, object]:
    return {
        "name": version.name,
        "version": version.version,
        "num_files": version.num_files,
        "size_bytes": version.size_bytes,
        "path": str(version.path),
        "created_at": moment(version.created_ns),
        "registered_at": moment(version.registered_ns),
    }


def _lines(version: DataVersion) -> list[tuple[str, str]]:
    return [
        ("data", version.ref),
        ("holds", f"{count(version.num_files, 'file')}, {size(version.size_bytes)}"),
        ("at", printable(str(version.path))),
        ("registered", local(moment(version.registered_ns))),
        *([("left out", plain(list(version.skipped)))] if version.skipped else []),
    ]
