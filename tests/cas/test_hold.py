"""What is being read is not collected, whoever removes it, and is as soon as nobody reads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpu_train_cas import Digest, Store
from gpu_train_cas.errors import NotFound
from gpu_train_cas.hold import holds
from gpu_train_cas.transaction import LEAVING

Commit = Callable[..., Digest]


@pytest.fixture
def record(store: Store, tmp_path: Path, commit: Commit) -> Digest:
    """A record of one file that nothing else has."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(os.urandom(300_000))
    return commit(store, tmp_path / "folder")


def content(store: Store, record: Digest) -> bytes:
    [entry] = store.reader.tree(store.record(record).root.digest).entries
    return store.reader.open(entry).pread(entry.size_bytes, 0)


def test_gc_leaves_what_is_read_in_the_trash(store: Store, record: Digest, tmp_path: Path) -> None:
    other = Store.open(store.root, read_only=True)
    with ExitStack() as reading:
        reading.enter_context(other)
        root = reading.enter_context(other.reading(record, "a test")).root
        with store.reading(record):
            assert {(h.record, h.pid) for h in holds(store.folders.holds)} == {(record, os.getpid())}
        store.trash(record)
        assert store.gc(trash_days=0, dry_run=True).records == []
        report = store.gc(trash_days=0)
        assert (report.records, report.blocks) == ([], 0)
        assert report.kept == [f"record {record.hex()[:16]} stays in the trash: a test (pid {os.getpid()}) reads it"]
        other.restore(root, tmp_path / "out")
        assert (tmp_path / "out" / "file").read_bytes() == (tmp_path / "folder" / "file").read_bytes()
        store.restore_trashed(record)
        store.trash(record)
    assert list(store.folders.holds.iterdir()) == []
    assert store.gc(trash_days=0).records == [record]
    with pytest.raises(NotFound, match="collected"), store.holding(record):
        pass
    assert list(store.folders.holds.iterdir()) == []


def test_a_record_is_held_once_however_often_it_is_read(store: Store, record: Digest) -> None:
    with store.holding(record), store.holding(record, "more"):
        assert len(list(holds(store.folders.holds))) == 1
        with pytest.raises(ZeroDivisionError), store.holding(record):
            raise ZeroDivisionError
        assert len(list(holds(store.folders.holds))) == 1
    assert list(holds(store.folders.holds)) == []


def test_a_killed_reader_holds_nothing(store: Store, record: Digest) -> None:
    code = (
        "import sys; from pathlib import Path; from gpu_train_cas import Digest, Store\n"
        f"with Store.open(Path({str(store.root)!r})) as store:\n"
        f"    with store.holding(Digest(bytes.fromhex({record.hex()!r})), 'doomed'):\n"
        "        print(flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        store.trash(record)
        assert [(hold.pid, hold.purpose) for hold in holds(store.folders.holds)] == [(child.pid, "doomed")]
        assert store.gc(trash_days=0).records == []
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert len(list(store.folders.holds.iterdir())) == 1
    assert store.gc(trash_days=0).records == [record]
    assert list(store.folders.holds.iterdir()) == []


def test_what_a_gc_is_about_to_take_cannot_be_held_but_taken_back(store: Store, record: Digest) -> None:
    def leave() -> None:
        """As a gc leaves it that is killed after its announcement."""
        store.trash(record)
        with store.registry.write() as txn:
            row = store.tables.records.get(txn, record)
            assert row is not None
            store.tables.records.put(txn, record, row | {LEAVING: True})

    leave()
    with pytest.raises(NotFound, match="collected"), store.holding(record):
        pass
    store.restore_trashed(record)
    with store.holding(record):
        assert len(content(store, record)) == 300_000
    leave()
    with store.transaction() as txn:
        txn.put_record(store.record(record))
    with store.holding(record):
        pass
    leave()
    store.gc()  # its days are not over
    store.restore_trashed(record)
    leave()
    assert store.gc(trash_days=0).records == [record]


def test_a_reader_that_came_in_time_reads_to_the_end(store: Store, tmp_path: Path, commit: Commit) -> None:
    """Whoever was let in while a gc began can read all of it once the gc has ended."""
    with Store.open(store.root) as own:
        for number in range(40):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "file").write_bytes(os.urandom(50_000))
            record = commit(store, tmp_path / str(number))
            start, collected = threading.Barrier(2), threading.Event()

            def read(
                record: Digest = record, start: threading.Barrier = start, collected: threading.Event = collected
            ) -> int:
                start.wait()
                try:
                    with own.reading(record):
                        collected.wait()
                        return len(content(own, record))
                except NotFound as e:
                    assert "may have been collected" in str(e)
                    return 0

            store.trash(record)
            with ThreadPoolExecutor(1) as pool:
                reader = pool.submit(read)
                try:
                    start.wait()
                    report = store.gc(trash_days=0)
                finally:
                    collected.set()
                assert (reader.result(), report.records) in ((50_000, []), (0, [record]))
            store.gc(trash_days=0)


def test_reading_goes_on_where_nothing_can_be_held(store: Store, record: Digest) -> None:
    store.folders.holds.write_text("in the way")
    with store.reading(record):
        assert len(content(store, record)) == 300_000
