"""What is to be pushed: one row for each checkpoint and sink, and for each job's logs, until it is there.

Rows outlive every process: whoever finds the queue not empty can go on. They are not durable in the packs: what is lost
with the registry is found again by comparing the checkpoints' rows with the settings (`Queue.behind`).
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gpu_train.sinks.setting import SinkSetting
from gpu_train.tables.row import from_row, to_row
from gpu_train_cas.registry import Registry, Txn

_SEQ = struct.Struct(">Q")
_TABLES = ("pushes", "push_sinks")

LOGS = 0
"""Stands for a job's logs; checkpoints are numbered from 1."""

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0


class Item(NamedTuple):
    """Something that is to be pushed.

    Attributes:
        address: the sink's. job_id, seq: the checkpoint's place; seq is `LOGS` for the job's logs.
        queued_ns: since when. attempts: how often it was tried. next_ns: not before this.
        error: why the last attempt failed, and when (error_ns); "" when none did.
    """

    address: str
    job_id: str
    seq: int
    queued_ns: int = 0
    attempts: int = 0
    next_ns: int = 0
    error: str = ""
    error_ns: int = 0


class Queue:
    """The table of what is to be pushed, and the settings of the sinks in it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._items, self._settings = (registry.table(name) for name in _TABLES)

    def want_in(self, txn: Txn, setting: SinkSetting, job_id: str, seqs: Iterable[int]) -> int:
        """Queue checkpoints of a job, or its logs, as part of a write transaction; how many were not in it."""
        self._settings.put(txn, _address(setting.address), {"v": 1, **setting.to_row()})
        added = 0
        for seq in seqs:
            item = Item(setting.address, job_id, seq, queued_ns=time.time_ns())
            if self._items.get_bytes(txn, _key(item)) is None:
                self._items.put(txn, _key(item), to_row(item))
                added += 1
        return added

    def know(self, setting: SinkSetting) -> None:
        """Remember how a sink is set, though nothing is queued for it: something may be read from it."""
        with self._registry.write() as txn:
            self._settings.put(txn, _address(setting.address), {"v": 1, **setting.to_row()})

    def want(self, setting: SinkSetting, job_id: str, seqs: Iterable[int]) -> int:
        """`want_in` in a transaction of its own."""
        with self._registry.write() as txn:
            return self.want_in(txn, setting, job_id, seqs)

    def done_in(self, txn: Txn, items: Iterable[Item]) -> None:
        """Take what is there out of the queue, as part of a write transaction."""
        for item in items:
            self._items.delete(txn, _key(item))

    def done(self, items: Iterable[Item]) -> None:
        """`done_in` in a transaction of its own."""
        with self._registry.write() as txn:
            self.done_in(txn, items)

    def failed(self, items: Iterable[Item], error: str, pause_s: float | None = None) -> None:
        """Note why an attempt failed. The next one is due after a pause that doubles each time, more or less, or after
        `pause_s` when the sink asked for that."""
        now_ns = time.time_ns()
        with self._registry.write() as txn:
            for item in items:
                wait_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(item.attempts, 16)) * random.uniform(0.5, 1.0)
                wait_s = wait_s if pause_s is None else pause_s
                item = item._replace(
                    attempts=item.attempts + 1, next_ns=now_ns + int(wait_s * 1e9), error=error, error_ns=now_ns
                )
                if self._items.get_bytes(txn, _key(item)) is not None:
                    self._items.put(txn, _key(item), to_row(item))

    def hurry(self, items: Iterable[Item]) -> None:
        """Make what waits for its pause to be over due at once."""
        with self._registry.write() as txn:
            for item in items:
                if self._items.get_bytes(txn, _key(item)) is not None:
                    self._items.put(txn, _key(item), to_row(item._replace(next_ns=0)))

    def waiting(self, address: str | None = None, job_id: str | None = None) -> list[Item]:
        """What is in the queue, of one sink, one job, or all; longest waiting first."""
        with self._registry.read() as txn:
            found = [item for item in self._scan(txn, address) if job_id is None or item.job_id == job_id]
        return sorted(found, key=lambda item: (item.queued_ns, item.job_id, item.seq))

    def settings(self) -> dict[str, SinkSetting]:
        """The sinks that something was queued for, as they were set last, by address."""
        with self._registry.read() as txn:
            rows: list[Mapping[str, Any]] = [row for _, row in self._settings.scan(txn)]
        return {(setting := from_row(SinkSetting, row)).address: setting for row in rows}

    def _scan(self, txn: Txn, address: str | None) -> Iterator[Item]:
        prefix = b"" if address is None else _address(address) + b"\0"
        for _, row in self._items.scan(txn, prefix):
            yield from_row(Item, row)


def _address(address: str) -> bytes:
    return address.encode(errors="surrogateescape")


def _key(item: Item) -> bytes:
    job = item.job_id.encode(errors="surrogateescape")
    return _address(item.address) + b"\0" + job + b"\0" + _SEQ.pack(item.seq)
