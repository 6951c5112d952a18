"""`gpu-train stats`: how much was stored, how much space it takes, and what saved the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpu_train_cli.chart import bars
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Details, Output, reading
from gpu_train_cli.text import count, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpu_train import Workspace
    from gpu_train_cas import ClassStats, Codec, Entry, Share, Stats


@click.command("stats", cls=Command, exits=[3, 4])
@click.argument("job", required=False)
@reading
@pass_invocation
def stats(invocation: Invocation, job: str | None, output: Output) -> None:
    """Show how much space is taken and how much was saved.

    It is counted over all that is stored, or over the checkpoints of JOB.
    "original" counts each file of each record in full, "unique" each different block once, "stored" is what
    the unique blocks and their descriptions take on disk after encoding. The same follows for each class of
    tensors (weights, Adam's moments exp_avg and exp_avg_sq, other), with the codecs that won. Bars show where the
    original bytes went.
    """
    with invocation.workspace() as workspace:
        roots, job_id = None, None
        if job is not None:
            job_id = workspace.jobs.find(job).id
            roots = _roots(workspace, job_id)
        found = workspace.store.stats(roots)
    fields = stats_fields(found, job_id)
    saved_dedup = found.original_bytes - found.unique_bytes
    lines = [
        ("of", job_id or "everything stored"),
        ("records", f"{found.records:,}"),
        ("original", size(found.original_bytes)),
        ("unique", f"{size(found.unique_bytes)} (deduplication saves {_percent(saved_dedup, found.original_bytes)})"),
        (
            "stored",
            f"{size(found.stored_bytes)} ({_percent(found.stored_bytes, found.original_bytes)} of the original)",
        ),
    ]
    for name, of_class in found.classes.items():
        lines.append((str(name), _class_line(of_class)))
        lines += [(f"  {codec.name.lower()}", _share_line(share)) for codec, share in sorted(of_class.codecs.items())]
    output.details(Details(fields, job_id or "all", lines))
    if output.for_people and found.stored_bytes:
        click.echo(f"\n{_where(found)}")


def _where(found: Stats) -> str:
    """Where the bytes went, as bars: what each class takes, what describes it all, and what was saved in which way."""
    taken = {str(name): of_class.unique.stored_bytes for name, of_class in found.classes.items()}
    sizes = {
        **taken,
        "descriptions": max(found.stored_bytes - sum(taken.values()), 0),
        "saved by encoding": max(found.unique_bytes - found.stored_bytes, 0),
        "saved by deduplication": found.original_bytes - found.unique_bytes,
    }
    texts = {name: f"{size(value)} {_percent(value, found.original_bytes):>7}" for name, value in sizes.items()}
    return bars(sizes, texts)


def stats_fields(found: Stats, job_id: str | None) -> dict[str, object]:
    """What was counted, for programs."""
    return {
        "job_id": job_id,
        "records": found.records,
        "original_bytes": found.original_bytes,
        "unique_bytes": found.unique_bytes,
        "stored_bytes": found.stored_bytes,
        "codecs": _codec_fields(found.codecs),
        "classes": {
            str(name): {
                "original_bytes": of_class.original_bytes,
                "unique_bytes": of_class.unique.original_bytes,
                "stored_bytes": of_class.unique.stored_bytes,
                "codecs": _codec_fields(of_class.codecs),
            }
            for name, of_class in found.classes.items()
        },
    }


def _codec_fields(codecs: Mapping[Codec, Share]) -> dict[str, object]:
    return {
        codec.name.lower(): {
            "blocks": share.blocks,
            "original_bytes": share.original_bytes,
            "stored_bytes": share.stored_bytes,
        }
        for codec, share in sorted(codecs.items())
    }


def _class_line(of_class: ClassStats) -> str:
    stored, original = of_class.unique.stored_bytes, of_class.original_bytes
    return f"{size(original)}, {size(of_class.unique.original_bytes)} unique, {size(stored)} stored " + (
        f"({_percent(stored, original)} of the original)"
    )


def _share_line(share: Share) -> str:
    words = f"{count(share.blocks, 'block')}, {size(share.original_bytes)} in {size(share.stored_bytes)}"
    return f"{words} ({_percent(share.stored_bytes, share.original_bytes)})"


def _roots(workspace: Workspace, job_id: str) -> list[Entry]:
    digests = [checkpoint.record for checkpoint in workspace.checkpoints.list(job_id)]
    return [workspace.store.record(digest).root for digest in digests if digest is not None]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
