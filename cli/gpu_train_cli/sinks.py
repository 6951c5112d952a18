"""`gpu-train sinks`: what is replicated where, and how far that is; `pull` and `clone`: getting it back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_train_cas.errors import NotFound, UsageError
from gpu_train_cli.checkpoints import checkpoint_row, ref_of
from gpu_train_cli.command import Command, Group
from gpu_train_cli.confirm import confirm, yes_option
from gpu_train_cli.duration import DURATION
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Details, Listing, Output, note, reading
from gpu_train_cli.progress import progress
from gpu_train_cli.text import count, local, moment, size

if TYPE_CHECKING:
    from gpu_train import Workspace
    from gpu_train.sinks.pushing import Pushed
    from gpu_train.sinks.setting import SinkSetting

NO_SINKS = 'no sink is set: put `[sinks]` with `checkpoints = ["/mnt/nas", "s3://bucket/prefix"]` into gpu-train.toml'
FAILED = 5

sink_option = click.option(
    "--sink", "names", metavar="SINK", multiple=True, help="Only this one: a sink's name or address. Repeatable."
)


@click.group("sinks", cls=Group, default="status")
def sinks() -> None:
    """Replicate checkpoints and logs to other places.

    Places are folders, S3, GCS and Hugging Face. What is set under [sinks] in gpu-train.toml is pushed while a job
    runs, as soon as a checkpoint is stored.
    """


@sinks.command("list")
@reading
@pass_invocation
def list_sinks(invocation: Invocation, output: Output) -> None:
    """List the sinks that are set."""
    with invocation.workspace() as workspace:
        found = _set(workspace)
    rows = [
        {
            "name": setting.name or None,
            "address": setting.address,
            "type": setting.type,
            "layout": setting.layout if "checkpoints" in what else None,
            "for": what,
            "limit_bytes_s": setting.limit,
        }
        for setting, what in found
    ]
    columns = [
        Column("name", "NAME"),
        Column("address", "ADDRESS", wrap=True),
        Column("type", "TYPE"),
        Column("layout", "LAYOUT"),
        Column("for", "FOR", ", ".join),
    ]
    output.listing(Listing("sinks", columns, rows, lambda row: str(row["address"]), NO_SINKS))


@sinks.command("status", exits=[FAILED])
@reading
@pass_invocation
def status(invocation: Invocation, output: Output) -> None:
    """Show what waits to be pushed to each sink, and why; exit code 5 when something has failed."""
    from gpu_train.sinks.queue import LOGS, Item, Queue  # noqa: PLC0415

    with invocation.workspace() as workspace:
        queue = Queue(workspace.store.registry)
        waiting: dict[str, list[Item]] = defaultdict(list)
        for item in queue.waiting():
            waiting[item.address].append(item)
        known = {setting.address: setting for setting, _ in _set(workspace)}
        known = queue.settings() | known
        held: dict[str, int] = defaultdict(int)
        for checkpoint in workspace.checkpoints.list():
            for address in checkpoint.pushed:
                held[address] += 1
        rows = []
        for address in sorted(known.keys() | waiting.keys() | held.keys()):
            items = waiting[address]
            checkpoints = [item for item in items if item.seq != LOGS]
            bytes_behind = _bytes(workspace, [(item.job_id, item.seq) for item in checkpoints])
            failed = max((item for item in items if item.error), key=lambda item: item.error_ns, default=None)
            rows.append({
                "name": known[address].name or None if address in known else None,
                "address": address,
                "held": held[address],
                "behind": len(checkpoints),
                "behind_bytes": bytes_behind,
                "behind_since": moment(min((item.queued_ns for item in checkpoints), default=None)),
                "logs_behind": len(items) - len(checkpoints),
                "attempts": max((item.attempts for item in items), default=0),
                "error": failed.error if failed else None,
                "failed_at": moment(failed.error_ns) if failed else None,
                "next_at": moment(min(item.next_ns for item in items)) if failed else None,
            })  # fmt: skip
    columns = [
        Column("address", "SINK", wrap=True),
        Column("held", "HOLDS", right=True),
        Column("behind", "BEHIND", right=True),
        Column("behind_bytes", "BYTES", size, right=True),
        Column("behind_since", "SINCE", local, wrap=True),
        Column("error", "ERROR", wrap=True),
    ]
    output.listing(Listing("sinks", columns, rows, lambda row: str(row["address"]), NO_SINKS))
    if any(row["error"] for row in rows):
        click.get_current_context().exit(FAILED)


@sinks.command("push", exits=[3, 4, FAILED])
@click.argument("job", metavar="JOB|REF")
@sink_option
@click.option("--logs/--no-logs", default=True, help="Push the job's logs as well, where a sink is set for them.")
@reading
@pass_invocation
def push(invocation: Invocation, job: str, names: tuple[str, ...], logs: bool, output: Output) -> None:
    """Push the whole checkpoints of JOB, or the one that REF names, now.

    What is there already is not sent again. Exit code 5 when a sink failed; what it lacks stays queued.
    """
    _push(invocation, job, names, output, logs=logs and "@" not in job)


@click.command("push", cls=Command, exits=[3, 4, FAILED])
@click.argument("ref")
@sink_option
@reading
@pass_invocation
def push_checkpoint(invocation: Invocation, ref: str, names: tuple[str, ...], output: Output) -> None:
    """Push the checkpoint REF to the sinks that are set, or to --sink, now; exit code 5 when one failed."""
    _push(invocation, ref if "@" in ref else f"{ref}@latest", names, output, logs=False)


@sinks.command("reset", exits=[3])
@click.argument("sink")
@yes_option
@pass_invocation
def reset(invocation: Invocation, sink: str, yes: bool) -> None:
    """Forget what SINK holds, for one that was emptied or lost: all is pushed there again when it is asked for.

    Nothing is deleted there or here.
    """
    from gpu_train.sinks.opening import find_setting  # noqa: PLC0415
    from gpu_train.sinks.reset import reset as forget  # noqa: PLC0415

    with invocation.workspace(write=True) as workspace:
        setting = find_setting(workspace, sink)
        confirm(f"Forget what {setting.called} holds?", yes=yes)
        number = forget(workspace, setting)
    note(f"{count(number, 'checkpoint')} no longer count as held by {setting.called}")


@sinks.command("rm", exits=[3, FAILED])
@click.argument("sink")
@click.argument("refs", metavar="REF|JOB...", nargs=-1, required=True)
@yes_option
@pass_invocation
def remove(invocation: Invocation, sink: str, refs: tuple[str, ...], yes: bool) -> None:
    """Take checkpoints out of a sink.

    Their plain files are deleted there; of packs, what nothing else needs goes with `sinks gc`. What is here stays.
    """
    from gpu_train.sinks.choice import choose  # noqa: PLC0415
    from gpu_train.sinks.opening import find_setting, open_sink  # noqa: PLC0415
    from gpu_train.sinks.pusher import lock_sink  # noqa: PLC0415
    from gpu_train.sinks.sweep import take_out  # noqa: PLC0415

    with invocation.workspace(write=True) as workspace:
        setting = find_setting(workspace, sink)
        with lock_sink(workspace.home, setting.address, wait=True), open_sink(workspace, setting) as opened:
            opened.sync()
            records = choose(opened.records(), refs)
            confirm(f"Take {count(len(records), 'checkpoint')} out of {setting.called}?", yes=yes)
            files = take_out(workspace, opened, records)
    note(f"{count(len(records), 'checkpoint')} taken out of {setting.called}, {count(files, 'plain file')} deleted")


@sinks.command("gc", exits=[3, 4, FAILED])
@click.argument("sink")
@click.option("-n", "--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@click.option(
    "--grace", type=DURATION, default="7d", show_default=True, metavar="T",
    help="Delete what has been dead for T; no push may take longer.",
)  # fmt: skip
@reading
@pass_invocation
def gc(invocation: Invocation, sink: str, dry_run: bool, grace: float, output: Output) -> None:
    """Free the room in a sink that nothing there needs any more.

    Packs that no checkpoint of any home there needs are told dead, and deleted when they have been dead for --grace;
    run it again then.
    """
    from gpu_train.sinks.opening import find_setting, open_sink  # noqa: PLC0415
    from gpu_train.sinks.pusher import lock_sink  # noqa: PLC0415
    from gpu_train.sinks.sweep import sweep  # noqa: PLC0415

    with invocation.workspace(write=True) as workspace:
        setting = find_setting(workspace, sink)
        with lock_sink(workspace.home, setting.address, wait=True), open_sink(workspace, setting) as opened:
            swept = sweep(workspace, opened, grace_s=grace, dry_run=dry_run)
    lines = [
        ("sink", setting.called),
        ("deleted", f"{count(swept.deleted, 'pack')}, {size(swept.deleted_bytes)}"),
        ("dead now", f"{count(swept.dead, 'pack')}, {size(swept.dead_bytes)}; {size(swept.moved_bytes)} sent anew"),
        ("waiting", size(swept.waiting_bytes)),
        ("alive again", count(swept.alive, "pack")),
    ]
    output.details(Details({"sink": setting.address, "dry_run": dry_run, **swept._asdict()}, setting.address, lines))


@click.command("pull", cls=Command, exits=[3, 4, FAILED])
@click.argument("sink")
@click.argument("refs", metavar="[REF|JOB]...", nargs=-1)
@click.option("-n", "--dry-run", is_flag=True, help="Bring nothing; list what would come.")
@reading
@pass_invocation
def pull(invocation: Invocation, sink: str, refs: tuple[str, ...], dry_run: bool, output: Output) -> None:
    """Bring checkpoints back from a sink.

    Those that are named come, or all. SINK is a name or an address, which need not be set anywhere. A REF is
    JOB@NAME, JOB@latest or JOB@step:N as the sink knows them. What this home has of blocks is not fetched.
    """
    from gpu_train.sinks.choice import choose  # noqa: PLC0415
    from gpu_train.sinks.opening import find_setting, open_sink  # noqa: PLC0415
    from gpu_train.sinks.pull import pull as bring  # noqa: PLC0415

    with invocation.workspace(write=not dry_run) as workspace:
        setting = find_setting(workspace, sink)
        with open_sink(workspace, setting) as opened:
            opened.sync()
            records = choose(opened.records(), refs)
            if dry_run:
                rows = [
                    {
                        "job_id": r.job, "checkpoint_id": r.name, "step": r.step, "size_bytes": r.size_bytes,
                        "layout": r.layout, "created_at": moment(r.created_ns),
                    }
                    for r in records
                ]  # fmt: skip
                columns = [
                    Column("job_id", "JOB"), Column("checkpoint_id", "CHECKPOINT"), Column("step", "STEP", right=True),
                    Column("size_bytes", "SIZE", size, right=True), Column("layout", "LAYOUT"),
                ]  # fmt: skip
                output.listing(Listing("checkpoints", columns, rows, ref_of, f"{setting.called} holds none"))
                return
            with progress() as tell:
                pulled = bring(workspace, opened, records, tell)
    there = [checkpoint_row(c) for c in pulled.checkpoints]
    columns = [
        Column("job_id", "JOB"), Column("checkpoint_id", "CHECKPOINT"), Column("step", "STEP", right=True),
        Column("size_bytes", "SIZE", size, right=True),
    ]  # fmt: skip
    head = {"received_bytes": pulled.received_bytes, "new": len(pulled.new)}
    output.listing(Listing("checkpoints", columns, there, ref_of, f"{setting.called} holds none", head))
    if output.for_people and there:
        old = len(pulled.checkpoints) - len(pulled.new)
        known = f", {old:,} were here" if old else ""
        note(f"{count(len(pulled.new), 'checkpoint')} came, {size(pulled.received_bytes)} over the line{known}")


@click.command("clone", cls=Command, exits=[3, 4, FAILED])
@click.argument("sink")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--lazy", is_flag=True, help="Leave the checkpoints' bytes in the sink; they come when they are read.")
@pass_invocation
def clone(invocation: Invocation, sink: str, folder: Path, lazy: bool) -> None:
    """Make a new home of what a sink holds.

    All jobs, checkpoints and code versions of SINK are in FOLDER then. Use it with --home FOLDER or
    GPU_TRAIN_HOME=FOLDER.
    """
    import gpu_train  # noqa: PLC0415  the home of the invocation is not the one that is made
    from gpu_train.sinks.opening import find_setting, open_sink  # noqa: PLC0415
    from gpu_train.sinks.pull import pull as bring  # noqa: PLC0415

    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; name a new folder")
    with invocation.workspace() as here:
        setting = find_setting(here, sink)
    with gpu_train.Workspace.open(folder) as workspace, open_sink(workspace, setting) as opened, progress() as tell:
        opened.sync()
        records = opened.records()
        if not records:
            raise NotFound(f"{setting.called} holds no checkpoint")
        pulled = bring(workspace, opened, records, tell, lazy=lazy)
    note(
        f"{count(len(pulled.new), 'checkpoint')} of {count(len({c.job_id for c in pulled.new}), 'job')} in {folder}, "
        f"{size(pulled.received_bytes)} over the line"
    )


def _push(invocation: Invocation, job: str, names: Sequence[str], output: Output, *, logs: bool) -> None:
    from gpu_train.sinks.opening import find_setting  # noqa: PLC0415
    from gpu_train.sinks.pushing import push_in, push_logs_in  # noqa: PLC0415
    from gpu_train.sinks.replication import chosen  # noqa: PLC0415

    with invocation.workspace(write=True) as workspace:
        wanted = [find_setting(workspace, name) for name in names] or None
        with progress() as tell:
            made = push_in(workspace, job, wanted, tell)
            if logs and chosen(workspace.config, "logs") and not names:
                made += push_logs_in(workspace, job, None, tell)
        _show(workspace, made, output)


def _show(workspace: Workspace, made: Sequence[Pushed], output: Output) -> None:
    from gpu_train.sinks.queue import LOGS  # noqa: PLC0415

    rows = []
    for one in made:
        for item in (*one.done, *one.left):
            with workspace.store.registry.read() as txn:
                row = workspace.checkpoints.get_in(txn, item.job_id, item.seq)
            rows.append({
                "job_id": item.job_id,
                "checkpoint_id": None if item.seq == LOGS else row.name if row else f"number {item.seq}",
                "what": "logs" if item.seq == LOGS else "checkpoint",
                "sink": one.sink.address,
                "pushed": item in one.done,
                "error": None if item in one.done else item.error,
            })  # fmt: skip
    columns = [
        Column("job_id", "JOB"),
        Column("checkpoint_id", "CHECKPOINT"),
        Column("sink", "SINK", wrap=True),
        Column("pushed", "PUSHED"),
        Column("error", "ERROR", wrap=True),
    ]
    empty = "all of it is there already"
    head = {"sent_bytes": sum(one.sent_bytes for one in made), "plain_bytes": sum(one.plain_bytes for one in made)}
    output.listing(
        Listing("pushes", columns, rows, lambda row: f"{row['job_id']}@{row['checkpoint_id'] or 'logs'}", empty, head)
    )
    if output.for_people:
        for one in made:
            if one.done:
                note(
                    f"{count(len(one.done), 'push').replace('pushs', 'pushes')} to {one.sink.called}: "
                    f"{size(one.sent_bytes)} over the line for {size(one.plain_bytes)} of plain files"
                )
    if any(one.left for one in made):
        click.get_current_context().exit(FAILED)


def _set(workspace: Workspace) -> list[tuple[SinkSetting, list[str]]]:
    """The sinks that are set, and for what."""
    found: dict[str, tuple[SinkSetting, list[str]]] = {}
    for what in ("checkpoints", "logs"):
        for setting in getattr(workspace.config.sinks, what):
            found.setdefault(setting.address, (setting, []))[1].append(what)
    return list(found.values())


def _bytes(workspace: Workspace, items: Sequence[tuple[str, int]]) -> int:
    with workspace.store.registry.read() as txn:
        rows = [workspace.checkpoints.get_in(txn, job_id, seq) for job_id, seq in items]
    return sum(row.size_bytes for row in rows if row is not None)
