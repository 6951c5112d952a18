"""The trash: removing checkpoints and jobs so that they can be brought back, and bringing them back.

A removal moves the record to the store's trash and the row to the removed ones, in one transaction; undoing it moves
both back. One removal bears one time, whatever the number of its transactions: a full disk needs small ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from gpu_train.retention.guard import Guards
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas import Transaction
from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import Busy, NotFound
from gpu_train_cas.registry import Txn

POLICY = "the retention policy"
"""What rows name as the remover where no person gave a command."""

Choose = Callable[[Guards, Sequence[Checkpoint]], Iterable[Checkpoint]]
"""Says within the transaction, where nothing can change any more, which of the checkpoints are really to go."""

CheckpointList = list[Checkpoint]  # a name of its own: within the class `list` is a method


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved to the trash, or out of it."""

    checkpoints: CheckpointList = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)

    @classmethod
    def of(cls, items: Iterable[Checkpoint | Job]) -> Self:
        """Sort both kinds apart."""
        moved = cls()
        for item in items:
            if isinstance(item, Job):
                moved.jobs.append(item)
            else:
                moved.checkpoints.append(item)
        return moved

    @property
    def when_ns(self) -> int:
        """When the last of it was removed; 0 for nothing."""
        items: list[Checkpoint | Job] = [*self.checkpoints, *self.jobs]
        return max((item.removed_ns or 0 for item in items), default=0)

    def __bool__(self) -> bool:
        return bool(self.checkpoints or self.jobs)


class Trash:
    """What was removed from a home. Threads and processes may remove and bring back at the same time."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._rows = workspace.checkpoints

    def list(self, job_id: str | None = None) -> CheckpointList:
        """The checkpoints that can be brought back, the last removed first."""
        purged = {job.id for job in self._workspace.jobs.all() if job.purged}
        with self._workspace.store.registry.read() as txn:
            removed = self._rows.scan_removed(txn, job_id)
            found = [c for c in removed if c.job_id not in purged and self._is_there(txn, c)]
        return sorted(found, key=lambda c: (c.removed_ns or 0, c.job_id, c.seq), reverse=True)

    def last(self) -> Moved:
        """What the last command removed; what policies have dropped since does not count."""
        items: list[Checkpoint | Job] = [*self.list(), *self._workspace.jobs.removed()]
        by_people = [item for item in items if item.removed_by != POLICY]
        last_ns = Moved.of(by_people).when_ns
        return Moved.of(item for item in by_people if item.removed_ns == last_ns)

    def remove(
        self, checkpoints: Iterable[Checkpoint], by: str, choose: Choose, why: str = "", jobs: Iterable[Job] = ()
    ) -> Moved:
        """Move checkpoints to the trash, and then those of `jobs` that have none left; what was moved.

        `choose` is asked within the transaction that removes; what it raises undoes that.

        Raises:
            Busy: when one of the jobs is running.
            StorageFull: when there is not even room to note it.
        """
        when = time.time_ns()

        def move(txn: Transaction, part: Sequence[Checkpoint | Job]) -> Iterator[Checkpoint | Job]:
            wanted = Moved.of(part)
            found = (self._rows.get_in(txn.txn, c.job_id, c.seq) for c in wanted.checkpoints)
            going = list(choose(Guards(self._workspace, txn.txn), [c for c in found if c is not None]))
            names = Counter(c.record for job in {c.job_id for c in going} for c in self._rows.scan(txn.txn, job))
            for one in going:
                self._rows.remove_in(txn, one, when, by, why)
                names[one.record] -= 1
                if one.record is not None and not names[one.record]:  # two names may have one record
                    _trash(txn, one.record, when)
                yield one
            for job in wanted.jobs:
                if self._remove_empty(txn, job.id, when, by):
                    yield job

        items: list[Checkpoint | Job] = [*checkpoints, *jobs]
        return Moved.of(self._workspace.store.change(items, move, by))

    def _remove_empty(self, txn: Transaction, job_id: str, when: int, by: str) -> bool:
        """Mark a job as removed, if it has no checkpoint left."""
        job = self._workspace.jobs.get(job_id, txn.txn)
        if job is None or job.removed_ns is not None or next(self._rows.scan(txn.txn, job_id), None) is not None:
            return False
        if job.is_live:
            raise Busy(f"job {job_id} is running; `gpu-train stop {job_id}` ends it")
        self._workspace.jobs.put_in(txn, job._replace(removed_ns=when, removed_by=by))
        return True

    def undo(self, wanted: Moved) -> Moved:
        """Bring back what was removed as it was; without checkpoints whose bytes gc has taken.

        A checkpoint brings its job back too.

        Raises:
            StorageFull: when there is not even room to note it.
        """
        owners = (self._workspace.jobs.get(job_id) for job_id in dict.fromkeys(c.job_id for c in wanted.checkpoints))
        jobs = {job.id: job for job in (*wanted.jobs, *owners) if job is not None}

        def move(txn: Transaction, part: Sequence[Checkpoint | Job]) -> Iterator[Checkpoint | Job]:
            these = Moved.of(part)
            for old in these.jobs:
                job = self._workspace.jobs.get(old.id, txn.txn)
                if job is not None and job.removed_ns is not None and not job.purged:
                    yield self._workspace.jobs.update_in(txn, job.id, removed_ns=None, removed_by="")
            for checkpoint in these.checkpoints:
                now = self._rows.get_removed_in(txn.txn, checkpoint.job_id, checkpoint.seq)
                if now is None or not self._is_there(txn.txn, now) or self._is_purged(txn.txn, now.job_id):
                    continue
                if now.record is not None:
                    txn.restore_trashed(now.record)
                yield self._rows.bring_back_in(txn, now)

        items: list[Checkpoint | Job] = [*jobs.values(), *wanted.checkpoints]
        return Moved.of(self._workspace.store.change(items, move, "undo"))

    def _is_there(self, txn: Txn, checkpoint: Checkpoint) -> bool:
        """Whether gc has left its record."""
        records = self._workspace.store.tables.records
        return checkpoint.record is None or records.get_bytes(txn, checkpoint.record) is not None

    def _is_purged(self, txn: Txn, job_id: str) -> bool:
        job = self._workspace.jobs.get(job_id, txn)
        return job is not None and job.purged


def trash_record(workspace: Workspace, txn: Transaction, checkpoint: Checkpoint, when_ns: int) -> None:
    """Move the record of a checkpoint that gets another one to the trash, unless a second name has it too."""
    rows = workspace.checkpoints.scan(txn.txn, checkpoint.job_id)
    if checkpoint.record is not None and sum(c.record == checkpoint.record for c in rows) == 1:
        _trash(txn, checkpoint.record, when_ns)


def _trash(txn: Transaction, record: Digest, when_ns: int) -> None:
    with suppress(NotFound):  # a rebuilt registry may lack what could not be read
        txn.trash(record, when_ns)
