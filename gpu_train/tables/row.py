"""What the tables' rows share: keys that sort by job and number, and named tuples to and from maps."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from gpu_train_cas.registry import Registry, Row, Table, Txn

VERSION = 1
T = TypeVar("T")
_U64 = struct.Struct(">Q")
NUMBER_BYTES = _U64.size
"""What a row's number takes at the end of its key."""


def numbered_key(job_id: str, seq: int) -> bytes:
    """The key of a job's row number `seq`: job, NUL, big-endian number, so that rows lie in order."""
    return job_prefix(job_id) + _U64.pack(seq)


def job_prefix(job_id: str) -> bytes:
    """What the keys of all of a job's rows begin with."""
    return job_id.encode() + b"\0"


def job_of(key: bytes) -> str:
    """The job in a key."""
    return key[: -NUMBER_BYTES - 1].decode()


def seq_of(key: bytes) -> int:
    """The number at the end of a key."""
    return int(_U64.unpack(key[-NUMBER_BYTES:])[0])


def next_seq(table: Table, txn: Txn, job_id: str) -> int:
    """The number of a job's next row; they begin at 1. Only true inside a write transaction."""
    for key, _ in table.scan_bytes(txn, job_prefix(job_id), reverse=True):
        return seq_of(key) + 1
    return 1


def forget_rows(registry: Registry, table: Table, job_id: str, batch: int = 5_000) -> None:
    """Delete all rows of a job that are not durable, in transactions of at most so many."""
    while True:
        with registry.read() as txn:
            keys = list(islice(table.keys(txn, job_prefix(job_id)), batch))
        if not keys:
            return
        with registry.write() as txn:
            for key in keys:
                table.delete(txn, key)


def from_row(kind: Callable[..., T], row: Mapping[str, Any]) -> T:
    """The named tuple a row holds; fields that this version does not know are left aside."""
    names = kind._fields  # type: ignore[attr-defined]  # a named tuple: no word for such a type that mypy accepts
    return kind(**{name: row[name] for name in names if name in row})


def to_row(value: NamedTuple, old: Row | None = None) -> Row:
    """The row of a named tuple, with the unknown fields of the row that it replaces."""
    row: Row = dict(old or {})
    row["v"] = VERSION
    for name, item in value._asdict().items():
        row[name] = list(item) if isinstance(item, tuple) else dict(item) if isinstance(item, Mapping) else item
    return row
