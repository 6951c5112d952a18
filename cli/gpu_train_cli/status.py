"""`gpu-train status`: what of the running jobs is safe, and how long the disks last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

import gpu_train
from gpu_train_cli.command import Command
from gpu_train_cli.duration import DURATION
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Details, Listing, Output, Row, note, reading
from gpu_train_cli.text import count, duration, moment, plain, printable, size

if TYPE_CHECKING:
    from gpu_train import JobStatus
    from gpu_train.capture.board import InHand, Paused
    from gpu_train.job_status import SinkState
    from gpu_train.room import Disk
    from gpu_train.saves import Saves

NO_JOBS = "no jobs yet: start one with `gpu-train run -- python train.py`"
NS = 1_000_000_000


@click.command("status", cls=Command, exits=[3, 4])
@click.argument("job", required=False)
@click.option(
    "--max-age",
    "max_age_s",
    type=DURATION,
    metavar="TIME",
    help="Fail (exit code 4) when the newest whole checkpoint of a running job, or of JOB, holds no training of the "
    "last TIME, such as 30m.",
)
@reading
@pass_invocation
def status(invocation: Invocation, job: str | None, max_age_s: float | None, output: Output) -> None:
    """Show what of the running jobs is safe.

    For each running job, or for JOB: its newest whole checkpoint, how much training would be lost if the machine
    died now, what is being written or waits to be stored, what its pins hold, how often and how much it saves, and
    when that fills the disks. Jobs that nobody looks after any more are put right first, as by `gpu-train
    reconcile`. For monitoring: exit code 4 when a running job's capture agent is dead, and with --max-age.
    """
    found = gpu_train.status(job, home=invocation.home)
    running = len(found)
    if not found:
        found = _last(invocation, output)
    rows = [status_row(one) for one in found]
    if output.for_people and len(rows) == 1:
        output.details(Details(rows[0], found[0].job.id, _lines(found[0])))
    else:
        head = {"running": running if job is None else sum(one.job.is_live for one in found)}
        output.listing(Listing("jobs", _COLUMNS, rows, lambda row: str(row["job_id"]), NO_JOBS, head))
    if output.for_people:
        for text in (text for one in found for text in one.warnings):
            note(f"gpu-train: warning: {text}")
    gpu_train.check_status(found if job or running else [], max_age_s)


def _last(invocation: Invocation, output: Output) -> list[JobStatus]:
    """The newest job, when none is running."""
    with invocation.workspace() as workspace:
        jobs = workspace.jobs.list()
    if jobs and output.for_people:
        note("no job is running; this is the last one")
    return gpu_train.status(jobs[0].id, home=invocation.home) if jobs else []


def status_row(one: JobStatus) -> dict[str, object]:
    """How a job is doing, for programs."""
    job, newest, saves = one.job, one.newest, one.saves
    return {
        "job_id": job.id,
        "name": job.name,
        "project": job.project,
        "status": job.status,
        "started_at": moment(job.started_ns),
        "ended_at": moment(job.ended_ns),
        "agent": one.agent,
        "checkpoint_id": newest.name if newest else None,
        "ref": newest.ref if newest else None,
        "step": newest.step if newest else None,
        "total_steps": saves.total_steps if saves else None,
        "finished_at": moment(one.finished_ns),
        "stored_at": moment(newest.committed_ns) if newest else None,
        "age_s": round(one.age_s, 3),
        "at_risk_s": None if one.at_risk_s is None else round(one.at_risk_s, 3),
        "checkpoints": dict(one.counts),
        "plain_checkpoints": one.plain,
        "in_hand": [_in_hand(item) for item in one.in_hand],
        "pins": {"files": one.pins.files, "held_bytes": one.pins.held_bytes, "max_bytes": one.max_pin_bytes},
        "paused": _paused(one.paused) if one.paused else None,
        "reserve_bytes": one.reserve_bytes,
        "saves": _saves(saves) if saves else None,
        "disks": [_disk(disk) for disk in one.disks],
        "sinks": [
            {
                "address": sink.address,
                "behind": sink.behind,
                "behind_bytes": sink.behind_bytes,
                "behind_since": moment(sink.since_ns),
                "error": sink.error or None,
            }
            for sink in one.sinks
        ],
        "warnings": one.warnings,
    }


def _in_hand(item: InHand) -> dict[str, object]:
    return {
        "checkpoint_id": item.name,
        "state": item.state,
        "seen_at": moment(item.seen_ns),
        "since": moment(item.since_ns),
        "size_bytes": item.size_bytes,
        "is_pinned": item.is_pinned,
        "path": item.path,
    }


def _paused(paused: Paused) -> dict[str, object]:
    return {
        "since": moment(paused.since_ns),
        "path": paused.path,
        "free_bytes": paused.free_bytes,
        "kept_bytes": paused.kept_bytes,
        "wants_bytes": paused.wants_bytes,
    }


def _saves(saves: Saves) -> dict[str, object]:
    return {
        "interval_s": None if saves.interval_s is None else round(saves.interval_s, 3),
        "interval_steps": saves.interval_steps,
        "stored_bytes": saves.stored_bytes,
        "plain_bytes": saves.plain_bytes,
        "plain_share": round(saves.plain_share, 3),
        "left": saves.left,
    }


def _disk(disk: Disk) -> dict[str, object]:
    return {
        "holds": list(disk.holds),
        "path": disk.path,
        "total_bytes": disk.total_bytes,
        "free_bytes": disk.free_bytes,
        "save_bytes": disk.save_bytes,
        "saves_left": disk.saves_left,
        "full_in_s": None if disk.full_in_s is None else round(disk.full_in_s),
        "lasts": disk.lasts,
    }


# For people


def _lines(one: JobStatus) -> list[tuple[str, str]]:
    agent = "" if one.agent == "none" else f", capture agent {one.agent}"
    counts = ", ".join(f"{number:,} {state}" for state, number in one.counts.items())
    held = f"{count(one.pins.files, 'file')}, {size(one.pins.held_bytes)} that nothing else holds"
    held += "" if one.max_pin_bytes is None else f", of at most {size(one.max_pin_bytes)}"
    lines = [
        ("job", f"{one.job.id} ({one.job.status}{agent})"),
        ("newest", _newest(one)),
        ("at risk", "-" if one.at_risk_s is None else f"{duration(one.at_risk_s)} of training"),
        *(("in hand", _in_hand_words(item, one.at_ns)) for item in one.in_hand),
        ("checkpoints", f"{counts}; {one.plain:,} still as plain files"),
        ("paused", _paused_words(one.paused, one.at_ns) if one.paused else "-"),
        ("pins", held if one.pins.files else "-"),
        ("saves", _saves_words(one.saves) if one.saves else "-"),
        *(("disk", _disk_words(disk, one.saves)) for disk in one.disks),
        *(("sink", _sink_words(sink)) for sink in one.sinks),
    ]
    if not one.sinks:
        lines.append(("sinks", "none configured"))
    return [(name, value) for name, value in lines if value != "-"]


def _newest(one: JobStatus) -> str:
    newest = one.newest
    if newest is None:
        return f"no whole checkpoint yet, {duration(one.age_s)} after the start"
    total = f" of {one.saves.total_steps}" if one.saves and one.saves.total_steps else ""
    step = "" if newest.step is None else f", step {newest.step}{total}"
    stored_s = (one.at_ns - newest.committed_ns) / NS
    return f"{printable(newest.name)}{step}, finished {duration(one.age_s)} ago, stored {duration(stored_s)} ago"


def _in_hand_words(item: InHand, now_ns: int) -> str:
    words = {"writing": "being written", "settled": "waits to be stored", "storing": "being stored"}[item.state]
    pinned = "pinned" if item.is_pinned else "not pinned"
    since = duration(max(0.0, (now_ns - item.since_ns) / NS))
    return f"{printable(item.name)}: {words} for {since}, {size(item.size_bytes)}, {pinned}"


def _paused_words(paused: Paused, now_ns: int) -> str:
    since = duration(max(0.0, (now_ns - paused.since_ns) / NS))
    kept = "rows, logs and other running jobs" if paused.is_last else "the trainer's next save"
    wants = f", the next checkpoint takes {size(paused.wants_bytes)}" if paused.wants_bytes else ""
    return (
        f"storing waits for room for {since}: {printable(paused.path)} had {size(paused.free_bytes)} free, "
        f"{size(paused.kept_bytes)} are kept for {kept}{wants}"
    )


def _saves_words(saves: Saves) -> str:
    steps = f" ({saves.interval_steps} steps)" if saves.interval_steps else ""
    share = {0.0: "no", 1.0: "all"}.get(saves.plain_share, f"{saves.plain_share:.0%} of the")
    return (
        f"every {duration(saves.interval_s)}{steps}: {size(saves.stored_bytes)} in the store, "
        f"{size(saves.plain_bytes)} as plain files; the trainer leaves {share} plain files there"
    )


def _disk_words(disk: Disk, saves: Saves | None) -> str:
    words = f"{' and '.join(disk.holds)} in {printable(str(disk.path))}: {size(disk.free_bytes)} free of "
    words += size(disk.total_bytes)
    if disk.save_bytes is None:
        return words
    if disk.saves_left is None:
        return f"{words}, saves take no more of it"
    words += f", room for {count(disk.saves_left, 'more save')} ({duration(disk.full_in_s)})"
    left = saves.left if saves else None
    return words if left is None else f"{words}, {left:,} to come"


def _sink_words(sink: SinkState) -> str:
    how = f"behind by {count(sink.behind, 'checkpoint')}, {size(sink.behind_bytes)}" if sink.behind else "has all"
    why = f" ({printable(sink.error)})" if sink.error else ""
    return f"{printable(sink.address)}: {how}{why}"


def _in_hand_cell(items: Sequence[Mapping[str, object]]) -> str:
    return ", ".join(f"{plain(item['checkpoint_id'])} ({item['state']})" for item in items) or "-"


def _lasts_cell(disks: Sequence[Mapping[str, object]]) -> str:
    times = [disk["full_in_s"] for disk in disks if disk["full_in_s"] is not None]
    return duration(min(float(str(time)) for time in times)) if times else "-"


def _held_cell(pins: Row) -> str:
    return size(int(str(pins["held_bytes"])))


_COLUMNS = [
    Column("job_id", "JOB"),
    Column("status", "STATUS"),
    Column("agent", "AGENT"),
    Column("checkpoint_id", "NEWEST"),
    Column("step", "STEP", right=True),
    Column("at_risk_s", "AT RISK", duration, right=True),
    Column("in_hand", "IN HAND", _in_hand_cell, wrap=True),
    Column("pins", "PINNED", _held_cell, right=True),
    Column("disks", "DISK LASTS", _lasts_cell, right=True),
]
