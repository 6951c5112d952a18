"""Rebuilding the registry: from the packs alone everything committed is there again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_train_cas import Digest, Record, Store
from gpu_train_cas.codecs import encode_object
from gpu_train_cas.digest import Kind, digest_of
from gpu_train_cas.errors import Busy, Damaged, NotFound
from gpu_train_cas.frame import HEADER_BYTES
from gpu_train_cas.pack import PackReader, PackWriter, publish
from gpu_train_cas.repair import OWN_TABLES, rebuild_registry
from gpu_train_cas.transaction import RowFrame, encode_row_frame

Commit = Callable[..., Digest]
Seen = Callable[[Path], dict[bytes, tuple[object, ...]]]
Rows = dict[bytes, Any]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "sub").mkdir(parents=True)
    (top / "f").write_bytes(os.urandom(300_000))
    (top / "sub" / "g").write_bytes(b"small")
    return top


def rows(store: Store, table: str) -> Rows:
    opened = store.registry.table(table)
    with store.registry.read() as txn:
        return dict(opened.scan(txn))


def put_row(store: Store, key: bytes, row: dict[str, Any] | None) -> None:
    jobs = store.registry.table("jobs")
    with store.transaction() as txn:
        if row is None:
            txn.delete(jobs, key, durable=True)
        else:
            txn.put(jobs, key, row, durable=True)


def filled(root: Path, source: Path, commit: Commit) -> tuple[dict[str, Rows], list[Digest]]:
    """A store with a bit of history: the rows that must come back, and the records."""
    with Store.open(root) as store:
        digests = [commit(store, source, name) for name in ("kept", "trashed", "restored", "collected", "again")]
        for digest in digests[1:]:
            store.trash(digest)
        store.restore_trashed(digests[2])
        put_row(store, b"one", {"v": 1, "status": "running", "name": "caf\udce9"})
        put_row(store, b"one", {"v": 1, "status": "finished"})
        put_row(store, b"two", {"v": 1, "status": "lost"})
        put_row(store, b"two", None)
        jobs = store.registry.table("jobs")
        with store.transaction() as txn:
            txn.put(jobs, b"passing", {"v": 1})
        # As if its days were over for two of them: they go, their frames stay in their packs for now.
        row_of = dict(rows(store, "records"))
        with store.registry.write() as raw:
            for digest in digests[3:]:
                store.tables.records.put(raw, digest, row_of[digest] | {"trashed_ns": 1})
        with store.writer("so that no pack is rewritten"):
            assert set(store.gc().records) == set(digests[3:])
        record = Record("checkpoint", "job", "again", 1, store.record(digests[0]).root)
        with store.transaction() as txn:
            again = txn.put_record(record)
        store.trash(again)
        with store.registry.write() as raw:
            store.tables.records.put(raw, again, dict(rows(store, "records"))[again] | {"trashed_ns": 1})
        store.gc()
        with store.transaction() as txn:
            assert txn.put_record(record) == again
        expected = {"records": rows(store, "records"), "jobs": rows(store, "jobs")}
        assert set(expected["records"]) == {*digests[:3], again}
        del expected["jobs"][b"passing"]
        return expected, [digests[0], digests[1], digests[2], again]


def check_all(
    root: Path, expected: dict[str, Rows], digests: list[Digest], source: Path, out: Path, seen: Seen
) -> None:
    with Store.open(root) as store:
        assert {"records": rows(store, "records"), "jobs": rows(store, "jobs")} == expected
        report = store.verify()
        assert report.complete and not report.damaged
        for digest in digests:
            store.restore(store.record(digest).root, out / digest.hex()[:8])
            assert seen(out / digest.hex()[:8]) == seen(source)


def nothing(registry: Path) -> None:
    pass


def remove(registry: Path) -> None:
    shutil.rmtree(registry)


def overwrite(registry: Path) -> None:
    (registry / "data.mdb").write_bytes(os.urandom(50_000))


def truncate(registry: Path) -> None:
    with (registry / "data.mdb").open("r+b") as f:
        f.truncate(3 * 4096 + 100)


def empty(registry: Path) -> None:
    with (registry / "data.mdb").open("r+b") as f:
        f.truncate(0)


@pytest.mark.parametrize("harm", [nothing, remove, overwrite, truncate, empty])
def test_everything_committed_comes_back(
    tmp_path: Path, source: Path, commit: Commit, seen: Seen, harm: Callable[[Path], None]
) -> None:
    root = tmp_path / "home"
    expected, digests = filled(root, source, commit)
    harm(root / "registry")
    report = rebuild_registry(root)
    assert report.problems == []
    assert (report.old is None) == (harm is remove)
    assert report.records == len(expected["records"])
    check_all(root, expected, digests, source, tmp_path / "out", seen)
    assert [p.name for p in root.iterdir() if p.name.startswith("registry.new")] == []
    again = rebuild_registry(root, check=True)
    assert again.problems == []
    check_all(root, expected, digests, source, tmp_path / "out2", seen)


def test_life_goes_on_after_a_rebuild(tmp_path: Path, source: Path, commit: Commit, seen: Seen) -> None:
    root = tmp_path / "home"
    expected, digests = filled(root, source, commit)
    rebuild_registry(root)
    with Store.open(root) as store:
        put_row(store, b"one", {"v": 1, "status": "resumed"})
        (source / "new").write_bytes(b"new")
        digests.append(commit(store, source, "later"))
        store.gc(trash_days=1)
        expected = {"records": rows(store, "records"), "jobs": rows(store, "jobs")}
    rebuild_registry(root)
    with Store.open(root) as store:
        assert {"records": rows(store, "records"), "jobs": rows(store, "jobs")} == expected
        store.restore(store.record(digests[-1]).root, tmp_path / "out")
    assert seen(tmp_path / "out") == seen(source)


@pytest.mark.parametrize("harm", [remove, empty])
def test_a_lost_registry_is_not_taken_for_a_new_home(
    tmp_path: Path, source: Path, commit: Commit, harm: Callable[[Path], None]
) -> None:
    root = tmp_path / "home"
    filled(root, source, commit)
    harm(root / "registry")
    for read_only in (False, True):
        with pytest.raises(Damaged, match="rebuild-registry"):
            Store.open(root, read_only=read_only)


@pytest.mark.parametrize("harm", [overwrite, truncate])
def test_a_broken_registry_says_how_to_mend_it(
    tmp_path: Path, source: Path, commit: Commit, harm: Callable[[Path], None]
) -> None:
    root = tmp_path / "home"
    filled(root, source, commit)
    harm(root / "registry")
    with pytest.raises(Damaged, match="rebuild-registry"), Store.open(root) as store:
        for digest, _ in store.records():
            store.record(digest)


def test_nothing_to_rebuild_from(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no packs"):
        rebuild_registry(tmp_path / "nowhere")


def test_an_open_home_is_refused(tmp_path: Path, source: Path, commit: Commit) -> None:
    root = tmp_path / "home"
    filled(root, source, commit)
    with Store.open(root) as store:
        with pytest.raises(Busy, match=f"process {os.getpid()}"):
            rebuild_registry(root)
        with store.writer("a capture"), pytest.raises(Busy, match="a capture"):
            rebuild_registry(root)
    reading = subprocess.Popen(
        [sys.executable, "-c", READING, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert reading.stdout is not None
        assert reading.stdout.readline() == "open\n"
        with pytest.raises(Busy, match=f"process {reading.pid}"):
            rebuild_registry(root)
    finally:
        reading.communicate("")
    rebuild_registry(root)


READING = """
import sys
from pathlib import Path
from gpu_train_cas import Store
with Store.open(Path(sys.argv[1]), read_only=True):
    print("open", flush=True)
    sys.stdin.read()
"""


def packs_of(root: Path) -> list[Path]:
    return sorted((root / "store" / "packs").glob("??/*.pack"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


def test_packs_without_their_index_are_searched(tmp_path: Path, source: Path, commit: Commit, seen: Seen) -> None:
    root = tmp_path / "home"
    expected, digests = filled(root, source, commit)
    for path in packs_of(root):
        flip(path, path.stat().st_size - 70)
    report = rebuild_registry(root)
    assert report.packs_scanned == report.packs == len(packs_of(root))
    with Store.open(root) as store:
        assert {"records": rows(store, "records"), "jobs": rows(store, "jobs")} == expected
        store.restore(store.record(digests[0]).root, tmp_path / "out")
    assert seen(tmp_path / "out") == seen(source)


def test_a_truncated_pack_gives_what_is_whole(tmp_path: Path, source: Path, commit: Commit) -> None:
    root = tmp_path / "home"
    with Store.open(root) as store:
        digest = commit(store, source)
        first = store.reader.manifest(store.reader.lookup(store.record(digest).root, b"f")).block(0).digest
        put_row(store, b"k", {"v": 1})
    largest = max(packs_of(root), key=lambda p: p.stat().st_size)
    with PackReader(largest) as reader:
        end = next(e.end for e in reader.index() if e.header.digest == first)
    with largest.open("r+b") as f:
        f.truncate(end + 50)
    report = rebuild_registry(root)
    assert report.packs_scanned == 1
    with Store.open(root) as store:
        assert list(store.records()) == []
        assert rows(store, "jobs") == {b"k": {"v": 1}}
        assert digest_of(store.reader.block(first)) == first


@pytest.mark.parametrize("check", [False, True])
def test_a_broken_frame_is_left_out_and_the_others_stay(
    tmp_path: Path, source: Path, commit: Commit, check: bool
) -> None:
    root = tmp_path / "home"
    with Store.open(root) as store:
        digest = commit(store, source)
        root_entry = store.record(digest).root
    largest = max(packs_of(root), key=lambda p: p.stat().st_size)
    small = digest_of(b"small")
    with PackReader(largest) as reader:
        by_digest = {e.header.digest: e for e in reader.index()}
    flip(largest, by_digest[small].offset + HEADER_BYTES)
    flip(largest, by_digest[root_entry.digest].offset + HEADER_BYTES + 1)
    report = rebuild_registry(root, check=check)
    assert len(report.problems) == (2 if check else 1)
    with Store.open(root) as store:
        assert store.record(digest).root == root_entry
        assert store.verify().damaged
        with store.registry.read() as txn:
            assert not store.tables.index.has(txn, root_entry.digest)
            assert store.tables.index.has(txn, small) != check


def crafted_pack(root: Path, *frames: tuple[Kind, Digest, bytes]) -> Path:
    writer = PackWriter(root / "store" / "tmp" / f"crafted{len(packs_of(root))}")
    for kind, digest, data in frames:
        writer.add(kind, digest, len(data), encode_object(data))
    return publish(writer.seal(), root / "store" / "packs")


def test_of_two_frames_the_good_one_is_entered(tmp_path: Path) -> None:
    root = tmp_path / "home"
    with Store.open(root):
        pass
    data = os.urandom(1000)
    digest = digest_of(data)
    first = crafted_pack(root, (Kind.BLOCK, digest, data))
    flip(first, 200)
    os.utime(first, ns=(1, 1))
    crafted_pack(root, (Kind.BLOCK, digest, data), (Kind.BLOCK, digest_of(b"x"), b"x"))
    report = rebuild_registry(root, check=True)
    assert len(report.problems) == 1
    with Store.open(root) as store:
        assert store.reader.block(digest) == data


def test_rows_that_nobody_could_have_written_are_left_out(tmp_path: Path) -> None:
    root = tmp_path / "home"
    with Store.open(root):
        pass
    names = [*OWN_TABLES, "", "x" * 600, *(f"t{i}" for i in range(100))]
    frames = [RowFrame(name, b"k", 5, {"v": 1}) for name in names]
    frames += [RowFrame("jobs", b"", 5, {"v": 1}), RowFrame("jobs", b"k" * 600, 5, {"v": 1})]
    frames += [RowFrame("jobs", b"good", 1 << 62, {"v": 2}), RowFrame("jobs", b"good", 7, {"v": 1})]
    crafted_pack(root, *((Kind.ROW, *encode_row_frame(frame)) for frame in frames))
    report = rebuild_registry(root)
    assert len(report.problems) >= len(OWN_TABLES) + 4
    with Store.open(root) as store:
        assert rows(store, "jobs") == {b"good": {"v": 2}}
        assert not store.verify().damaged
        put_row(store, b"good", {"v": 3})
    rebuild_registry(root)
    with Store.open(root) as store:
        assert rows(store, "jobs") == {b"good": {"v": 3}}
