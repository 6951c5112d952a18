"""Garbage collection: frees what no record needs, and nothing else, whoever reads and writes meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_train_cas import Digest, Progress, Record, Store
from gpu_train_cas.codecs import Codec, Encoded
from gpu_train_cas.compaction import DEAD_SHARE, MANY_SMALL_PACKS
from gpu_train_cas.digest import Kind, digest_of
from gpu_train_cas.errors import Busy, NotFound
from gpu_train_cas.frame import HEADER_BYTES
from gpu_train_cas.index import Location
from gpu_train_cas.lease import Lease, leases
from gpu_train_cas.pack import PackWriter, publish
from gpu_train_cas.packer import Packer

MIB = 1 << 20
Commit = Callable[..., Digest]
Seen = Callable[[Path], dict[bytes, tuple[object, ...]]]


def folder(path: Path, *sizes: int) -> Path:
    path.mkdir()
    for index, size in enumerate(sizes):
        (path / f"f{index}").write_bytes(os.urandom(size))
    return path


def packs_of(store: Store) -> list[Path]:
    return sorted(store.folders.packs.glob("??/*.pack"))


def packs_bytes(store: Store) -> int:
    return sum(path.stat().st_size for path in packs_of(store))


def restored(store: Store, record: Digest, dest: Path, seen: Seen) -> dict[bytes, tuple[object, ...]]:
    store.restore(store.record(record).root, dest)
    return seen(dest)


def test_a_trashed_record_goes_after_its_days_and_its_bytes_with_it(
    store: Store, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    keep, drop = folder(tmp_path / "keep", 3 * MIB, 10), folder(tmp_path / "drop", 5 * MIB, 10)
    (drop / "shared").write_bytes((keep / "f0").read_bytes())
    kept, dropped = commit(store, keep), commit(store, drop)
    store.trash(dropped)

    early = store.gc()
    assert (early.records, early.blocks, early.freed_bytes) == ([], 0, 0)
    assert restored(store, dropped, tmp_path / "still", seen) == seen(drop)

    before = packs_bytes(store)
    report = store.gc(trash_days=0)
    assert report.records == [dropped]
    assert report.freed_bytes > 5 * MIB
    assert abs(before - packs_bytes(store) - report.freed_bytes) < 1000  # what says that it is gone takes some
    assert report.waiting == report.kept == []
    with pytest.raises(NotFound):
        store.record(dropped)
    with pytest.raises(NotFound, match="collected"):
        store.restore_trashed(dropped)
    assert restored(store, kept, tmp_path / "out", seen) == seen(keep)
    again = store.gc(trash_days=0)
    assert (again.records, again.blocks, again.packs) == ([], 0, 0)


def test_a_dry_run_changes_nothing_and_says_what_would_be(store: Store, tmp_path: Path, commit: Commit) -> None:
    commit(store, folder(tmp_path / "keep", MIB))
    dropped = commit(store, folder(tmp_path / "drop", 4 * MIB))
    store.trash(dropped)
    files = packs_of(store)
    forecast = store.gc(trash_days=0, dry_run=True)
    assert packs_of(store) == files
    assert store.record(dropped).name == "c"
    done = store.gc(trash_days=0)
    assert (forecast.records, forecast.blocks, forecast.packs) == (done.records, done.blocks, done.packs)
    assert abs(forecast.freed_bytes - done.freed_bytes) < 4096
    assert forecast.dry_run and not done.dry_run


def test_a_pack_with_little_that_is_dead_is_left(store: Store, tmp_path: Path, commit: Commit) -> None:
    both = folder(tmp_path / "both", 9 * MIB, MIB)
    first = commit(store, both)
    (both / "f1").unlink()
    commit(store, both)
    store.trash(first)
    report = store.gc(trash_days=0)
    assert report.blocks > 0
    assert report.moved_bytes == 0
    assert max(path.stat().st_size for path in packs_of(store)) > 10 * MIB
    assert MIB < report.pending_bytes < DEAD_SHARE * 10 * MIB


def test_a_pack_stays_when_its_copy_would_take_what_others_need(store: Store, tmp_path: Path, commit: Commit) -> None:
    both = folder(tmp_path / "both", 4 * MIB, 4 * MIB)
    first = commit(store, both)
    (both / "f1").unlink()
    commit(store, both)
    store.trash(first)
    gone = commit(store, folder(tmp_path / "gone", 4 * MIB))
    store.trash(gone)
    report = store.gc(trash_days=0, spare_bytes=1 << 60)
    assert report.moved_bytes == 0
    assert report.freed_bytes > 4 * MIB  # a pack of which nothing is needed goes without a copy
    assert len(report.kept) == 1
    assert "running jobs need the room that its copy would take" in report.kept[0]
    report = store.gc(trash_days=0, spare_bytes=16 * MIB)
    assert report.kept == []
    assert report.freed_bytes > 3 * MIB


def test_packs_are_not_rewritten_while_a_writer_may_rely_on_them(store: Store, tmp_path: Path, commit: Commit) -> None:
    dropped = commit(store, folder(tmp_path / "drop", 2 * MIB))
    store.trash(dropped)
    with store.writer("capture of job x"):
        report = store.gc(trash_days=0)
        assert [(w.purpose, w.pid) for w in report.waiting] == [("capture of job x", os.getpid())]
        assert report.packs == 0
        assert report.pending_bytes > 2 * MIB
    with store.writer("one that started later"):
        pass
    report = store.gc(trash_days=0)
    assert report.waiting == []
    assert report.freed_bytes > 2 * MIB


def test_a_writer_gets_back_what_was_tombstoned_under_it(
    store: Store, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    source = folder(tmp_path / "source", 2 * MIB, 100)
    dropped = commit(store, source)
    with store.writer("writer") as writer:
        added = writer.add_tree(source)
        assert added.new_bytes == 0
        store.trash(dropped)
        report = store.gc(trash_days=0)
        assert report.blocks > 0
        with writer.commit() as txn:
            digest = txn.put_record(Record("checkpoint", "job", "again", time.time_ns(), added.root))
    store.gc(trash_days=0)
    assert restored(store, digest, tmp_path / "out", seen) == seen(source)


@pytest.mark.parametrize("what", ["commit", "undo", "bare record"])
def test_a_record_that_comes_while_others_are_marked_is_safe(
    store: Store, tmp_path: Path, commit: Commit, seen: Seen, what: str
) -> None:
    source = folder(tmp_path / "source", 2 * MIB, 100)
    commit(store, folder(tmp_path / "other", 10))
    dropped = commit(store, source)
    root = store.record(dropped).root
    store.trash(dropped)
    made: list[Digest] = []

    def during(_: Progress) -> None:
        if made:
            return
        made.append(dropped)
        if what == "commit":
            made.append(commit(store, source, "again"))
        elif what == "undo":
            with pytest.raises(NotFound):  # its row went first: too late for that, in time for the others
                store.restore_trashed(dropped)
            made.append(commit(store, source, "again"))
        else:
            with store.transaction() as txn:
                made.append(txn.put_record(Record("checkpoint", "job", "bare", 1, root)))

    store.gc(trash_days=0, progress=during)
    store.gc(trash_days=0)
    assert restored(store, made[-1], tmp_path / "out", seen) == seen(source)


def test_a_record_of_a_tombstoned_root_gets_its_blocks_back(
    store: Store, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    source = folder(tmp_path / "source", 2 * MIB, 100)
    dropped = commit(store, source)
    root = store.record(dropped).root
    store.trash(dropped)
    with store.writer("holds the bytes"):
        store.gc(trash_days=0)
    with store.transaction() as txn:
        digest = txn.put_record(Record("checkpoint", "job", "bare", 1, root))
    report = store.gc(trash_days=0)
    assert report.kept == []
    assert restored(store, digest, tmp_path / "out", seen) == seen(source)


def test_only_one_runs_at_a_time(store: Store, tmp_path: Path, commit: Commit) -> None:
    commit(store, folder(tmp_path / "source", 10))
    met = []

    def during(_: Progress) -> None:
        with pytest.raises(Busy, match="another gc"):
            store.gc()
        met.append(True)

    store.gc(progress=during)
    assert met


def test_when_a_record_cannot_be_read_no_block_goes(store: Store, tmp_path: Path, commit: Commit) -> None:
    broken = commit(store, folder(tmp_path / "broken", MIB))
    dropped = commit(store, folder(tmp_path / "drop", MIB))
    tree = store.record(broken).root.digest
    location = store.packs.locate(tree)
    assert location is not None
    store.trash(dropped)
    with store.registry.read() as txn:
        name = store.tables.index.pack_name(txn, location.pack)
    assert name is not None
    path = next(p for p in packs_of(store) if p.stem == name.hex())
    flip(path, location.offset + HEADER_BYTES + location.stored_bytes // 2)
    before = packs_bytes(store)
    report = store.gc(trash_days=0)
    assert report.blocks == 0
    assert "job/c" in report.kept[0] and broken.hex()[:16] in report.kept[0]
    assert packs_bytes(store) >= before

    store.trash(broken)  # the way out, when no good copy can be found
    report = store.gc(trash_days=0)
    assert report.freed_bytes > 2 * MIB


def first_block(store: Store, record: Digest, name: bytes) -> Digest:
    entry = store.reader.lookup(store.record(record).root, name)
    return store.reader.manifest(entry).block(0).digest


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def test_a_damaged_frame_stays_where_it_is_and_the_others_move(store: Store, tmp_path: Path, commit: Commit) -> None:
    source = folder(tmp_path / "source", MIB, MIB, 3 * MIB)
    first = commit(store, source)
    (source / "f2").unlink()
    commit(store, source)
    store.trash(first)
    [old] = [p for p in packs_of(store) if p.stat().st_size > 4 * MIB]
    bad, good = (first_block(store, first, name) for name in (b"f0", b"f1"))
    location = store.packs.locate(bad)
    assert location is not None
    flip(old, location.offset + HEADER_BYTES + 5)
    report = store.gc(trash_days=0)
    assert old.exists()
    assert "not the ones that were stored" in report.kept[0]
    other = store.packs.locate(good)
    assert other is not None and other.pack != location.pack
    assert store.packs.locate(bad) == location


def test_leftovers_of_dead_writers_go_and_those_of_live_ones_stay(store: Store, tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(store.root)], check=False, capture_output=True, text=True, timeout=60
    )
    assert killed.returncode == -9, killed.stderr
    assert [lease.alive for lease in leases(store.folders.leases)] == [False]
    assert len(list(store.folders.tmp.iterdir())) == 1
    (store.folders.leases / ".0123456789abcdef").touch()

    lease = Lease(store.folders.leases, "live")
    packer = Packer(store.folders.tmp, lease.id)
    packer.add(Kind.BLOCK, digest_of(b"x"), 1, Encoded(Codec.RAW, b"x"))
    orphan = PackWriter(tmp_path / "orphan")
    orphan.add(Kind.BLOCK, digest_of(b"y"), 1, Encoded(Codec.RAW, b"y"))
    lost = publish(orphan.seal(), store.folders.packs)
    report = store.gc()
    assert report.freed_bytes > 300
    assert not lost.exists()
    assert [path.name.split(".")[0] for path in store.folders.tmp.iterdir()] == [lease.id]
    assert os.listdir(store.folders.leases) == [f"{lease.id}.lease"]
    packer.discard()
    lease.release()


KILLED = """
import os, signal, sys
from pathlib import Path
from gpu_train_cas import Store
root = Path(sys.argv[1])
source = root.parent / "killed"
source.mkdir()
(source / "f").write_bytes(os.urandom(100_000))
writer = Store.open(root).writer("killed")
writer.add_tree(source)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_base_of_a_live_delta_is_live(store: Store, tmp_path: Path, commit: Commit) -> None:
    base = folder(tmp_path / "base", 1000)
    dropped = commit(store, base)
    kept = commit(store, folder(tmp_path / "kept", 500))
    delta = digest_of((tmp_path / "kept" / "f0").read_bytes())
    wanted = digest_of((base / "f0").read_bytes())
    with store.registry.write() as txn:
        at = store.tables.index.get(txn, delta)
        assert at is not None
        based = Location(at.pack, at.offset, at.stored_bytes, at.length, at.codec, at.kind, wanted)
        store.tables.index.put(txn, delta, based)
    store.trash(dropped)
    store.gc(trash_days=0)
    assert store.packs.locate(wanted) is not None
    store.trash(kept)
    store.gc(trash_days=0)
    assert store.packs.locate(wanted) is None


def test_many_small_packs_become_one(store: Store) -> None:
    jobs = store.registry.table("jobs")
    for index in range(MANY_SMALL_PACKS):
        with store.transaction() as txn:
            txn.put(jobs, b"%d" % index, {"v": 1, "n": index}, durable=True)
    assert len(packs_of(store)) == MANY_SMALL_PACKS
    report = store.gc()
    assert report.packs == MANY_SMALL_PACKS
    assert len(packs_of(store)) == 1
    with store.registry.read() as txn:
        frames = dict(store.tables.row_frames.scan_bytes(txn))
    assert all(store.reader.object(Digest(digest), Kind.ROW) for digest in frames.values())


def test_superseded_rows_are_garbage(store: Store) -> None:
    jobs = store.registry.table("jobs")
    for index in range(10):
        with store.transaction() as txn:
            txn.put(jobs, b"k", {"v": 1, "n": index}, durable=True)
    report = store.gc()
    assert report.blocks == 9
    assert len(packs_of(store)) == 1


def test_reading_goes_on_while_packs_are_replaced(store: Store, tmp_path: Path, commit: Commit) -> None:
    source = folder(tmp_path / "source", 2 * MIB, 3 * MIB)
    first = commit(store, source)
    (source / "f1").unlink()
    second = commit(store, source)
    with Store.open(store.root) as other:
        file = other.reader.open(other.reader.lookup(other.record(second).root, b"f0"))
        start = file.pread(100, 0)
        store.trash(first)
        assert store.gc(trash_days=0).packs >= 1
        assert start + file.pread(2 * MIB, 100) == (source / "f0").read_bytes()


WORKER = """
import os, random, sys, time
from pathlib import Path
from gpu_train_cas import Record, Store
from gpu_train_cas.errors import Damaged
root, seed, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
rng = random.Random(seed)
source = root.parent / f"source{seed}"
source.mkdir()
store = Store.open(root)
mine = {}
ends = time.monotonic() + seconds
count = retried = 0

def check(digest):
    top = store.record(digest).root
    for name, data in mine[digest].items():
        file = store.reader.open(store.reader.lookup(top, name))
        assert file.pread(file.size_bytes, 0) == data, name

while time.monotonic() < ends or count < 20:
    count += 1
    # A small pool of contents, shared by all workers: they keep dying and coming back.
    files = {b"f%d" % i: random.Random(rng.randrange(12)).randbytes(30_000) for i in range(3)}
    for name, data in files.items():
        (source / name.decode()).write_bytes(data)
    with store.writer(f"worker {seed}") as writer:
        added = writer.add_tree(source)
        if rng.random() < 0.1:
            continue
        with writer.commit() as txn:
            digest = txn.put_record(Record("checkpoint", str(seed), str(count), time.time_ns(), added.root))
    mine[digest] = files
    check(rng.choice(list(mine)))
    if len(mine) > 3:
        gone = rng.choice(list(mine))
        check(gone)
        del mine[gone]
        store.trash(gone)
for digest in mine:
    check(digest)
print(count)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test starts; those still running when it ends, because it failed, are ended."""
    workers: list[subprocess.Popen[str]] = []
    yield workers
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
        worker.communicate()


@pytest.mark.parametrize("seconds", [4.0, pytest.param(120.0, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_writers_readers_and_gc_in_several_processes(
    store: Store, seconds: float, started: list[subprocess.Popen[str]]
) -> None:
    for seed in range(3):
        command = [sys.executable, "-c", WORKER, str(store.root), str(seed), str(seconds)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    rounds = packs = 0
    while any(worker.poll() is None for worker in started):
        report = store.gc(trash_days=0)
        assert report.kept == []
        rounds += 1
        packs += report.packs
    for worker in started:
        out, err = worker.communicate()
        assert worker.returncode == 0, err
        assert int(out) >= 20
    assert rounds > 3 and packs > 0
    store.gc(trash_days=0)
    for digest, record in store.records():
        for _, entry in store.reader.walk(record.root):
            assert len(store.reader.open(entry).pread(entry.size_bytes, 0)) == entry.size_bytes, digest
