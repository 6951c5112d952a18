"""`gpu-train gc`: giving back the space of what nothing needs."""

from __future__ import annotations

import click

from gpu_train_cli.command import Command
from gpu_train_cli.confirm import confirm, yes_option
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Details, Output, reading, warn
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, size


@click.command("gc", cls=Command, exits=[4, 6])
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@click.option("--empty-trash", is_flag=True, help="Take all that is in the trash now, however short it has been there.")
@yes_option
@reading
@pass_invocation
def gc(invocation: Invocation, dry_run: bool, empty_trash: bool, yes: bool, output: Output) -> None:
    """Free the space of what nothing needs any more.

    What has been in the trash for longer than the setting defaults.trash_days is removed for good, of jobs also their
    files and logs; blocks that no record needs are forgotten; packs that have become emptier are rewritten. Training,
    capturing and reading may go on meanwhile.
    """
    from gpu_train.retention.purging import purge  # noqa: PLC0415  loads the engine

    with invocation.workspace(write=not dry_run) as workspace:
        if empty_trash and not dry_run:
            confirm("Take all that is in the trash for good?", yes=yes)
        with progress() as tell:
            done = purge(workspace, trash_days=0.0 if empty_trash else None, dry_run=dry_run, progress=tell)
    report = done.store
    fields = {
        "dry_run": report.dry_run,
        "jobs": list(done.jobs),
        "file_bytes": done.file_bytes,
        "records": [digest.hex() for digest in report.records],
        "blocks": report.blocks,
        "block_bytes": report.block_bytes,
        "held_bytes": report.held_bytes,
        "packs": report.packs,
        "moved_bytes": report.moved_bytes,
        "freed_bytes": report.freed_bytes,
        "pending_bytes": report.pending_bytes,
        "waiting": [{"pid": lease.pid, "purpose": lease.purpose} for lease in report.waiting],
        "kept": report.kept,
    }
    would = "would be " if dry_run else ""
    lines = [
        (f"jobs {would}removed", f"{len(done.jobs):,}, {size(done.file_bytes)} of plain files"),
        (f"records {would}removed", f"{len(report.records):,}"),
        (f"blocks {would}forgotten", f"{report.blocks:,}, {size(report.block_bytes)}"),
        (f"packs {would}rewritten", f"{report.packs:,}, copying {size(report.moved_bytes)}"),
        (f"space {would}freed", size(report.freed_bytes)),
        ("kept only for deltas that need it", size(report.held_bytes)),
        ("dead, but not worth a rewrite yet", size(report.pending_bytes)),
    ]
    output.details(Details(fields, str(report.freed_bytes), lines))
    for message in report.kept:
        warn(message)
    if report.waiting:
        who = ", ".join(f"{lease.purpose or 'a writer'} (pid {lease.pid})" for lease in report.waiting)
        warn(f"{count(len(report.waiting), 'writer')} still at work: {who}; run `gpu-train gc` again afterwards")
