"""`gpu-train debug`: look inside packs, records and files, for the people who maintain this."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from gpu_train_cas import Bases, Entry, Record, Store
from gpu_train_cas.digest import FileHasher
from gpu_train_cas.errors import NotFound
from gpu_train_cas.formats import FileSource, parse
from gpu_train_cas.pack import PackReader
from gpu_train_cli.command import Group
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, reading
from gpu_train_cli.progress import progress
from gpu_train_cli.text import as_json, moment, printable, size

READ_BYTES = 8 << 20


class RegularFile(click.Path):
    """A file with an end: reading a FIFO would wait for who writes to it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path as a Path."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.is_file():
            self.fail(f"{printable(str(path))!r} is neither a regular file nor a link to one", param, ctx)
        return path


FILE = RegularFile(exists=True, dir_okay=False)


@click.group("debug", cls=Group)
def debug() -> None:
    """Look inside packs, records and files."""


@debug.command("pack", exits=[3, 4])
@click.argument("file", type=FILE)
@click.option("--scan", is_flag=True, help="Find the frames by their own headers instead of the pack's index.")
@reading
def pack(file: Path, scan: bool, output: Output) -> None:
    """List the frames of the pack FILE."""
    with PackReader(file) as reader:
        rows = [
            {
                "offset": entry.offset,
                "kind": entry.header.kind.name.lower(),
                "codec": entry.header.codec.name.lower(),
                "digest": entry.header.digest.hex(),
                "size_bytes": entry.header.length,
                "stored_bytes": entry.header.stored_bytes,
                "base": entry.header.base.hex() if entry.header.base else None,
                "sibling": entry.header.sibling.hex() if entry.header.sibling else None,
            }
            for entry in (reader.scan() if scan else reader.index())
        ]
    columns = [
        Column("offset", "OFFSET", right=True),
        Column("kind", "KIND"),
        Column("codec", "CODEC"),
        Column("size_bytes", "BYTES", right=True),
        Column("stored_bytes", "STORED", right=True),
        Column("digest", "DIGEST"),
    ]
    output.listing(Listing("frames", columns, rows, lambda row: str(row["digest"]), "no frames in this pack"))


@debug.command("record", exits=[3, 4])
@click.argument("digest")
@pass_invocation
def record(invocation: Invocation, digest: str) -> None:
    """Show the record whose DIGEST begins so, or all digests when several do, as JSON."""
    with invocation.workspace() as workspace:
        found = [(name, record) for name, record in workspace.store.records() if name.hex().startswith(digest.lower())]
    if not found:
        raise NotFound(f"no record's digest begins with {digest!r}; `gpu-train debug records` lists them")
    for name, one in found:
        root = {
            "digest": one.root.digest.hex(),
            "content": one.root.identity.hex(),
            "size_bytes": one.root.size_bytes,
            "files": one.root.files,
        }
        fields = {
            "digest": name.hex(),
            "kind": one.kind,
            "owner": one.owner,
            "name": one.name,
            "created_at": moment(one.created_ns),
            "root": root,
            "meta": one.meta,
        }
        click.echo(as_json(fields, indent=2))


@debug.command("records", exits=[4])
@click.option("--kind", help="Only this kind: checkpoint, code, data or logs.")
@reading
@pass_invocation
def records(invocation: Invocation, kind: str | None, output: Output) -> None:
    """List all committed records."""
    with invocation.workspace() as workspace:
        rows = [
            {
                "digest": digest.hex(),
                "kind": record.kind,
                "owner": record.owner,
                "name": record.name,
                "created_at": moment(record.created_ns),
                "size_bytes": record.root.size_bytes,
            }
            for digest, record in workspace.store.records(kind)
        ]
    columns = [
        Column("digest", "DIGEST", lambda digest: str(digest)[:16]),
        Column("kind", "KIND"),
        Column("owner", "OWNER"),
        Column("name", "NAME", wrap=True),
        Column("size_bytes", "SIZE", size, right=True),
        Column("created_at", "CREATED", wrap=True),
    ]
    output.listing(Listing("records", columns, rows, lambda row: str(row["digest"]), "no records yet"))


@debug.command("codec", exits=[3, 4])
@click.argument("file", type=FILE)
@click.option("--base", type=FILE, help="Store it as what differs from this file.")
@reading
def codec(file: Path, base: Path | None, output: Output) -> None:
    """Show how small FILE gets, by class of tensors and by the codec that won.

    Both files are stored in a temporary home, which is removed.
    """
    roots: list[Entry] = []
    with (
        tempfile.TemporaryDirectory(prefix="gpu-train-") as home,
        Store.open(Path(home)) as store,
        progress() as report,
    ):
        for path in [base, file] if base else [file]:
            with store.writer("debug") as writer:
                name = os.fsencode(file.name)  # both have one name: they are a file before and after
                added = writer.add_file(path, name=name, bases=Bases(list(roots)), progress=report)
                with writer.commit() as txn:
                    txn.put_record(Record("checkpoint", "debug", path.name, time.time_ns(), added.root))
            roots.append(added.root)
        found = store.stats(roots[-1:])
    rows = [
        {
            "class": str(name),
            "codec": one.name.lower(),
            "blocks": share.blocks,
            "original_bytes": share.original_bytes,
            "stored_bytes": share.stored_bytes,
            "ratio": round(share.stored_bytes / share.original_bytes, 4) if share.original_bytes else None,
        }
        for name, of_class in sorted(found.classes.items())
        for one, share in sorted(of_class.codecs.items())
    ]
    columns = [
        Column("class", "CLASS"),
        Column("codec", "CODEC"),
        Column("blocks", "BLOCKS", right=True),
        Column("original_bytes", "BYTES", right=True),
        Column("stored_bytes", "STORED", right=True),
        Column("ratio", "RATIO", right=True),
    ]
    head = {"original_bytes": found.original_bytes, "stored_bytes": found.stored_bytes}
    output.listing(Listing("classes", columns, rows, lambda row: str(row["class"]), "the file is empty", head))


@debug.command("hash")
@click.argument("files", nargs=-1, required=True, type=FILE)
def hash_files(files: tuple[Path, ...]) -> None:
    """Print the digest of each of FILES, which is also the name of a file of one block (as `b3sum` has it)."""
    for file in files:
        hasher = FileHasher()
        with file.open("rb") as stream:
            while data := stream.read(READ_BYTES):
                hasher.update(data)
        click.echo(f"{hasher.digest().hex()}  {printable(str(file))}")


@debug.command("tensors", exits=[3, 4])
@click.argument("file", type=FILE)
@reading
def tensors(file: Path, output: Output) -> None:
    """List the tensors of FILE (safetensors, torch zip, npy, npz, GGUF) without running anything in it."""
    with file.open("rb") as stream:
        layout = parse(FileSource(stream.fileno()), file.name)
    rows = [
        {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "offset": tensor.offset,
            "size_bytes": tensor.length,
        }
        for tensor in layout.tensors
    ]
    columns = [
        Column("name", "NAME", wrap=True),
        Column("dtype", "DTYPE"),
        Column("shape", "SHAPE", lambda shape: "x".join(map(str, shape)) or "scalar"),
        Column("offset", "OFFSET", right=True),
        Column("size_bytes", "SIZE", size, right=True),
    ]
    head = {"format": layout.format, "metadata": dict(layout.metadata)}
    output.listing(Listing("tensors", columns, rows, lambda row: str(row["name"]), "no tensors in this file", head))
