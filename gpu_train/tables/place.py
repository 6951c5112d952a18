"""Where in a job a checkpoint's path and step are found: an index, so that no capture reads all rows of its job.

Two keys for every row of `checkpoints`, one by path and one by step: job, NUL, digest of what is looked for, number
of the row. They are not durable: wherever their count is not twice that of the rows, such as after a rebuild of the
registry, they are made again by the next write, and readers do without.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_train.step import split_version
from gpu_train.tables.row import NUMBER_BYTES, job_of, job_prefix, seq_of
from gpu_train_cas.registry import Registry, Row, Table, Txn

KEYS_PER_ROW = 2


class Places:
    """The index `name` of a table of checkpoints, `rows`."""

    def __init__(self, registry: Registry, rows: Table, name: str) -> None:
        self._rows = rows
        self._table = registry.table(name)

    def is_sound(self, txn: Txn) -> bool:
        """Whether it covers all rows."""
        return self._table.count(txn) == KEYS_PER_ROW * self._rows.count(txn)

    def ensure(self, txn: Txn) -> None:
        """Make it again if it does not cover all rows; part of a write transaction."""
        if self.is_sound(txn):
            return
        for key in list(self._table.keys(txn)):
            self._table.delete(txn, key)
        for key, row in self._rows.scan(txn):
            self._enter(txn, key, row)

    def move(self, txn: Txn, key: bytes, row: Row) -> None:
        """Keep it in step with a row that is about to be written under its key; part of a write transaction."""
        self.ensure(txn)
        old = self._rows.get(txn, key)
        if old is not None:
            for place in _places(key, old):
                self._table.delete(txn, place)
        self._enter(txn, key, row)

    def leave(self, txn: Txn, key: bytes, row: Row) -> None:
        """Keep it in step with a row that is about to be deleted; part of a write transaction."""
        self.ensure(txn)
        for place in _places(key, row):
            self._table.delete(txn, place)

    def _enter(self, txn: Txn, key: bytes, row: Row) -> None:
        for place in _places(key, row):
            self._table.put_bytes(txn, place, b"")

    def at_path(self, txn: Txn, job_id: str, base_name: str, *, reverse: bool = False) -> Iterator[int]:
        """The numbers of a job's rows under one path, oldest first or the other way round."""
        return self._at(txn, _path(job_id, base_name), reverse)

    def at_step(self, txn: Txn, job_id: str, step: int | None) -> Iterator[int]:
        """The numbers of a job's rows at a step, oldest first."""
        return self._at(txn, _step(job_id, step), False)

    def _at(self, txn: Txn, prefix: bytes, reverse: bool) -> Iterator[int]:
        for key, _ in self._table.scan_bytes(txn, prefix, reverse=reverse):
            yield seq_of(key)


def _places(key: bytes, row: Row) -> list[bytes]:
    job, number = job_of(key), key[-NUMBER_BYTES:]
    return [_path(job, split_version(row["name"])[0]) + number, _step(job, row["step"]) + number]


def _path(job_id: str, base_name: str) -> bytes:
    return job_prefix(job_id) + _digest(b"path " + base_name.encode(errors="surrogateescape"))


def _step(job_id: str, step: int | None) -> bytes:
    return job_prefix(job_id) + _digest(b"step %s" % str(step).encode())


def _digest(text: bytes) -> bytes:
    from hashlib import blake2b  # noqa: PLC0415  loads OpenSSL, which lists do without

    return blake2b(text, digest_size=16).digest()
