"""The trash: removing checkpoints and jobs so that they can be brought back, and bringing them back.

A removal moves the record to the store's trash and the row to the removed ones, in one transaction; undoing it moves
both back. One removal bears one time, whatever the number of its transactions: a full disk needs small ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from gpu_train.retention.guard import Guards
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.workspace import Workspace
from gpu_train_cas import Transaction
from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import NotFound
from gpu_train_cas.registry import Txn

POLICY = "the retention policy"
"""What rows name as the remover where no person gave a command."""

Choose = Callable[[Guards, Sequence[Checkpoint]], Iterable[Checkpoint]]
"""Says within the transaction, where nothing can change any more, which of the checkpoints are really to go."""

CheckpointList = list[Checkpoint]  # a name of its own: within the class `list` is a method


class Trash:
    """The removed checkpoints of a home. Threads and processes may remove and bring back at the same time."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._rows = workspace.checkpoints

    def list(self, job_id: str | None = None) -> CheckpointList:
        """What can be brought back, the last removed first."""
        with self._workspace.store.registry.read() as txn:
            found = [c for c in self._rows.scan_removed(txn, job_id) if self._is_there(txn, c)]
        return sorted(found, key=lambda c: (c.removed_ns or 0, c.job_id, c.seq), reverse=True)

    def last(self) -> CheckpointList:
        """What the last command removed; what policies have dropped since does not count."""
        by_people = [c for c in self.list() if c.removed_by != POLICY]
        return [c for c in by_people if c.removed_ns == by_people[0].removed_ns]

    def remove(self, checkpoints: Iterable[Checkpoint], by: str, choose: Choose, why: str = "") -> CheckpointList:
        """Move checkpoints to the trash; those that were.

        `choose` is asked within the transaction that removes; what it raises undoes that.

        Raises:
            StorageFull: when there is not even room to note it.
        """
        when = time.time_ns()

        def move(txn: Transaction, part: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
            names = Counter(c.record for job in {c.job_id for c in part} for c in self._rows.scan(txn.txn, job))
            found = (self._rows.get_in(txn.txn, c.job_id, c.seq) for c in part)
            for one in choose(Guards(self._workspace, txn.txn), [c for c in found if c is not None]):
                self._rows.remove_in(txn, one, when, by, why)
                names[one.record] -= 1
                if one.record is not None and not names[one.record]:  # two names may have one record
                    _trash(txn, one.record, when)
                yield one

        return self._workspace.store.change(list(checkpoints), move, by)

    def undo(self, checkpoints: Iterable[Checkpoint]) -> CheckpointList:
        """Bring removed checkpoints back as they were; those that were, without any whose bytes gc has taken.

        Raises:
            StorageFull: when there is not even room to note it.
        """

        def move(txn: Transaction, part: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
            for old in part:
                now = self._rows.get_removed_in(txn.txn, old.job_id, old.seq)
                if now is None or not self._is_there(txn.txn, now):
                    continue
                if now.record is not None:
                    txn.restore_trashed(now.record)
                yield self._rows.bring_back_in(txn, now)

        return self._workspace.store.change(list(checkpoints), move, "undo")

    def _is_there(self, txn: Txn, checkpoint: Checkpoint) -> bool:
        """Whether gc has left its record."""
        records = self._workspace.store.tables.records
        return checkpoint.record is None or records.get_bytes(txn, checkpoint.record) is not None


def _trash(txn: Transaction, record: Digest, when_ns: int) -> None:
    with suppress(NotFound):  # a rebuilt registry may lack what could not be read
        txn.trash(record, when_ns)
