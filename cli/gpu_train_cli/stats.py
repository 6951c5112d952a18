"""`gpu-train stats`: how much was stored, how much space it takes, and what saved the difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Details, Output, reading
from gpu_train_cli.text import count, size

if TYPE_CHECKING:
    from gpu_train import Workspace
    from gpu_train_cas import Entry, Stats


@click.command("stats", cls=Command, exits=[3, 4])
@click.argument("job", required=False)
@reading
@pass_invocation
def stats(invocation: Invocation, job: str | None, output: Output) -> None:
    """Show how much space is taken and how much was saved.

    It is counted over all that is stored, or over the checkpoints of JOB.
    "original" counts each file of each record in full, "unique" each different block once, "stored" is what
    the unique blocks and their descriptions take on disk after encoding.
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
        ("unique", f"{size(found.unique_bytes)} (deduplication saves {_share(saved_dedup, found.original_bytes)})"),
        ("stored", f"{size(found.stored_bytes)} ({_share(found.stored_bytes, found.original_bytes)} of the original)"),
    ]  # fmt: skip
    for codec, (blocks, original, stored) in sorted(found.by_codec.items()):
        words = f"{count(blocks, 'block')}, {size(original)} in {size(stored)} ({_share(stored, original)})"
        lines.append((f"codec {codec.name.lower()}", words))
    output.details(Details(fields, job_id or "all", lines))


def stats_fields(found: Stats, job_id: str | None) -> dict[str, object]:
    """What was counted, for programs."""
    return {
        "job_id": job_id,
        "records": found.records,
        "original_bytes": found.original_bytes,
        "unique_bytes": found.unique_bytes,
        "stored_bytes": found.stored_bytes,
        "codecs": {
            codec.name.lower(): {"blocks": blocks, "original_bytes": original, "stored_bytes": stored}
            for codec, (blocks, original, stored) in sorted(found.by_codec.items())
        },
    }


def _roots(workspace: Workspace, job_id: str) -> list[Entry]:
    digests = [checkpoint.record for checkpoint in workspace.checkpoints.list(job_id)]
    return [workspace.store.record(digest).root for digest in digests if digest is not None]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
