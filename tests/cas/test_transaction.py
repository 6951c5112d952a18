"""Commits: rows, durable rows, records and the trash."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_train_cas import Kind, Record, Store, reserve
from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import NotFound
from gpu_train_cas.pack import PackReader
from gpu_train_cas.transaction import RowFrame, decode_row_frame, row_frame_key


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home") as store:
        yield store


def row_frames(store: Store) -> list[RowFrame]:
    frames = []
    for path in (store.root / "store" / "packs").rglob("*.pack"):
        with PackReader(path) as pack:
            kinds = [e.header for e in pack.index() if e.header.kind is Kind.ROW]
        frames += [decode_row_frame(store.reader.object(h.digest, Kind.ROW)) for h in kinds]
    return sorted(frames, key=lambda f: f.revision)


def test_a_durable_row_is_also_a_frame_with_rising_revisions(store: Store) -> None:
    jobs = store.registry.table("jobs")
    for status in ("running", "finished"):
        with store.transaction() as txn:
            txn.put(jobs, b"j", {"v": 1, "status": status}, durable=True)
    with store.transaction() as txn:
        txn.delete(jobs, b"j", durable=True)
    frames = row_frames(store)
    assert [(f.table, f.key, f.row) for f in frames] == [
        ("jobs", b"j", {"v": 1, "status": "running"}),
        ("jobs", b"j", {"v": 1, "status": "finished"}),
        ("jobs", b"j", None),
    ]
    assert len({f.revision for f in frames}) == 3
    with store.registry.read() as txn:
        digest = store.tables.row_frames.get_bytes(txn, row_frame_key("jobs", b"j"))
    assert decode_row_frame(store.reader.object(Digest(digest or b""), Kind.ROW)).row is None


def test_a_row_that_is_not_durable_makes_no_pack(store: Store) -> None:
    table = store.registry.table("t")
    with store.transaction() as txn:
        txn.put(table, b"k", {"v": 1})
        assert txn.get(table, b"k") == {"v": 1}
        assert list(txn.scan(table)) == [(b"k", {"v": 1})]
    assert row_frames(store) == []
    assert list((store.root / "store" / "packs").iterdir()) == []


def test_a_failed_transaction_changes_nothing_and_leaves_no_file(store: Store) -> None:
    table = store.registry.table("t")
    with pytest.raises(ZeroDivisionError), store.transaction() as txn:
        txn.put(table, b"k", {"v": 1}, durable=True)
        raise ZeroDivisionError
    with store.registry.read() as txn:
        assert table.get(txn, b"k") is None
    assert [p.name for p in (store.root / "store").rglob("*") if p.is_file()] == [reserve.NAME]


def test_a_trashed_record_can_be_had_back(tmp_path: Path, store: Store) -> None:
    (tmp_path / "f").write_bytes(b"x")
    with store.writer("test") as writer:
        added = writer.add_file(tmp_path / "f")
        with writer.commit() as txn:
            digest = txn.put_record(Record("checkpoint", "job", "c", time.time_ns(), added.root))
            assert txn.put_record(store_record := Record("checkpoint", "job", "c2", 1, added.root)) != digest
    store.trash(digest)
    assert [r.name for _, r in store.records()] == ["c2"]
    assert [r.name for _, r in store.records(trashed=True)] == ["c"]
    store.restore_trashed(digest)
    assert sorted(r.name for _, r in store.records("checkpoint")) == ["c", "c2"]
    assert list(store.records("code")) == []
    assert store_record in [r for _, r in store.records()]
    with pytest.raises(NotFound):
        store.trash(Digest(bytes(32)))
