"""The only commit point: packs in place, then one LMDB transaction with entries, records and rows.

Durable rows and records are frames too, so that the registry can be rebuilt from the packs: each durable
change of a row writes a frame that holds the row and a revision; on rebuild the highest revision wins
(cas/spec/blocks.md, Rows).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgpack

from gpu_train_cas.codecs import encode_object
from gpu_train_cas.digest import Digest, Kind, digest_of
from gpu_train_cas.errors import Damaged, NotFound
from gpu_train_cas.index import Index
from gpu_train_cas.packer import Packer
from gpu_train_cas.record import Record
from gpu_train_cas.registry import Registry, Row, Table, Txn

ROW_VERSION = 1
LEAVING = "leaving"
"""The field of a record's row that says that a gc is about to take it (gc.md, step 2)."""


class Tables:
    """The engine's own tables, opened once per store."""

    def __init__(self, registry: Registry) -> None:
        self.index = Index(registry)
        self.records = registry.table("records")
        self.row_frames = registry.table("row_frames")

    def holds(self, txn: Txn, record: Digest) -> bool:
        """Whether a record is committed and not in the trash."""
        row = self.records.get(txn, record)
        return row is not None and row["trashed_ns"] is None


class Transaction:
    """What is read and written in one commit; all of it is visible at once afterwards, or none of it."""

    def __init__(self, txn: Txn, tables: Tables, packer: Packer) -> None:
        self.txn = txn
        self._tables = tables
        self._packer = packer

    def get(self, table: Table, key: bytes) -> Row | None:
        """The row of a key, as this transaction sees it."""
        return table.get(self.txn, key)

    def scan(self, table: Table, prefix: bytes = b"", *, reverse: bool = False) -> Iterator[tuple[bytes, Row]]:
        """Keys and rows under a prefix."""
        return table.scan(self.txn, prefix, reverse=reverse)

    def put(self, table: Table, key: bytes, row: Row, *, durable: bool = False) -> None:
        """Set a row. A durable one also becomes a frame, from which a lost registry gets it back."""
        table.put(self.txn, key, row)
        if durable:
            self._put_frame(table, key, row)

    def delete(self, table: Table, key: bytes, *, durable: bool = False) -> None:
        """Remove a row; durable when the row was."""
        table.delete(self.txn, key)
        if durable:
            self._put_frame(table, key, None)

    def put_record(self, record: Record) -> Digest:
        """Commit a record: from now on it keeps its tree alive. The same record twice is one."""
        digest, data = record.encode()
        row = staying(self._tables.records.get(self.txn, digest) or {}) | record_row(record)
        # A durable mark (trashed, removed) outlives the registry; only a later one takes it back.
        marked = self._tables.row_frames.get_bytes(self.txn, row_frame_key(self._tables.records.name, digest))
        self.put(self._tables.records, digest, row, durable=marked is not None)
        if not self._tables.index.revive(self.txn, digest):
            self._packer.add(Kind.RECORD, digest, len(data), encode_object(data))
        return digest

    def trash(self, digest: Digest, when_ns: int) -> None:
        """Mark a record for removal; `restore_trashed` takes it back until gc has passed it.

        Raises:
            NotFound: when there is no such record.
        """
        self._mark(digest, when_ns)

    def restore_trashed(self, digest: Digest) -> None:
        """Take a record back out of the trash.

        Raises:
            NotFound: when there is no such record (gc may have removed it).
        """
        self._mark(digest, None)

    def _mark(self, digest: Digest, trashed_ns: int | None) -> None:
        row = self._tables.records.get(self.txn, digest)
        if row is None:
            raise NotFound(f"record {digest.hex()[:16]} is not in the store; it may have been collected")
        self.put(self._tables.records, digest, staying(row) | {"trashed_ns": trashed_ns}, durable=True)

    def _put_frame(self, table: Table, key: bytes, row: Row | None) -> None:
        # At least the time: a pack whose commit failed may hold frames with revisions that are given again.
        revision = self._tables.index.next(self.txn, b"row", at_least=time.time_ns())
        digest, data = encode_row_frame(RowFrame(table.name, key, revision, row))
        self._packer.add(Kind.ROW, digest, len(data), encode_object(data))
        self._tables.row_frames.put_bytes(self.txn, row_frame_key(table.name, key), digest)


def staying(row: Row) -> Row:
    """A record's row, which no gc is about to take."""
    return {name: value for name, value in row.items() if name != LEAVING}


def record_row(record: Record) -> Row:
    """The row of a record that is not in the trash."""
    return {
        "v": 1, "kind": record.kind, "owner": record.owner, "name": record.name,
        "created_ns": record.created_ns, "trashed_ns": None,
    }  # fmt: skip


def row_frame_key(table: str, key: bytes) -> bytes:
    """Key of the table `row_frames`: which frame holds the present state of a durable row."""
    return table.encode() + b"\0" + key


class RowFrame(NamedTuple):
    """A durable row's state: table, key, revision, and the row (None once it is deleted)."""

    table: str
    key: bytes
    revision: int
    row: Row | None


def encode_row_frame(frame: RowFrame) -> tuple[Digest, bytes]:
    """The name and bytes of a row's frame."""
    wire = [ROW_VERSION, frame.table, frame.key, frame.revision, frame.row]
    data: bytes = msgpack.packb(wire, unicode_errors="surrogateescape")
    return digest_of(data, Kind.ROW), data


def decode_row_frame(data: bytes | memoryview) -> RowFrame:
    """Read a row's frame back.

    Raises:
        Damaged: for bytes that are none.
    """
    try:
        version, table, key, revision, row = msgpack.unpackb(data, unicode_errors="surrogateescape")[:5]
        if version != ROW_VERSION or not isinstance(table, str) or not isinstance(key, bytes):
            raise ValueError(f"version {version}")
        return RowFrame(table, key, int(revision), None if row is None else dict(row))
    except (ValueError, TypeError, msgpack.UnpackException) as e:
        raise Damaged(f"a durable row cannot be read: {e}") from e


def commit_packs(txn: Txn, tables: Tables, packer: Packer, packs: Path) -> None:
    """Publish the packer's packs and enter them; the last step inside the write transaction."""
    for sealed in packer.publish(packs):
        tables.index.add_pack(txn, sealed)
