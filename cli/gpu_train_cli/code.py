"""`gpu-train code`: the code versions that jobs ran."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_train.code import CodeVersion
from gpu_train_cli.command import Group
from gpu_train_cli.difference import show_difference
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Details, Listing, Output, note, reading
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, moment, plain, printable, size

SKIPPED_SHOWN = 10
NO_CODE = "no code versions yet: `gpu-train run -- python train.py` records the code before it runs it"


@click.group("code", cls=Group, default="list", flags={"--restore": "restore"})
def code() -> None:
    """List, restore and export code versions.

    A code version is the exact tree that a job ran, untracked files too, named by 16 hex digits of its
    content. V is such a name or the beginning of one.
    """


@code.command("list")
@reading
@pass_invocation
def list_versions(invocation: Invocation, output: Output) -> None:
    """List code versions, newest first."""
    with invocation.workspace() as workspace:
        rows = [_row(version) for version in workspace.code.list()]
    columns = [
        Column("code", "CODE"),
        Column("files", "FILES", right=True),
        Column("size_bytes", "SIZE", size, right=True),
        Column("commit", "COMMIT", lambda commit: plain(commit)[:12]),
        Column("dirty", "DIRTY"),
        Column("created_at", "CREATED", wrap=True),
        Column("path", "FROM", wrap=True),
    ]
    output.listing(Listing("code", columns, rows, lambda row: str(row["code"]), NO_CODE))


@code.command("show", exits=[3])
@click.argument("version", metavar="V")
@reading
@pass_invocation
def show(invocation: Invocation, version: str, output: Output) -> None:
    """Show the code version V: where it came from, the git commit, what was left out."""
    with invocation.workspace() as workspace:
        found = workspace.code.get(version)
        jobs = [job.id for job in workspace.jobs.list() if job.code == found.id]
    left = found.left_out
    largest = [{"path": path.path, "files": path.files, "size_bytes": path.size_bytes} for path in left.largest]
    fields = {
        **_row(found),
        "jobs": jobs,
        "left_out": {"files": left.files, "size_bytes": left.size_bytes, "exact": left.exact, "largest": largest},
        "skipped": list(found.skipped),
    }  # fmt: skip
    at_least = "" if left.exact else "at least "
    left_out = f"{at_least}{count(left.files, 'file')}, {at_least}{size(left.size_bytes)}"
    lines = [
        ("code", found.id),
        ("holds", f"{count(found.files, 'file')}, {size(found.size_bytes)}"),
        ("created", plain(fields["created_at"])),
        ("from", printable(found.path)),
        ("git commit", plain(fields["commit"]) + (" (with changes)" if fields["dirty"] else "")),
        ("git branch", plain(fields["branch"])),
        ("jobs", plain(jobs)),
        ("left out", left_out if left.files else "-"),
        *(("", f"{size(path.size_bytes):>9}  {printable(path.path)}") for path in left.largest),
        ("not stored", f"{len(found.skipped)}, no plain files or never at rest" if found.skipped else "-"),
        *(("", printable(path)) for path in found.skipped[:SKIPPED_SHOWN]),
    ]
    output.details(Details(fields, found.id, [line for line in lines if line[1] != "-"]))


@code.command("restore", exits=[3, 4])
@click.argument("version", metavar="V")
@click.option("--dest", required=True, type=click.Path(path_type=Path), metavar="D", help="The folder to write to.")
@click.option("--overwrite", is_flag=True, help="Replace what is at the destination.")
@pass_invocation
def restore(invocation: Invocation, version: str, dest: Path, overwrite: bool) -> None:
    """Write the exact tree of the code version V to the folder D: modes, links and empty folders too."""
    with invocation.workspace() as workspace, progress() as report:
        found = workspace.code.restore(version, dest, overwrite=overwrite, progress=report)
    note(f"restored code {found.id}, {count(found.files, 'file')}, to {dest}")


@code.command("export", exits=[3, 4])
@click.argument("version", metavar="V")
@pass_invocation
def export(invocation: Invocation, version: str) -> None:
    """Write the code version V as a .tar.gz into the home's code folder and print its path.

    The same version always gives the same bytes.
    """
    with invocation.workspace(write=True) as workspace:
        click.echo(str(workspace.code.export(version)))


@code.command("diff", exits=[3])
@click.argument("old", metavar="V")
@click.argument("new", metavar="V")
@reading
@pass_invocation
def diff(invocation: Invocation, old: str, new: str, output: Output) -> None:
    """Show which files differ between two code versions."""
    with invocation.workspace() as workspace:
        difference = workspace.code.diff(old, new)
    show_difference(output, difference, {"old": old, "new": new})


def _row(version: CodeVersion) -> dict[str, object]:
    git = version.git
    return {
        "code": version.id,
        "files": version.files,
        "size_bytes": version.size_bytes,
        "commit": git.commit if git else None,
        "branch": git.branch if git else None,
        "dirty": git.dirty if git else None,
        "created_at": moment(version.created_ns),
        "path": version.path,
    }
