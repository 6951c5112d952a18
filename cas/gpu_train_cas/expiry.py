"""Taking records out of the trash for good once their days there are over, but none that is being read."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gpu_train_cas.batch import by_batches
from gpu_train_cas.digest import Digest
from gpu_train_cas.folders import Folders
from gpu_train_cas.hold import HoldFacts, holds
from gpu_train_cas.packer import Packer
from gpu_train_cas.registry import Registry, Row
from gpu_train_cas.transaction import LEAVING, Tables, Transaction, commit_packs, staying

_DAY_NS = 86_400 * 10**9


class Expiry:
    """The records that one gc takes; why no reader loses what it reads: cas/spec/gc.md."""

    def __init__(self, registry: Registry, tables: Tables, folders: Folders, days: float) -> None:
        self._registry = registry
        self._tables = tables
        self._folders = folders
        self._before_ns = time.time_ns() - int(days * _DAY_NS)
        self._held: dict[Digest, HoldFacts] = {}

    def is_over(self, key: bytes, row: Row) -> bool:
        """Whether a record's days in the trash are over and nobody was seen reading it."""
        over = row["trashed_ns"] is not None and row["trashed_ns"] <= self._before_ns
        return over and key not in self._held

    def records(self) -> list[Digest]:
        """Those of which that is so."""
        with self._registry.read() as txn:
            return [Digest(key) for key, row in self._tables.records.scan(txn) if self.is_over(key, row)]

    def spare_held(self, records: Sequence[Digest]) -> list[str]:
        """From now on, leave in the trash which of these are being read at this moment; says by whom."""
        readers = {hold.record: hold for hold in holds(self._folders.holds)}
        self._held = {key: readers[key] for key in records if key in readers}
        return [
            f"record {key.hex()[:16]} stays in the trash: {reader.purpose} (pid {reader.pid}) reads it"
            for key, reader in self._held.items()
        ]

    def remove(self, packer: Packer) -> tuple[list[Digest], list[str]]:
        """Say what is to go, look who reads it, and take the rest: whoever did not see the first is seen.

        What was taken, and what was not and why.
        """
        over = self.records()
        by_batches(over, self._announce)
        kept = self.spare_held(over)
        removed: list[Digest] = []
        by_batches(over, lambda batch: self._take(batch, packer, removed))
        return removed, kept

    def _announce(self, batch: Sequence[Digest]) -> bool:
        with self._registry.write() as txn:
            for digest in batch:
                row = self._tables.records.get(txn, digest)
                if row is not None and self.is_over(digest, row):
                    self._tables.records.put(txn, digest, row | {LEAVING: True})
        return True

    def _take(self, batch: Sequence[Digest], packer: Packer, removed: list[Digest]) -> bool:
        taken = []
        try:
            with self._registry.write() as raw:
                txn = Transaction(raw, self._tables, packer)
                for digest in batch:
                    row = txn.get(self._tables.records, digest)
                    if row is None or not row.get(LEAVING):  # somebody took it back
                        continue
                    if self.is_over(digest, row):
                        # Durable: its frame stays in a pack for a while, and a rebuild must not bring it back.
                        txn.delete(self._tables.records, digest, durable=True)
                        taken.append(digest)
                    else:
                        self._tables.records.put(raw, digest, staying(row))
                commit_packs(raw, self._tables, packer, self._folders.packs)
        except BaseException:
            packer.discard()
            raise
        removed += taken
        return True
