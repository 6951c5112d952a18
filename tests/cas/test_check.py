"""Checking: every kind of damage is found, named by record and path, and stops nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_train_cas import Digest, Entry, EntryKind, Progress, Record, Store
from gpu_train_cas.check import CHECKS
from gpu_train_cas.digest import digest_of
from gpu_train_cas.errors import Damaged, NotFound
from gpu_train_cas.frame import HEADER_BYTES
from gpu_train_cas.pack import pack_path
from gpu_train_cas.walk import MAX_DEPTH

MIB = 1 << 20
Commit = Callable[..., Digest]
Seen = Callable[[Path], dict[bytes, tuple[object, ...]]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "sub").mkdir(parents=True)
    (top / "small").write_bytes(b"small file")
    (top / "sub" / "large").write_bytes(os.urandom(6 * MIB))
    (top / "sub" / "twin").write_bytes((top / "small").read_bytes())
    return top


def pack_and_offset(store: Store, digest: Digest) -> tuple[Path, int]:
    with store.registry.read() as txn:
        location = store.tables.index.get(txn, digest)
        assert location is not None
        name = store.tables.index.pack_name(txn, location.pack)
        assert name is not None
    return pack_path(store.folders.packs, name), location.offset


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 0x04]))


def damage(store: Store, digest: Digest, at: int = HEADER_BYTES + 3) -> None:
    path, offset = pack_and_offset(store, digest)
    flip(path, offset + at)


def block_of(store: Store, record: Digest, path: bytes, index: int = 0) -> Digest:
    entry = store.reader.lookup(store.record(record).root, path)
    return store.reader.manifest(entry).block(index).digest


def paths(hits: list[object]) -> set[tuple[str, bytes]]:
    return {(hit.name, hit.path) for hit in hits}  # type: ignore[attr-defined]


def test_a_sound_store_is_clean_and_checked_whole(store: Store, source: Path, commit: Commit) -> None:
    commit(store, source)
    report = store.verify()
    assert not report.damaged
    assert report.complete
    assert (report.records, report.packs, report.packs_total) == (1, 1, 1)
    assert report.stored_bytes > 6 * MIB
    assert store.verify().frames == report.frames == sum(1 for _ in index_of(store))


def index_of(store: Store) -> list[Digest]:
    with store.registry.read() as txn:
        return [digest for digest, _ in store.tables.index.scan(txn)]


def test_an_empty_store_is_clean(store: Store) -> None:
    report = store.verify()
    assert report.complete and not report.damaged


@pytest.mark.parametrize("at", [0, 5, 20, 60, 90, HEADER_BYTES, HEADER_BYTES + 100])
def test_a_broken_block_names_every_file_it_is_in(store: Store, source: Path, commit: Commit, at: int) -> None:
    first = commit(store, source, "one")
    (source / "only here").write_bytes(b"x" * 1000)
    commit(store, source, "two")
    bad = block_of(store, first, b"sub/large", 2)
    damage(store, bad, at)
    report = store.verify()
    assert report.damaged and report.complete
    assert [d.digest for d in report.frames_damaged] == [bad]
    assert paths(report.hits) == {("one", b"sub/large"), ("two", b"sub/large")}
    assert {hit.owner for hit in report.hits} == {"job"}
    assert {hit.digest for hit in report.hits} == {bad}
    with pytest.raises(Damaged):
        store.reader.open(store.reader.lookup(store.record(first).root, b"sub/large")).pread(6 * MIB, 0)
    assert store.reader.open(store.reader.lookup(store.record(first).root, b"small")).pread(99, 0) == b"small file"


@pytest.mark.parametrize("what", ["record", "root", "folder", "manifest", "block of small files"])
def test_each_kind_of_object_is_found_and_placed(store: Store, source: Path, commit: Commit, what: str) -> None:
    record = commit(store, source)
    root = store.record(record).root
    large = store.reader.lookup(root, b"sub/large")
    assert large.manifest is not None
    digest, expected = {
        "record": (record, {b""}),
        "root": (root.digest, {b""}),
        "folder": (store.reader.lookup(root, b"sub").digest, {b"sub"}),
        "manifest": (large.manifest, {b"sub/large"}),
        "block of small files": (digest_of(b"small file"), {b"small", b"sub/twin"}),
    }[what]
    damage(store, digest)
    with Store.open(store.root) as fresh:
        report = fresh.verify()
    assert [d.digest for d in report.frames_damaged] == [digest]
    assert {hit.path for hit in report.hits} == expected
    assert {hit.digest for hit in report.hits} == {digest}


def test_a_missing_pack_and_a_broken_index_are_found(
    store: Store, source: Path, tmp_path: Path, commit: Commit
) -> None:
    first = commit(store, source, "one")
    other = tmp_path / "other"
    other.mkdir()
    (other / "f").write_bytes(b"other")
    second = commit(store, other, "two")
    lost, _ = pack_and_offset(store, second)
    lost.unlink()
    kept, _ = pack_and_offset(store, first)
    flip(kept, kept.stat().st_size - 100)
    with Store.open(store.root) as fresh:
        report = fresh.verify()
    reasons = {damage.pack.hex(): damage.reason for damage in report.packs_damaged}
    assert "fails its digest" in reasons[kept.stem]
    assert reasons[lost.stem] == "No such file or directory"
    assert paths(report.hits) == {("two", b"")}
    assert report.complete, "the pack with the broken index was read by the registry's"


def test_what_the_registry_does_not_have_is_missing(store: Store, source: Path, commit: Commit) -> None:
    record = commit(store, source)
    gone = block_of(store, record, b"sub/large", 1)
    with store.registry.write() as txn:
        store.tables.index.blocks.delete(txn, gone)
    report = store.verify()
    assert set(report.missing) == {gone}
    assert paths(report.hits) == {("c", b"sub/large")}


def test_damage_is_mended_when_the_content_comes_again(
    store: Store, source: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    record = commit(store, source, "one")
    root = store.record(record).root
    for digest in (block_of(store, record, b"sub/large"), digest_of(b"small file"), root.digest, record):
        damage(store, digest)
    assert len(store.verify().frames_damaged) == 4
    with Store.open(store.root) as fresh:
        with fresh.writer("again") as writer:
            added = writer.add_tree(source)
            assert 0 < added.new_bytes < 2 * MIB, "only what is damaged is stored again"
            with writer.commit() as txn:
                txn.put_record(Record("checkpoint", "job", "two", 2, added.root))
        report = fresh.verify()
        assert [d.digest for d in report.frames_damaged] == [record], "the first record itself is not content"
        assert paths(report.hits) == {("one", b"")}
        fresh.restore(root, tmp_path / "out")
    assert seen(tmp_path / "out") == seen(source)


def test_a_mark_is_lifted_when_the_frame_reads_well_again(store: Store, source: Path, commit: Commit) -> None:
    record = commit(store, source)
    bad = block_of(store, record, b"sub/large")
    damage(store, bad)
    assert store.verify().damaged
    damage(store, bad)  # the same bit flips back: a disk or a memory that was at fault
    report = store.verify()
    assert not report.damaged
    assert report.mended == 1
    with store.registry.read() as txn:
        assert store.tables.index.usable(txn, bad)


def many_packs(store: Store, tmp_path: Path, commit: Commit, count: int = 5) -> list[Digest]:
    records = []
    for index in range(count):
        folder = tmp_path / f"s{index}"
        folder.mkdir()
        (folder / "f").write_bytes(os.urandom(100_000))
        records.append(commit(store, folder, f"r{index}"))
    return records


def test_a_sample_goes_round_the_packs(store: Store, tmp_path: Path, commit: Commit) -> None:
    records = many_packs(store, tmp_path, commit)
    bad = block_of(store, records[4], b"f")
    damage(store, bad)
    found = []
    for _ in range(5):
        report = store.verify(sample=0.15)
        assert (report.packs, report.packs_total) == (1, 5)
        found.append(report.damaged)
    assert found == [False, False, False, False, True]
    with store.registry.read() as txn:
        ledger = [row for _, row in store.registry.table(CHECKS).scan(txn)]
    assert len(ledger) == 5
    assert sum(row["damaged"] for row in ledger) == 1
    assert store.verify(sample=0.15).damaged, "what is known stays said until it is mended"


def test_a_time_limit_reads_one_pack_at_least(store: Store, tmp_path: Path, commit: Commit) -> None:
    many_packs(store, tmp_path, commit)
    assert store.verify(max_duration_s=0).packs == 1
    assert store.verify(max_duration_s=600).complete


def test_one_record_alone(store: Store, tmp_path: Path, commit: Commit) -> None:
    records = many_packs(store, tmp_path, commit)
    damage(store, block_of(store, records[1], b"f"))
    report = store.verify(records=[records[0]])
    assert not report.damaged and report.records == 1
    report = store.verify(records=[records[1]])
    assert paths(report.hits) == {("r1", b"f")}
    with store.registry.read() as txn:
        assert store.registry.table(CHECKS).count(txn) == 0, "no whole pack was read"


def test_a_read_only_store_is_checked_without_a_note(store: Store, source: Path, commit: Commit) -> None:
    record = commit(store, source)
    damage(store, block_of(store, record, b"sub/large"))
    store.close()
    with Store.open(store.root, read_only=True) as reading:
        report = reading.verify()
        assert report.damaged and report.complete
        with reading.registry.read() as txn:
            assert reading.tables.index.damaged.count(txn) == 0


def test_checks_of_packs_that_are_gone_are_forgotten(store: Store, tmp_path: Path, commit: Commit) -> None:
    records = many_packs(store, tmp_path, commit)
    store.verify()
    for record in records[1:]:
        store.trash(record)
    store.gc(trash_days=0)
    report = store.verify()
    assert not report.damaged
    with store.registry.read() as txn:
        assert store.registry.table(CHECKS).count(txn) == report.packs_total


def test_folders_as_deep_as_can_be(store: Store, tmp_path: Path, commit: Commit) -> None:
    source = tmp_path / "source"
    deep = source.joinpath(*["d"] * (MAX_DEPTH - 1))
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"bottom")
    commit(store, source)
    damage(store, digest_of(b"bottom"))
    report = store.verify()
    assert {hit.path for hit in report.hits} == {b"d/" * (MAX_DEPTH - 1) + b"f"}


def test_damaged_names_are_hits_too(store: Store, tmp_path: Path) -> None:
    with store.transaction() as txn:
        root = Entry(b"", EntryKind.DIRECTORY, 0o755, 0, 0, digest_of(b"no such tree"))
        txn.put_record(Record("checkpoint", "job", "bare", 1, root))
    report = store.verify()
    assert paths(report.hits) == {("bare", b"")}
    assert root.digest in report.missing
    with pytest.raises(NotFound):
        store.restore(root, tmp_path / "out")


def test_progress_ends_at_the_total(store: Store, source: Path, commit: Commit) -> None:
    commit(store, source)
    last: list[tuple[int, int | None, int]] = []

    def report(progress: Progress) -> None:
        last[:] = [(progress.done_bytes, progress.total_bytes, threading.get_ident())]

    store.verify(progress=report)
    done, total, thread = last[0]
    assert total is not None and abs(done - total) < 10_000
    assert thread == threading.get_ident()
