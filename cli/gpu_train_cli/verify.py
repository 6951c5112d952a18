"""`gpu-train verify`: re-reading and re-hashing what is stored, all of it or one checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from gpu_train_cas.errors import Incomplete
from gpu_train_cli.command import Command
from gpu_train_cli.duration import DURATION
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, note, reading, warn
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, size

if TYPE_CHECKING:
    from gpu_train import Workspace
    from gpu_train_cas import Digest
    from gpu_train_cas.check import VerifyReport
    from gpu_train_cas.progress import Progress

DAMAGED = 4


def _share(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """`5%` or `0.05` as a number from 0 to 1."""
    if text is None:
        return None
    try:
        share = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"{text!r} is no share; write 5% or 0.05")
    return share


@click.command("verify", cls=Command, exits=[3, 4, 5])
@click.option(
    "--sample", callback=_share, metavar="SHARE", help="Read about that share (5%), what was read longest ago first."
)
@click.option("--max-duration", type=DURATION, metavar="T", help="Begin nothing more after T (90s, 10m, 2h).")
@click.option("--repair-from", metavar="SINK", help="Fetch from SINK what is damaged or missing, and look again.")
@reading
@pass_invocation
def verify(
    invocation: Invocation, sample: float | None, max_duration: float | None, repair_from: str | None, output: Output
) -> None:
    """Re-read and re-hash what is stored.

    Every block is decoded and compared with its name. Damage is listed with the checkpoints and files it
    hits, and remembered: the content is stored anew when it is met again. A run with a limit goes on
    where the last one stopped. Exit code 4 when anything is damaged.
    """
    with invocation.workspace(write=repair_from is not None) as workspace, progress() as tell:
        report = workspace.store.verify(sample=sample, max_duration_s=max_duration, progress=tell)
        if repair_from is not None and report.damaged:
            _mend(workspace, repair_from, report, tell)
            report = workspace.store.verify(progress=tell)
    _show(report, output, {})


def _mend(workspace: Workspace, sink: str, report: VerifyReport, tell: Callable[[Progress], None]) -> None:
    from gpu_train.sinks.mend import mend  # noqa: PLC0415  few checks find anything
    from gpu_train.sinks.opening import find_setting, open_sink  # noqa: PLC0415

    with open_sink(workspace, find_setting(workspace, sink)) as opened:
        mended = mend(workspace, opened, report, tell)
    note(
        f"{count(mended.frames, 'block')} fetched from {opened.setting.called}, {size(mended.received_bytes)}; "
        f"{count(mended.rows, 'row')} written anew"
    )
    for record, reason in mended.left.items():
        warn(f"record {record.hex()[:16]} could not be mended: {reason}")


@click.command("verify", cls=Command, exits=[3, 4])
@click.argument("ref")
@reading
@pass_invocation
def verify_checkpoint(invocation: Invocation, ref: str, output: Output) -> None:
    """Re-read and re-hash all that the checkpoint REF needs; exit code 4 when anything is damaged."""
    with invocation.workspace() as workspace, progress() as tell:
        checkpoint, _ = workspace.checkpoints.resolve(ref)
        if checkpoint.record is None:
            raise Incomplete(f"{checkpoint.ref} is {checkpoint.state}: its bytes were never kept")
        report = workspace.store.verify(records=[checkpoint.record], progress=tell)
    _show(report, output, {"job_id": checkpoint.job_id, "checkpoint_id": checkpoint.name})


def _show(report: VerifyReport, output: Output, what: dict[str, object]) -> None:
    head = {
        **what,
        "ok": not report.damaged,
        "complete": report.complete,
        "damaged_blocks": len(report.frames_damaged) + len(report.missing),
        "packs": report.packs,
        "packs_total": report.packs_total,
        "records": report.records,
        "frames": report.frames,
        "stored_bytes": report.stored_bytes,
        "mended": report.mended,
        "elsewhere": report.elsewhere,
    }
    rows = list(_damages(report))
    columns = [
        Column("what", "DAMAGED"),
        Column("name", "NAME", wrap=True),
        Column("path", "PATH", wrap=True),
        Column("reason", "REASON", wrap=True),
    ]
    if rows or not output.for_people:
        output.listing(Listing("damaged", columns, rows, lambda row: str(row["digest"]), "", head))
    if output.for_people:
        part = "" if report.complete else f", {report.packs} of {count(report.packs_total, 'pack')}"
        mended = f"; {count(report.mended, 'block')} damaged before could be read now" if report.mended else ""
        far = f"; {count(report.elsewhere, 'block')} only in sinks, not read" if report.elsewhere else ""
        found = f"{count(len(rows), 'finding')}: see above" if rows else "all of it is as it was stored"
        note(f"read {count(report.frames, 'frame')}, {size(report.stored_bytes)}{part}: {found}{mended}{far}")
    if report.damaged:
        click.get_current_context().exit(DAMAGED)


def _damages(report: VerifyReport) -> Iterator[dict[str, object]]:
    """What is hit, by the names people know; then what no record needs, by its own."""
    told = {hit.digest for hit in report.hits}
    for hit in report.hits:
        name = f"{hit.owner}@{hit.name}" if hit.owner else hit.name
        yield _damage(hit.kind, name, hit.digest, hit.reason, os.fsdecode(hit.path))
    for pack in report.packs_damaged:
        yield _damage("pack", pack.pack.hex()[:16], pack.pack, pack.reason)
    for frame in report.frames_damaged:
        if frame.digest not in told:
            yield _damage(frame.kind.name.lower(), frame.digest.hex()[:16], frame.digest, frame.reason)
            told.add(frame.digest)
    for digest, reason in report.missing.items():
        if digest not in told:
            yield _damage("missing", digest.hex()[:16], digest, reason)


def _damage(what: str, name: str, digest: Digest, reason: str, path: str | None = None) -> dict[str, object]:
    return {"what": what, "name": name, "path": path, "digest": digest.hex(), "reason": reason}
