"""The store against a dict: whatever is done in whatever order, committed records and rows are there."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpu_train_cas import Bases, Digest, Entry, EntryKind, Record, Store, TensorClass, Writer, rebuild_registry
from gpu_train_cas.deltas import MAX_DEPTH

Content = dict[bytes, bytes]

NAMES = st.sampled_from([b"a", b"b", b"caf\xe9"])
PIECES = st.integers(0, 11)
"""Few different files, so that content dies and comes back; those from 6 on hold tensors that change little."""

FOLDERS = st.dictionaries(NAMES, PIECES, min_size=1, max_size=3)


@cache
def piece(number: int) -> bytes:
    return random.Random(number).randbytes(number * 30_000) if number < 6 else tensors(number - 6)


def tensors(step: int) -> bytes:
    """A safetensors file of a weight and its moments; at odd steps the moments have each other's bytes."""
    rng = np.random.default_rng(0)
    second = np.exp(rng.uniform(-40, 0, 20_000)).astype(np.float32)
    first = second * (1 + np.float32(1e-3) * rng.standard_normal(20_000, dtype=np.float32))
    weight = rng.standard_normal(20_000, dtype=np.float32)
    for _ in range(step // 2):
        weight, first, second = (a * (1 + np.float32(1e-4) * rng.random(20_000, dtype=np.float32))
                                 for a in (weight, first, second))  # fmt: skip
    if step % 2:
        first, second = second, first
    header, at = {}, 0
    for name in ("w", "o.exp_avg", "o.exp_avg_sq"):
        header[name] = {"dtype": "F32", "shape": [20_000], "data_offsets": [at, at + 80_000]}
        at += 80_000
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + weight.tobytes() + first.tobytes() + second.tobytes()


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.store = Store.open(self.base / "home")
        self.jobs = self.store.registry.table("jobs")
        self.records: dict[Digest, Content] = {}
        self.trashed: dict[Digest, Content] = {}
        self.rows: dict[bytes, int] = {}
        self.writer: Writer | None = None
        self.waiting: list[tuple[Entry, Content]] = []
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.drop_writer()
            self.store.close()
            shutil.rmtree(self.base)

    # Writing

    def source(self, folder: dict[bytes, int]) -> tuple[Path, Content]:
        path = self.base / "source"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        content = {name: piece(number) for name, number in folder.items()}
        for name, data in content.items():
            with open(bytes(path) + b"/" + name, "wb") as f:
                f.write(data)
        return path, content

    @rule(folder=FOLDERS, depth=st.integers(-1, MAX_DEPTH), data=st.data())
    def add(self, folder: dict[bytes, int], depth: int, data: st.DataObject) -> None:
        """Read something in with the writer at hand, or a new one, against any records, and commit it later."""
        if self.writer is None:
            self.writer = self.store.writer("model")
        path, content = self.source(folder)
        known = sorted({**self.records, **self.trashed})
        chosen = data.draw(st.lists(st.sampled_from(known), max_size=2)) if known else []
        bases = Bases([self.store.record(digest).root for digest in chosen], dict.fromkeys(TensorClass, depth))
        self.waiting.append((self.writer.add_tree(path, bases=bases).root, content))

    @precondition(lambda self: self.writer is not None)
    @rule(ends=st.booleans(), key=NAMES)
    def commit(self, ends: bool, key: bytes) -> None:
        assert self.writer is not None
        with self.writer.commit() as txn:
            for root, content in self.waiting:
                self.count += 1
                digest = txn.put_record(Record("checkpoint", "model", str(self.count), self.count, root))
                self.records[digest] = content
            txn.put(self.jobs, key, {"v": 1, "n": self.count}, durable=True)
        self.rows[key] = self.count
        self.waiting = []
        if ends:
            self.drop_writer()

    @precondition(lambda self: self.waiting)
    @rule()
    def fail_to_commit(self) -> None:
        assert self.writer is not None
        try:
            with self.writer.commit() as txn:
                txn.put_record(Record("checkpoint", "model", "never", 0, self.waiting[0][0]))
                txn.put(self.jobs, b"never", {"v": 1}, durable=True)
                raise InterruptedError
        except InterruptedError:
            self.drop_writer()

    @rule()
    def drop_writer(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.writer, self.waiting = None, []

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def delete_row(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.rows)))
        with self.store.transaction() as txn:
            txn.delete(self.jobs, key, durable=True)
        del self.rows[key]

    # The trash

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def trash(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from(sorted(self.records)))
        self.store.trash(digest)
        self.trashed[digest] = self.records.pop(digest)

    @precondition(lambda self: self.trashed)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from(sorted(self.trashed)))
        self.store.restore_trashed(digest)
        self.records[digest] = self.trashed.pop(digest)

    @rule(days=st.sampled_from([0, 7]))
    def gc(self, days: int) -> None:
        report = self.store.gc(trash_days=days)
        assert report.kept == []
        assert len(report.waiting) == (self.writer is not None)
        if days == 0:
            assert set(report.records) == set(self.trashed)
            self.trashed.clear()

    # Starting again

    @rule()
    def reopen(self) -> None:
        self.drop_writer()
        self.store.close()
        self.store = Store.open(self.base / "home")
        self.jobs = self.store.registry.table("jobs")

    @precondition(lambda self: any((self.base / "home" / "store" / "packs").iterdir()))
    @rule()
    def rebuild(self) -> None:
        self.drop_writer()
        self.store.close()
        report = rebuild_registry(self.base / "home")
        assert report.problems == []
        self.store = Store.open(self.base / "home")
        self.jobs = self.store.registry.table("jobs")

    # What must hold

    @rule()
    def verify(self) -> None:
        report = self.store.verify()
        assert report.complete and not report.damaged

    @invariant()
    def the_records_are_those_committed(self) -> None:
        if hasattr(self, "store"):
            assert {digest for digest, _ in self.store.records()} == set(self.records)
            assert {digest for digest, _ in self.store.records(trashed=True)} == set(self.trashed)

    @invariant()
    def the_rows_are_those_committed(self) -> None:
        if hasattr(self, "store"):
            with self.store.registry.read() as txn:
                assert {key: row["n"] for key, row in self.jobs.scan(txn)} == self.rows

    @precondition(lambda self: self.records or self.trashed)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        content = {**self.records, **self.trashed}
        digest = data.draw(st.sampled_from(sorted(content)))
        with Store.open(self.base / "home", read_only=False) as other:
            root = other.record(digest).root
            found = {
                path: other.reader.open(entry).pread(entry.size_bytes, 0)
                for path, entry in other.reader.walk(root)
                if entry.kind is EntryKind.FILE
            }
        assert found == content[digest]


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
