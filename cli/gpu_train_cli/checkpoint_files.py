"""`gpu-train checkpoints files|tree|cat|restore`: what is inside a checkpoint, and getting it out."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_train_cas import Entry, EntryKind
from gpu_train_cas.errors import Incomplete, UsageError
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, note, reading
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, moment, printable, size

if TYPE_CHECKING:
    from gpu_train import Checkpoint, Workspace

READ_BYTES = 8 << 20
TYPE_BITS = {EntryKind.FILE: stat.S_IFREG, EntryKind.DIRECTORY: stat.S_IFDIR, EntryKind.SYMLINK: stat.S_IFLNK}


def find(workspace: Workspace, ref: str) -> tuple[Checkpoint, Entry, bytes]:
    """The checkpoint that a ref names, the entry that its path names, and that path.

    Raises:
        NotFound: when one of them is not there.
        Incomplete: for a checkpoint whose bytes were never kept.
    """
    checkpoint, path = workspace.checkpoints.resolve(ref)
    if checkpoint.record is None:
        raise Incomplete(f"{checkpoint.ref} is {checkpoint.state}: its bytes were never kept")
    root = workspace.store.record(checkpoint.record).root
    inside = os.fsencode(path)
    return checkpoint, workspace.store.reader.lookup(root, inside), inside


@contextmanager
def _reading(workspace: Workspace, ref: str, purpose: str) -> Iterator[tuple[Checkpoint, Entry, bytes]]:
    """The same, kept from gc while it is read."""
    checkpoint, entry, path = find(workspace, ref)
    assert checkpoint.record is not None
    with workspace.store.holding(checkpoint.record, purpose):
        yield checkpoint, entry, path


@click.command("files", cls=Command, exits=[3, 4])
@click.argument("ref")
@reading
@pass_invocation
def files(invocation: Invocation, ref: str, output: Output) -> None:
    """List the files of the checkpoint REF, or those under REF/path, with sizes and digests."""
    with invocation.workspace() as workspace:
        checkpoint, entry, path = find(workspace, ref)
        _list(workspace, checkpoint, entry, path, output)


def _list(workspace: Workspace, checkpoint: Checkpoint, entry: Entry, path: bytes, output: Output) -> None:
    if entry.kind is EntryKind.DIRECTORY:
        above = path + b"/" if path else b""
        found = [(above + below, one) for below, one in workspace.store.reader.walk(entry)]
    else:
        found = [(path, entry)]
    rows = [_file_row(path, entry) for path, entry in found]
    columns = [
        Column("mode", "MODE"),
        Column("size_bytes", "SIZE", size, right=True),
        Column("modified_at", "MODIFIED"),
        Column("path", "PATH", wrap=True),
    ]
    head = {"job_id": checkpoint.job_id, "checkpoint_id": checkpoint.name}
    output.listing(Listing("files", columns, rows, lambda row: str(row["path"]), "no files in it", head))


def _file_row(path: bytes, entry: Entry) -> dict[str, object]:
    return {
        "path": os.fsdecode(path),
        "kind": entry.kind.name.lower(),
        "size_bytes": entry.size_bytes,
        "mode": stat.filemode(TYPE_BITS[entry.kind] | entry.mode),
        "modified_at": moment(entry.mtime_ns),
        "blake3": entry.identity.hex(),
        "target": os.fsdecode(entry.target) if entry.kind is EntryKind.SYMLINK else None,
    }


@click.command("tree", cls=Command, exits=[3, 4])
@click.argument("ref")
@reading
@pass_invocation
def tree(invocation: Invocation, ref: str, output: Output) -> None:
    """Draw the files of the checkpoint REF, or those under REF/path, as a tree with sizes.

    Other formats than the drawing are those of `files`.
    """
    with invocation.workspace() as workspace:
        checkpoint, entry, path = find(workspace, ref)
        if not output.for_people:
            _list(workspace, checkpoint, entry, path, output)
            return
        name = "/".join(filter(None, (checkpoint.name, os.fsdecode(path))))
        click.echo(f"{printable(name)}  {size(entry.size_bytes)} in {count(entry.files, 'file')}")
        click.echo("".join(f"{line}\n" for line in _branches(workspace, entry, "")), nl=False)


def _branches(workspace: Workspace, directory: Entry, indent: str) -> Iterator[str]:
    if directory.kind is not EntryKind.DIRECTORY:
        return
    entries = workspace.store.reader.tree(directory.digest).entries
    for i, entry in enumerate(entries):
        last = i == len(entries) - 1
        name = printable(os.fsdecode(entry.name))
        match entry.kind:
            case EntryKind.DIRECTORY:
                name += "/"
            case EntryKind.SYMLINK:
                name += f" -> {printable(os.fsdecode(entry.target))}"
            case EntryKind.FILE:
                name += f"  {size(entry.size_bytes)}"
        yield f"{indent}{'└── ' if last else '├── '}{name}"
        yield from _branches(workspace, entry, indent + ("    " if last else "│   "))


@click.command("cat", cls=Command, exits=[3, 4])
@click.argument("ref", metavar="REF/PATH")
@pass_invocation
def cat(invocation: Invocation, ref: str) -> None:
    """Write the file REF/PATH to stdout, byte for byte.

    Every block is checked before it is written. A checkpoint that is a single file needs no PATH.
    """
    with invocation.workspace() as workspace, _reading(workspace, ref, "cat") as (checkpoint, entry, path):
        if not path and len(only := workspace.store.reader.tree(entry.digest).entries) == 1:
            entry = only[0]  # a checkpoint that is a single file needs no path
        if entry.kind is not EntryKind.FILE:
            what = "no path was given" if not path else f"{os.fsdecode(path)} is a {entry.kind.name.lower()}"
            raise UsageError(f"{what}; write REF/PATH, `gpu-train checkpoints files {checkpoint.ref}` lists the files")
        file = workspace.store.reader.open(entry)
        for offset in range(0, file.size_bytes, READ_BYTES):
            sys.stdout.buffer.write(file.pread(READ_BYTES, offset))
        sys.stdout.buffer.flush()


@click.command("restore", cls=Command, exits=[3, 4])
@click.argument("ref")
@click.option(
    "--dest",
    type=click.Path(path_type=Path),
    metavar="D",
    help="Where to write it. [default: a folder of the checkpoint's name, here]",
)
@click.option("--overwrite", is_flag=True, help="Replace what is at the destination.")
@pass_invocation
def restore(invocation: Invocation, ref: str, dest: Path | None, overwrite: bool) -> None:
    """Write the checkpoint REF, or just REF/path, to disk: the same bytes, modes, times and links.

    What is written appears under its name only when it is whole. Nothing is overwritten unless told.
    """
    with invocation.workspace() as workspace, _reading(workspace, ref, "restore") as (checkpoint, _, path):
        assert checkpoint.record is not None
        target = dest or Path(os.fsdecode(path) or checkpoint.name).name
        root = workspace.store.record(checkpoint.record).root
        with progress() as report:
            restored = workspace.store.restore(root, target, overwrite=overwrite, progress=report, select=path)
    note(f"restored {count(restored.files, 'file')}, {size(restored.size_bytes)}, to {target}")
