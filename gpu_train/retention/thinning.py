"""Thinning: dropping the optimizer's state of old checkpoints, which can then serve but not resume.

A thinned checkpoint gets a new record, whose tree lacks that state; the old record goes to the trash, from which
`undo` brings it back. Weights are neither moved nor encoded again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gpu_train.retention.guard import Guards
from gpu_train.retention.optimizer import OptimizerState, find_optimizer
from gpu_train.retention.policy import made_ns
from gpu_train.retention.trash import trash_record
from gpu_train.tables.checkpoint import VERIFIED, Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas import Entry, Forecast, OnProgress, Transaction
from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import UNREADABLE, NotFound
from gpu_train_cas.rewrite import left_by

COMMAND = "checkpoints thin"
NS = 10**9


@dataclass(frozen=True, slots=True)
class Thinning:
    """What is to become of one checkpoint: what is taken out of it, or why it stays as it is."""

    checkpoint: Checkpoint
    state: OptimizerState
    why: tuple[str, ...] = ()

    @property
    def goes(self) -> bool:
        """Whether it is thinned."""
        return not self.why


def old_ones(
    workspace: Workspace, job: Job, *, keep_latest: int = 1, older_than_s: float | None = None
) -> list[Checkpoint]:
    """A job's whole checkpoints but for the newest ones, and of these only those made so long ago, newest first."""
    before_ns = None if older_than_s is None else time.time_ns() - round(older_than_s * NS)
    whole = [c for c in workspace.checkpoints.list(job.id) if c.state == VERIFIED]
    rest = sorted(whole, key=lambda c: c.seq, reverse=True)[max(1, keep_latest) :]
    return [c for c in rest if before_ns is None or made_ns(c) <= before_ns]


def plan_thinning(workspace: Workspace, checkpoints: Iterable[Checkpoint]) -> list[Thinning]:
    """What thinning would take out of each checkpoint, or why it cannot."""
    found = []
    for checkpoint in checkpoints:
        with workspace.store.registry.read() as txn:
            why = _reasons(Guards(workspace, txn), checkpoint)
        state = OptimizerState() if why else _look(workspace, checkpoint)
        found.append(Thinning(checkpoint, state, tuple(why) or ((state.reason,) if state.reason else ())))
    return found


def forecast_thinning(workspace: Workspace, plan: Iterable[Thinning], progress: OnProgress | None = None) -> Forecast:
    """What `thin` would free, once the old records have left the trash."""
    records: list[Digest] = []
    files: list[Entry] = []
    blocks = b""
    for one in plan:
        if one.goes and one.checkpoint.record is not None:
            records.append(one.checkpoint.record)
            root = workspace.store.record(one.checkpoint.record).root
            left, parts = left_by(workspace.store.reader, root, one.state.edits)
            files += left
            blocks += parts
    return workspace.store.forecast(records, files, blocks, progress)


def thin(workspace: Workspace, plan: Sequence[Thinning], progress: OnProgress | None = None) -> list[Checkpoint]:
    """Take the optimizer's state out of checkpoints, each in a transaction of its own; their rows afterwards.

    Raises:
        StorageFull: when there is not even room to note it; those before stay thinned.
        Damaged: when a part that stays cannot be read.
    """
    when = time.time_ns()
    done = []
    for one in plan:
        if one.goes:
            row = workspace.store.with_reserve(partial(_thin_one, workspace, one, when, progress))
            if row is not None:
                done.append(row)
    return done


def _thin_one(workspace: Workspace, plan: Thinning, when: int, progress: OnProgress | None) -> Checkpoint | None:
    """Thin a checkpoint; None when it was removed, thinned or protected meanwhile."""
    old = plan.checkpoint
    assert old.record is not None
    record = workspace.store.record(old.record)
    with workspace.store.writer("thin") as writer:
        added = writer.add_rewritten(record.root, plan.state.edits, progress)
        with writer.commit() as txn:
            now = workspace.checkpoints.get_in(txn.txn, old.job_id, old.seq)
            if now is None or now.record != old.record or _reasons(Guards(workspace, txn.txn), now):
                return None
            meta = {**record.meta, "thinned_ns": when, "full": old.record}
            thinned = txn.put_record(record._replace(root=added.root, meta=meta))
            trash_record(workspace, txn, now, when)
            info = {
                "thinned_ns": when, "record": old.record, "size_bytes": now.size_bytes, "files": now.files,
            }  # fmt: skip
            row = now._replace(record=thinned, size_bytes=added.size_bytes, files=added.files, thin=info)
            workspace.checkpoints.put_in(txn, row)
            return row


def make_whole(workspace: Workspace, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Give thinned checkpoints their optimizer's state back; those that have it, without any for which gc was faster.

    Raises:
        StorageFull: when there is not even room to note it.
    """
    when = time.time_ns()

    def swap(txn: Transaction, part: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
        for old in part:
            now = workspace.checkpoints.get_in(txn.txn, old.job_id, old.seq)
            if now is None or not now.thin:
                continue
            try:
                txn.restore_trashed(now.thin["record"])
            except NotFound:
                continue
            trash_record(workspace, txn, now, when)
            row = now._replace(
                record=now.thin["record"], size_bytes=now.thin["size_bytes"], files=now.thin["files"], thin={}
            )
            workspace.checkpoints.put_in(txn, row)
            yield row

    return workspace.store.change(list(checkpoints), swap, "undo")


def thinned(workspace: Workspace) -> list[Checkpoint]:
    """The thinned checkpoints whose optimizer's state is still in the trash."""
    found = [c for c in workspace.checkpoints.list() if c.thin]
    with workspace.store.registry.read() as txn:
        return [c for c in found if workspace.store.tables.records.get_bytes(txn, c.thin["record"]) is not None]


def _look(workspace: Workspace, checkpoint: Checkpoint) -> OptimizerState:
    assert checkpoint.record is not None
    try:
        return find_optimizer(workspace.store.reader, workspace.store.record(checkpoint.record).root)
    except UNREADABLE as e:
        return OptimizerState(reason=f"it cannot be read: {e}")


def _reasons(guards: Guards, checkpoint: Checkpoint) -> list[str]:
    """Why a checkpoint may not be thinned now."""
    if checkpoint.record is None:
        return ["it has no bytes"]
    if checkpoint.thin:
        return ["it is thin already"]
    return guards.against_thinning(checkpoint)
