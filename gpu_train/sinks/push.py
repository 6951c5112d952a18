"""Sending checkpoints to a sink: what it lacks of them, read back and compared, and only then the word that they are
there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from gpu_train.sinks.journal import Entry, SentPack, SentRecord
from gpu_train.sinks.key import checkpoint_prefix, escaped_path
from gpu_train.sinks.objects.content import Lazy
from gpu_train.sinks.objects.objectstore import OnBytes, Put
from gpu_train.sinks.objects.paced import Pace
from gpu_train.sinks.setting import FILES
from gpu_train.sinks.shipment import Shipment
from gpu_train.sinks.sink import Sink
from gpu_train.tables import Checkpoint
from gpu_train.tables.row import numbered_key
from gpu_train.workspace import Workspace
from gpu_train_cas.batch import batches
from gpu_train_cas.closure import Closure, Frame
from gpu_train_cas.digest import Digest, Kind
from gpu_train_cas.errors import NotFound
from gpu_train_cas.reader import Reader
from gpu_train_cas.transaction import row_frame_key
from gpu_train_cas.tree import Entry as TreeEntry
from gpu_train_cas.tree import EntryKind

PLAIN_BATCH = 256
"""Plain files that are handed to the sink at a time."""


class Pushed(NamedTuple):
    """What came of pushing checkpoints.

    Attributes:
        checkpoints: those that are there now, and whose rows say so.
        skipped: those that were removed, or got another content, while they were sent.
        sent_bytes: what went over the line.
        plain_bytes: what they take as plain files.
    """

    checkpoints: tuple[Checkpoint, ...]
    skipped: tuple[Checkpoint, ...]
    sent_bytes: int
    plain_bytes: int


def push(
    workspace: Workspace, sink: Sink, checkpoints: Sequence[Checkpoint], *, again: bool = False,
    pace: Pace | None = None, on_bytes: OnBytes = lambda count: None,
) -> Pushed:  # fmt: skip
    """Send checkpoints that have content; when it returns all are there, proven, and their rows say so.

    `again` says that an attempt for them was broken off, so that some of their files may be there.

    Raises:
        SinkFailed: when the sink failed; what was sent is found by the next attempt.
        Damaged, NotFound: when the home itself no longer has all of a checkpoint.
        StorageFull: when the home has no room for a pack.
    """
    sent_bytes = 0

    def count(size: int) -> None:
        nonlocal sent_bytes
        sent_bytes += size
        on_bytes(size)

    store = workspace.store
    with ExitStack() as stack:
        alive = [c for c in checkpoints if c.record is not None and _hold(stack, workspace, c)]
        records = []
        sink.sync()
        closure = stack.enter_context(Closure([store.packs, *store.elsewhere()]))
        shipment = stack.enter_context(Shipment(store.folders, sink.objects, pace, count))
        there = {sent.record for sent in sink.records() if sent.layout == sink.setting.layout}
        for checkpoint in (c for c in alive if c.record not in there):  # an attempt may have got as far as the journal
            records.append(_send(workspace, sink, closure, shipment, checkpoint, again, count))
        shipped = shipment.finish()
        if records:
            packs = tuple(SentPack(p.name, p.size_bytes, len(p.entries)) for p in shipped)
            sink.tell(Entry(packs, tuple(records)), {p.name: p.entries for p in shipped})
        noted = _note(workspace, sink, alive)
    skipped = tuple(c for c in checkpoints if (c.job_id, c.seq) not in {(n.job_id, n.seq) for n in noted})
    return Pushed(tuple(noted), skipped, sent_bytes, sum(c.size_bytes for c in noted))


def _hold(stack: ExitStack, workspace: Workspace, checkpoint: Checkpoint) -> bool:
    """Keep a checkpoint from gc; whether it is there."""
    assert checkpoint.record is not None
    try:
        stack.enter_context(workspace.store.holding(checkpoint.record, "push"))
    except NotFound:
        return False
    return True


def _send(
    workspace: Workspace, sink: Sink, closure: Closure, shipment: Shipment, checkpoint: Checkpoint, again: bool,
    count: OnBytes,
) -> SentRecord:  # fmt: skip
    assert checkpoint.record is not None
    is_plain = sink.setting.layout == FILES

    def has(digest: Digest, kind: Kind) -> bool:
        return shipment.holds(digest) or sink.in_pack(digest)

    # What the plain layout sent of trees stands over blocks that are in no pack.
    is_closed = not is_plain and not sink.has_plain
    code = _code_of(workspace, checkpoint)
    for frame in closure.needed([checkpoint.record], has, blocks=not is_plain, is_closed=is_closed):
        shipment.add(frame)
    for frame in closure.needed(code, has, is_closed=is_closed):
        shipment.add(frame)
    rows = []
    for frame in _rows(workspace, closure, checkpoint):
        rows.append(frame.header.digest)
        if not has(frame.header.digest, Kind.BLOCK):
            shipment.add(frame)
    if is_plain:
        root = closure.reader.record(checkpoint.record).root
        prefix = checkpoint_prefix(checkpoint.job_id, checkpoint.name)
        for batch in batches(_files(workspace.store.reader, root), PLAIN_BATCH):
            sink.objects.put(
                [
                    Put(prefix + escaped_path(path), shipment.paced(content), mtime_ns=mtime_ns, again=again)
                    for path, content, mtime_ns in batch
                ],
                count,
            )
    return SentRecord(
        checkpoint.record, checkpoint.job_id, checkpoint.name, sink.setting.layout, "checkpoint", checkpoint.step,
        checkpoint.size_bytes, checkpoint.files, checkpoint.created_ns, tuple(rows), tuple(code),
    )  # fmt: skip


def _files(reader: Reader, root: TreeEntry) -> Iterator[tuple[bytes, Lazy, int]]:
    """The plain files below a directory: path, content, time of modification."""
    for path, entry in reader.walk(root):
        if entry.kind is EntryKind.FILE:
            file = reader.open(entry)
            yield path, Lazy(file.size_bytes, file.pread), entry.mtime_ns


def _code_of(workspace: Workspace, checkpoint: Checkpoint) -> list[Digest]:
    """The record of the code that the checkpoint's job ran, where it is still there."""
    job = workspace.jobs.get(checkpoint.job_id)
    if job is None or job.code is None:
        return []
    try:
        return [workspace.code.get(job.code).record]
    except NotFound:
        return []


def _rows(workspace: Workspace, closure: Closure, checkpoint: Checkpoint) -> Iterator[Frame]:
    """The frames that hold the present rows of the job and the checkpoint."""
    store = workspace.store
    keys = (
        row_frame_key(workspace.jobs.table.name, checkpoint.job_id.encode(errors="surrogateescape")),
        row_frame_key(workspace.checkpoints.table.name, numbered_key(checkpoint.job_id, checkpoint.seq)),
    )
    for key in keys:
        with store.registry.read() as txn:
            digest = store.tables.row_frames.get_bytes(txn, key)
        if digest is not None:
            try:
                yield closure.frame(Digest(digest), Kind.ROW)
            except NotFound:  # it was written anew, and gc took the old one
                continue


def _note(workspace: Workspace, sink: Sink, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Enter in the rows that the sink holds them; those whose content is still the one that was sent."""
    noted = []
    with workspace.store.transaction("push") as txn:
        for sent in checkpoints:
            row = workspace.checkpoints.get_in(txn.txn, sent.job_id, sent.seq)
            if row is not None and row.record == sent.record:
                row = row._replace(pushed={**row.pushed, sink.setting.address: time.time_ns()})
                workspace.checkpoints.put_in(txn, row)
                noted.append(row)
    return noted
