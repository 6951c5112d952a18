"""Pushing now, in this process, and telling how it went: what `gpu_train.sinks` and the command line offer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from gpu_train.ref import Ref
from gpu_train.sinks.pusher import Work, lock_sink
from gpu_train.sinks.queue import LOGS, Item, Queue
from gpu_train.sinks.replication import chosen, want_missing
from gpu_train.sinks.setting import SinkSetting
from gpu_train.tables.checkpoint import VERIFIED
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import Incomplete, UsageError
from gpu_train_cas.progress import Meter, OnProgress


class Pushed(NamedTuple):
    """What came of pushing to one sink.

    Attributes:
        sink: the sink.
        done: what is there now. left: what is not, with the reasons; it stays queued.
        sent_bytes: what went over the line. plain_bytes: what those checkpoints take as plain files.
    """

    sink: SinkSetting
    done: tuple[Item, ...]
    left: tuple[Item, ...]
    sent_bytes: int
    plain_bytes: int


def push_checkpoints(
    job: str, sinks: Sequence[SinkSetting] | None = None, *, home: Path | str | None = None,
    progress: OnProgress | None = None,
) -> list[Pushed]:  # fmt: skip
    """Push the whole checkpoints of a job, or the one that a ref names, to the sinks that are set, or to `sinks`.

    What is there already is not sent again. A sink that fails is no error here: what it lacks is in `left`.

    Raises:
        NotFound, Incomplete: for a job or ref that cannot be used.
        UsageError: when no sink is set and none was given.
    """
    with Workspace.open(home, create=False) as workspace:
        return push_in(workspace, job, sinks, progress)


def push_logs(
    job: str, sinks: Sequence[SinkSetting] | None = None, *, home: Path | str | None = None,
    progress: OnProgress | None = None,
) -> list[Pushed]:  # fmt: skip
    """Push a job's logs to the sinks that are set for logs, or to `sinks`; see `push_checkpoints`."""
    with Workspace.open(home, create=False) as workspace:
        return push_logs_in(workspace, job, sinks, progress)


def push_in(
    workspace: Workspace, job: str, sinks: Sequence[SinkSetting] | None = None, progress: OnProgress | None = None
) -> list[Pushed]:
    """`push_checkpoints` in an open home."""
    queue = Queue(workspace.store.registry)
    reference = Ref.parse(job)
    found = workspace.jobs.find(reference.job)
    only: int | None = None
    if "@" in job:
        checkpoint, path = workspace.checkpoints.resolve(job)
        if path:
            raise UsageError(f"{job} names a path inside a checkpoint; a whole one is pushed: {checkpoint.ref}")
        if checkpoint.state != VERIFIED:
            raise Incomplete(f"{checkpoint.ref} is {checkpoint.state}; only whole checkpoints are pushed")
        only = checkpoint.seq

    def wanted(setting: SinkSetting) -> list[Item]:
        if only is None:
            want_missing(workspace, setting, [found.id])
        elif setting.address not in checkpoint.pushed:
            queue.want(setting, found.id, [only])
        waiting = queue.waiting(setting.address, found.id)
        return [item for item in waiting if item.seq != LOGS and only in (None, item.seq)]

    return _push(workspace, _sinks(workspace, sinks, "checkpoints"), wanted, progress)


def push_logs_in(
    workspace: Workspace, job: str, sinks: Sequence[SinkSetting] | None = None, progress: OnProgress | None = None
) -> list[Pushed]:
    """`push_logs` in an open home."""
    queue = Queue(workspace.store.registry)
    found = workspace.jobs.find(job)

    def wanted(setting: SinkSetting) -> list[Item]:
        queue.want(setting, found.id, [LOGS])
        return [item for item in queue.waiting(setting.address, found.id) if item.seq == LOGS]

    return _push(workspace, _sinks(workspace, sinks, "logs"), wanted, progress)


def _sinks(workspace: Workspace, sinks: Sequence[SinkSetting] | None, what: str) -> Sequence[SinkSetting]:
    found = chosen(workspace.config, what) if sinks is None else sinks
    if not found:
        raise UsageError(f"no sink is set for {what}; name one with --sink, or set [sinks] {what} in gpu-train.toml")
    return found


def _push(
    workspace: Workspace, sinks: Sequence[SinkSetting], wanted: Callable[[SinkSetting], list[Item]],
    progress: OnProgress | None,
) -> list[Pushed]:  # fmt: skip
    made = []
    for setting in sinks:
        with lock_sink(workspace.home, setting.address, wait=True):
            items = wanted(setting)
            sizes = _sizes(workspace, items)
            meter = Meter(f"pushing to {setting.called}", progress)
            # What goes over the line can be much less than that; it only ever ends sooner.
            meter.progress.total_bytes = sum(sizes.values()) or None
            done: list[Item] = []
            sent = 0

            def on_bytes(count: int, meter: Meter = meter) -> None:
                meter.progress.done_bytes += count
                meter.tick()

            def on_pushed(items: Sequence[Item], sent_bytes: int, done: list[Item] = done) -> None:
                nonlocal sent
                done += items
                sent += sent_bytes

            left = Work(workspace, setting, on_bytes).do(items, on_pushed)
            meter.tick(last=True)
        queued = {(i.job_id, i.seq): i for i in Queue(workspace.store.registry).waiting(setting.address)}
        plain = sum(sizes[item.job_id, item.seq] for item in done)
        still = tuple(queued.get((item.job_id, item.seq), item) for item in left)
        made.append(Pushed(setting, tuple(done), still, sent, plain))
    return made


def _sizes(workspace: Workspace, items: Sequence[Item]) -> dict[tuple[str, int], int]:
    with workspace.store.registry.read() as txn:
        rows = {
            (item.job_id, item.seq): workspace.checkpoints.get_in(txn, item.job_id, item.seq) for item in items
        }  # fmt: skip
    return {key: 0 if row is None else row.size_bytes for key, row in rows.items()}
