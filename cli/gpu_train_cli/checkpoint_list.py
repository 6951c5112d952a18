"""`gpu-train checkpoints list|show`: what was captured, and the facts of one checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

import gpu_train
from gpu_train_cas.errors import GpuTrainError
from gpu_train_cli.checkpoints import checkpoint_row, ref_of
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Details, Listing, Output, Row, reading
from gpu_train_cli.query import Field, field_of, matcher, searcher, sort
from gpu_train_cli.text import count, local, moment, plain, printable, size

if TYPE_CHECKING:
    from gpu_train import Checkpoint, Workspace
    from gpu_train.training_state import TrainingState
    from gpu_train.whereabouts import Place

NO_CHECKPOINTS = (
    "no checkpoints yet: `gpu-train run -- python train.py` captures what a training writes to "
    "$GPU_TRAIN_CHECKPOINT_DIR, `gpu-train checkpoints import DIR --job NAME` brings old ones in"
)
FIELDS = {
    "step": Field("step", "number", descending=True),
    "name": Field("checkpoint_id", order=gpu_train.natural_key),
    "created": Field("created_at", "time", descending=True),
    "size": Field("size_bytes", "size", descending=True),
    "stored": Field("stored_bytes", "size", descending=True),
    "type": Field("type"),
    "state": Field("state"),
    "proof": Field("proof"),
    "job": Field("job_id"),
    "metric:NAME": Field("metrics", "number"),
    "tag:NAME": Field("tags"),
}
SHOWN = {
    **FIELDS,
    "base_model": Field("base_model"),
    "metrics": Field("metrics"),
    "tags": Field("tags"),
    "sinks": Field("sinks"),
    "kept": Field("kept"),
}
SEARCHED = ("job_id", "checkpoint_id", "state", "proof", "type", "base_model", "tags")
DAY_NS = 86_400 * 10**9
MAIN_METRICS = ("eval_loss", "loss")


@click.command("list", cls=Command, exits=[3])
@click.argument("job", required=False)
@click.option("--job-id", "job_option", metavar="JOB", help="The same as JOB.")
@click.option(
    "--sort",
    "order",
    metavar="KEY[:asc|:desc]",
    help="Sort by step, name, created, size, stored, type, state, job or metric:NAME. [default: newest first]",
)
@click.option(
    "--filter",
    "filters",
    metavar="EXPR",
    multiple=True,
    help="Only those for which FIELD OP VALUE holds, such as step>=500, size<1GiB, state=verified, "
    "metric:loss<0.5, name~final. Fields as for --sort, and tag:NAME. May be repeated.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many.")
@click.option("--search", metavar="TEXT", help="Only those with every word of TEXT in name, job, tags or state.")
@click.option(
    "--columns",
    "chosen",
    metavar="NAME,...",
    help="The columns of the table or of CSV, in this order: fields as for --sort, base_model, sinks, metrics, tags, "
    "kept, metric:NAME, tag:NAME.",
)
@click.option("--trash", is_flag=True, help="Those that were removed and can be brought back, the last removed first.")
@reading
@pass_invocation
def list_checkpoints(
    invocation: Invocation,
    job: str | None,
    job_option: str | None,
    order: str | None,
    filters: tuple[str, ...],
    limit: int | None,
    search: str | None,
    chosen: str | None,
    trash: bool,
    output: Output,
) -> None:
    """List the checkpoints of JOB, or of all jobs, newest first.

    Those that the training has deleted since are listed too: they are in the store. "gone" is one that was
    deleted before its bytes could be kept, "incomplete" one of which nothing proves that it was finished.
    """
    if job and job_option and job != job_option:
        raise click.UsageError(f"JOB is {job!r} and --job-id is {job_option!r}; give one of them")
    wanted, matches, found = job or job_option, matcher(filters, FIELDS), searcher(search, SEARCHED)
    picked = {name: field_of(name, SHOWN) for name in (chosen or "").replace(",", " ").split()}
    with invocation.workspace() as workspace:
        job_id = workspace.jobs.find(wanted).id if wanted else None
        enough = None if order or filters or search or trash else limit
        everything = _removed(workspace, job_id) if trash else _present(workspace, job_id, enough)
        known = len(everything) if trash else workspace.checkpoints.count(job_id)
    rows = [row for row in everything if matches(row) and found(row)]
    total = len(rows) if enough is None else known
    if order is not None:
        rows = sort(rows, order, FIELDS)
    empty = NO_CHECKPOINTS
    if trash and not known:
        empty = "the trash is empty"
    elif known:
        empty = f"none of {count(known, 'checkpoint')} is like that"
    elif job_id:
        empty = f"{job_id} has no checkpoints yet; `gpu-train logs {job_id}` shows what it did"
    head = {"job_id": job_id, "total_checkpoints": total}
    columns = _columns(rows, one_job=job_id is not None, trash=trash)
    rows = rows[:limit]
    if picked and output.takes_columns:
        columns = [_column(name, found.kind) for name, (found, _) in picked.items()]
        rows = [{name: value_of(row) for name, (_, value_of) in picked.items()} for row in rows]
    output.listing(Listing("checkpoints", columns, rows, ref_of, empty, head))


def _present(workspace: Workspace, job_id: str | None, limit: int | None) -> list[Row]:
    return [checkpoint_row(c) for c in workspace.checkpoints.list(job_id, limit=limit)]


def _removed(workspace: Workspace, job_id: str | None) -> list[Row]:
    from gpu_train.retention.trash import Trash  # noqa: PLC0415  loads the engine

    trash_ns = round(workspace.config.defaults.trash_days * DAY_NS)
    return [
        checkpoint_row(c)
        | {
            "removed_at": moment(c.removed_ns),
            "removed_by": c.removed_by,
            "why": c.removed_why,
            "leaves_trash_at": moment((c.removed_ns or 0) + trash_ns),
        }
        for c in Trash(workspace).list(job_id)
    ]


def _columns(rows: Sequence[Row], *, one_job: bool, trash: bool) -> list[Column]:
    columns = [
        Column("job_id", "JOB"),
        Column("checkpoint_id", "CHECKPOINT"),
        Column("step", "STEP", right=True),
        Column("state", "STATE"),
        Column("size_bytes", "SIZE", size, right=True),
        Column("stored_bytes", "STORED", size, right=True),
        Column("metrics", "METRICS", _main_metrics, wrap=True),
        Column("kept", "KEPT"),
        Column("created_at", "CREATED", wrap=True),
        Column("removed_at", "REMOVED", wrap=True),
        Column("removed_by", "BY", wrap=True),
        Column("leaves_trash_at", "TRASHED UNTIL", wrap=True),
    ]
    dropped = {"job_id"} if one_job else set()
    dropped |= {"metrics", "created_at"} if trash else {"removed_at", "removed_by", "leaves_trash_at"}
    dropped |= {key for key in ("metrics", "kept") if not any(row[key] for row in rows)}
    return [column for column in columns if column.key not in dropped]


def _column(name: str, kind: str) -> Column:
    text = size if kind == "size" else plain
    return Column(name, printable(name).upper(), text, right=kind in ("size", "number"), wrap=kind in ("text", "time"))


def _main_metrics(metrics: Mapping[str, float]) -> str:
    chosen = [name for name in MAIN_METRICS if name in metrics] or list(metrics)[:2]
    return plain({name: metrics[name] for name in chosen})


def _place(place: Place) -> str:
    words = {"box": "the trainer's folder", "pinned": "a pin", "local": "the store", "verified": "the store, verified"}
    path = f": {printable(str(place.path))}" if place.path else ""
    return f"{words.get(place.name, printable(place.name))}, since {local(moment(place.since_ns))}{path}"


def _state(workspace: Workspace, checkpoint: Checkpoint) -> TrainingState | None:
    """What of a training is in a checkpoint; None when it cannot be read, which is not what is asked about here."""
    from gpu_train.tensor_table import READ_ERRORS, table_of  # noqa: PLC0415  listing does without
    from gpu_train.training_state import training_state  # noqa: PLC0415

    if checkpoint.record is None:
        return None
    try:
        root = workspace.store.record(checkpoint.record).root
        return training_state(table_of(workspace.store.reader, root))
    except READ_ERRORS:
        return None


@click.command("show", cls=Command, exits=[3, 4])
@click.argument("ref")
@reading
@pass_invocation
def show_checkpoint(invocation: Invocation, ref: str, output: Output) -> None:
    """Show all that is known of the checkpoint REF: step, proof, sizes, metrics, tags, where it is and came from."""
    from gpu_train.kind import Kind, stored_kind  # noqa: PLC0415  listing does without
    from gpu_train.whereabouts import whereabouts  # noqa: PLC0415

    with invocation.workspace() as workspace:
        checkpoint, _ = workspace.checkpoints.resolve(ref)
        job = workspace.jobs.get(checkpoint.job_id)
        places = whereabouts(workspace, checkpoint)
        kind = Kind(checkpoint.kind, checkpoint.base_model)
        if not checkpoint.kind and checkpoint.record is not None:
            with suppress(GpuTrainError):  # what is damaged is shown with less
                kind = stored_kind(workspace.store.reader, workspace.store.record(checkpoint.record).root)
        checkpoint = checkpoint._replace(kind=kind.name, base_model=kind.base_model)
        state = _state(workspace, checkpoint)
    fields = {
        **checkpoint_row(checkpoint),
        "ref": checkpoint.ref,
        "files": checkpoint.files,
        "seen_at": moment(checkpoint.seen_ns or None),
        "settled_at": moment(checkpoint.settled_ns or None),
        "committed_at": moment(checkpoint.committed_ns),
        "places": [{"place": p.name, "since": moment(p.since_ns), "path": p.path} for p in places],
        "record": checkpoint.record.hex() if checkpoint.record else None,
        "source": checkpoint.source,
        **(state.to_row() if state is not None else {"use": None, "holds": None}),
        "thinned_at": moment(checkpoint.thin["thinned_ns"]) if checkpoint.thin else None,
        "code": job.code if job else None,
        "data": list(job.data) if job else [],
    }
    hidden = "local" if checkpoint.state == "verified" else None  # the store is told of once
    lines = [
        ("checkpoint", printable(checkpoint.name)),
        ("job", checkpoint.job_id),
        ("step", plain(checkpoint.step)),
        ("type", plain(fields["type"])),
        ("base model", plain(fields["base_model"])),
        ("state", f"{checkpoint.state} (proof: {plain(checkpoint.proof)})"),
        ("size", f"{size(checkpoint.size_bytes)} in {count(checkpoint.files, 'file')}"),
        ("added to the store", size(checkpoint.stored_bytes)),
        ("created", plain(fields["created_at"])),
        ("stored", plain(fields["committed_at"])),
        *(("is in", _place(place)) for place in places if place.name != hidden),
        ("metrics", plain(checkpoint.metrics)),
        ("tags", plain(checkpoint.tags)),
        ("thinned", f"{plain(fields['thinned_at'])}: it can serve, not resume" if checkpoint.thin else "-"),
        ("can", "-" if state is None else str(state)),
        ("kept", "yes" if checkpoint.kept else "-"),
        ("code", plain(fields["code"])),
        ("data", plain(fields["data"])),
        ("came from", plain(checkpoint.source)),
        ("ref", printable(checkpoint.ref)),
        ("record", plain(fields["record"])),
    ]
    output.details(Details(fields, checkpoint.ref, [line for line in lines if line[1] != "-"]))
