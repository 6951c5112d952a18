"""Getting checkpoints back from a sink into a home: records with all that they need, and the rows that tell of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from gpu_train.capture.storing import next_version
from gpu_train.sinks.journal import SentRecord
from gpu_train.sinks.present import Present
from gpu_train.sinks.queue import Queue
from gpu_train.sinks.sink import Sink
from gpu_train.tables import Checkpoint, Job
from gpu_train.tables.checkpoint import VERIFIED
from gpu_train.workspace import Workspace
from gpu_train_cas.closure import Closure, Frame
from gpu_train_cas.digest import Digest, Kind
from gpu_train_cas.errors import UNREADABLE, Damaged
from gpu_train_cas.progress import Meter, OnProgress
from gpu_train_cas.record import Record
from gpu_train_cas.transaction import Transaction, decode_row_frame

ELSEWHERE = "it was running on another machine when it was last pushed"
"""Why a job counts as lost that may still run there."""


class Pulled(NamedTuple):
    """What came of it: the checkpoints that are in the home now, of these the new ones, and the bytes that came."""

    checkpoints: tuple[Checkpoint, ...]
    new: tuple[Checkpoint, ...]
    received_bytes: int


def pull(
    workspace: Workspace, sink: Sink, records: Sequence[SentRecord], progress: OnProgress | None = None, *,
    lazy: bool = False,
) -> Pulled:  # fmt: skip
    """Bring records into the home, one after another; each is there, whole, or not at all.

    Rows that are there stay as they are; what the home has of blocks is not fetched. `lazy` leaves the blocks of
    checkpoints in the sink, from which they are read when somebody wants them.

    Raises:
        SinkFailed: when the sink failed.
        NotFound, Damaged: when the sink does not have all of one, or not whole.
        StorageFull: when the home has no room.
    """
    meter = Meter("pulling", progress)
    meter.progress.total_bytes = sum(record.size_bytes for record in records)
    Queue(workspace.store.registry).know(sink.setting)
    store = workspace.store
    done: list[Checkpoint] = []
    new: list[Checkpoint] = []
    received = 0
    with Closure([store.packs, sink.blocks]) as closure:
        for sent in records:
            meter.progress.path = f"{sent.job}@{sent.name}"
            present = Present(workspace)

            def frames(sent: SentRecord = sent, present: Present = present) -> Iterator[Frame]:
                nonlocal received
                for frame in chain(
                    closure.needed(sent.also, present, is_closed=False),
                    closure.needed([sent.record], present, is_closed=False, blocks=not lazy),
                ):
                    received += frame.header.stored_bytes
                    meter.tick()
                    yield frame

            rows = [row for digest in sent.rows if (row := _row(closure, digest)) is not None]

            def enter(txn: Transaction, sent: SentRecord = sent, rows: Sequence[tuple[str, Any]] = rows) -> None:
                for digest in sent.also:
                    workspace.code.enter_in(txn, closure.reader.record(digest))
                checkpoint, is_new = _enter(workspace, txn, sink, sent, closure.reader.record(sent.record), dict(rows))
                done.append(checkpoint)
                new.extend([checkpoint] if is_new else [])

            store.adopt(frames(), enter, present.relied, purpose="pull")
            meter.progress.done_bytes += sent.size_bytes
            meter.tick()
    meter.tick(last=True)
    return Pulled(tuple(done), tuple(new), received)


def _row(closure: Closure, digest: Digest) -> tuple[str, Mapping[str, Any]] | None:
    """A row that a sink holds, and its table; None when it cannot be read: the checkpoint can do without."""
    try:
        closure.frame(digest, Kind.ROW)
        frame = decode_row_frame(closure.reader.object(digest, Kind.ROW))
    except UNREADABLE:
        return None
    return None if frame.row is None else (frame.table, frame.row)


def _enter(
    workspace: Workspace, txn: Transaction, sink: Sink, sent: SentRecord, record: Record,
    rows: Mapping[str, Mapping[str, Any]],
) -> tuple[Checkpoint, bool]:  # fmt: skip
    """Enter a checkpoint's record and row; the row, and whether the home had none of it."""
    checkpoints = workspace.checkpoints
    txn.put_record(record)
    _enter_job(workspace, txn, sent, rows.get(workspace.jobs.table.name))
    pushed = {sink.setting.address: time.time_ns()}
    wanted = _checkpoint(sent, record, rows.get(checkpoints.table.name))
    known = list(checkpoints.newest_versions_in(txn.txn, sent.job, wanted.base_name))
    for row in known:
        if row.record == sent.record:
            if row.removed_ns is not None:
                row = checkpoints.bring_back_in(txn, row)
            row = row._replace(pushed={**row.pushed, **pushed})
            checkpoints.put_in(txn, row)
            return row, False
    if any(row.name == wanted.name for row in known):
        wanted = wanted._replace(name=next_version(wanted.base_name, known[0]))
    return checkpoints.add_in(txn, wanted._replace(pushed=pushed)), True


def _enter_job(workspace: Workspace, txn: Transaction, sent: SentRecord, row: Mapping[str, Any] | None) -> None:
    """Enter the job of a checkpoint, unless the home knows more of it."""
    known = workspace.jobs.get(sent.job, txn.txn)
    if known is not None and known.reason != ELSEWHERE:
        return
    if row is None:
        job = Job(sent.job, sent.job.rpartition("-")[0] or sent.job, status="lost", created_ns=sent.created_ns)
    else:
        job = Job.from_row(row)
    if job.id != sent.job:
        raise Damaged(f"{sent.job}@{sent.name}: its sink has another job's row for it")
    if job.is_live:
        job = job._replace(status="lost", reason=ELSEWHERE)
    workspace.jobs.put_in(txn, job._replace(pid=None, runner_pid=None, agent_pid=None, removed_ns=None, purged=False))


def _checkpoint(sent: SentRecord, record: Record, row: Mapping[str, Any] | None) -> Checkpoint:
    """The row of a checkpoint as it is entered here: without what meant files of another machine."""
    if row is not None:
        found = Checkpoint.from_row(row)
        if (found.job_id, found.record) == (sent.job, sent.record):
            return found._replace(fingerprint="", removed_ns=None, removed_by="", removed_why="")
    meta = record.meta
    return Checkpoint(
        sent.job, record.name, step=sent.step, state=str(meta.get("state", VERIFIED)), proof=str(meta.get("proof", "")),
        created_ns=record.created_ns, committed_ns=int(meta.get("committed_ns", record.created_ns)),
        size_bytes=sent.size_bytes, files=sent.files, metrics=dict(meta.get("metrics", {})),
        tags=dict(meta.get("tags", {})), record=sent.record, identity=record.root.identity,
        source=str(meta.get("source", "")),
    )  # fmt: skip
