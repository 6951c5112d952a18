"""`gpu-train models`: base models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpu_train_cli.command import Group
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Details, Listing, Output, note, reading
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, local, moment, size

if TYPE_CHECKING:
    from gpu_train.model import Model

NO_MODELS = "no models yet: `gpu-train models add NAME|PATH` registers what a fine-tune starts from"


@click.group("models", cls=Group, default="list")
def models() -> None:
    """Register, list and remove base models.

    The first checkpoint of a fine-tune is stored as what differs from the registered model that it started from.
    """


@models.command("list")
@reading
@pass_invocation
def list_models(invocation: Invocation, output: Output) -> None:
    """List the registered models, the last first."""
    with invocation.workspace() as workspace:
        rows = [_row(model) for model in workspace.models.list()]
    columns = [
        Column("name", "NAME", wrap=True),
        Column("size_bytes", "SIZE", size, right=True),
        Column("stored_bytes", "STORED", size, right=True),
        Column("registered_at", "REGISTERED", wrap=True),
        Column("source", "SOURCE", wrap=True),
    ]
    output.listing(Listing("models", columns, rows, lambda row: str(row["name"]), NO_MODELS))


@models.command("add", exits=[3])
@click.argument("model", metavar="NAME|PATH")
@click.option("--name", help="What to call it; by default as it is called there.")
@reading
@pass_invocation
def add(invocation: Invocation, model: str, name: str | None, output: Output) -> None:
    """Register a folder or file, or a model by its name.

    A name is looked for in `models/` of the home and in the Hugging Face cache; nothing is downloaded. Its files of
    tensors and its small configuration files are stored. The same content again changes nothing.
    """
    with invocation.workspace(write=True) as workspace, progress() as report:
        found = workspace.models.add(model, name, progress=report)
    lines = [
        ("name", found.name),
        ("files", f"{count(found.files, 'file')}, {size(found.size_bytes)} in {size(found.stored_bytes)}"),
        ("registered", local(moment(found.created_ns))),
        ("source", found.source),
    ]
    output.details(Details(_row(found), found.name, lines))
    if not found.new and output.for_people:
        note(f"{found.name} was registered before: the content is the same")


@models.command("rm", exits=[3])
@click.argument("name")
@pass_invocation
def remove(invocation: Invocation, name: str) -> None:
    """Remove the registered model NAME; checkpoints that were stored against it stay whole."""
    with invocation.workspace(write=True) as workspace:
        found = workspace.models.remove(name)
    note(f"{found.name} was moved to the trash; `gpu-train gc` takes it from there after some days")


def _row(model: Model) -> dict[str, object]:
    return {
        "name": model.name,
        "revision": model.revision or None,
        "source": model.source,
        "files": model.files,
        "size_bytes": model.size_bytes,
        "stored_bytes": model.stored_bytes,
        "registered_at": moment(model.created_ns),
    }
