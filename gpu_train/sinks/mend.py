"""Mending a home from a sink: what a check found damaged or missing is fetched again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpu_train.sinks.present import Present
from gpu_train.sinks.sink import Sink
from gpu_train.workspace import Workspace
from gpu_train_cas.check import VerifyReport
from gpu_train_cas.closure import Closure, Frame
from gpu_train_cas.digest import Digest, Kind
from gpu_train_cas.errors import Damaged, NotFound
from gpu_train_cas.pack import pack_path
from gpu_train_cas.progress import Meter, OnProgress
from gpu_train_cas.transaction import Transaction


class Mended(NamedTuple):
    """What came of it.

    Attributes:
        frames: blocks and objects that are whole again.
        received_bytes: what came over the line for them.
        rows: rows of which the packs hold a copy again; the registry had them all the time.
        left: records that the sink cannot mend, with the reason.
    """

    frames: int
    received_bytes: int
    rows: int
    left: dict[Digest, str]


def mend(workspace: Workspace, sink: Sink, report: VerifyReport, progress: OnProgress | None = None) -> Mended:
    """Fetch from a sink what a check of the home found damaged or missing, record by record.

    Raises:
        SinkFailed: when the sink failed; what was mended until then stays.
        StorageFull: when the home has no room.
    """
    sink.sync()
    store = workspace.store
    hit = list(dict.fromkeys(hit.record for hit in report.hits))
    meter = Meter("mending", progress)
    meter.progress.files_total = len(hit)
    frames = received = 0
    left: dict[Digest, str] = {}
    with Closure([store.packs, sink.blocks]) as closure:
        for record in hit:
            present = Present(workspace)

            def fetched(record: Digest = record, present: Present = present) -> Iterator[Frame]:
                nonlocal frames, received
                for frame in closure.needed([record], present, is_closed=False):
                    frames += 1
                    received += frame.header.stored_bytes
                    meter.progress.done_bytes = received
                    meter.tick()
                    yield frame

            try:
                store.adopt(fetched(), lambda txn: None, present.relied, purpose="mend")
            except (Damaged, NotFound) as e:
                left[record] = str(e)
            meter.progress.files_done += 1
    meter.tick(last=True)
    rows = _rewrite_rows(workspace, report)
    _forget_lost_packs(workspace, report)
    return Mended(frames, received, rows, left)


def _rewrite_rows(workspace: Workspace, report: VerifyReport) -> int:
    """Write the durable rows anew of which the copy in the packs is lost, and forget lost copies of older states.

    Returns:
        How many were written.
    """
    store = workspace.store
    bad = {frame.digest for frame in report.frames_damaged} | report.missing.keys()
    with store.registry.read() as txn:
        lost = [(key, Digest(frame)) for key, frame in store.tables.row_frames.scan_bytes(txn) if frame in bad]

    def rewrite(txn: Transaction) -> None:
        for place, _ in lost:
            name, _, key = place.partition(b"\0")
            table = store.registry.table(name.decode())
            row = txn.get(table, key)
            if row is None:
                txn.delete(table, key, durable=True)
            else:
                txn.put(table, key, row, durable=True)
        for frame in (*(frame for _, frame in lost), *older):
            store.tables.index.damaged.delete(txn.txn, frame)
            store.tables.index.bury(txn.txn, frame)

    older = {frame.digest for frame in report.frames_damaged if frame.kind is Kind.ROW} - {frame for _, frame in lost}
    if lost or older:
        with store.transaction("mend") as transaction:
            rewrite(transaction)
    return len(lost)


def _forget_lost_packs(workspace: Workspace, report: VerifyReport) -> None:
    """Forget packs whose files are gone, and of which nothing is needed any more."""
    store = workspace.store
    index = store.tables.index
    gone = [pack.pack for pack in report.packs_damaged if not pack_path(store.folders.packs, pack.pack).exists()]
    if not gone:
        return
    with store.registry.write() as txn:
        numbers = {number for name in gone if (number := index.pack_number(txn, name)) is not None}
        numbers -= {location.pack for _, location in index.scan(txn)}
        for digest, location in list(index.scan_dead(txn)):
            if location.pack in numbers:
                index.forget_dead(txn, digest, location.pack)
        for number in numbers:
            index.drop_pack(txn, number)
