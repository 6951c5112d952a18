"""A stored directory once more with parts left out: what stays is the same blocks, and reads as it should."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_train_cas import Digest, Record, Store
from gpu_train_cas.errors import Damaged
from gpu_train_cas.formats import Cut
from gpu_train_cas.rewrite import Spliced

MIB = 1 << 20


def commit(store: Store, root) -> Digest:
    with store.transaction() as txn:
        return txn.put_record(Record("checkpoint", "job", "c", time.time_ns(), root))


def add(store: Store, path: Path) -> Digest:
    with store.writer("test") as writer:
        added = writer.add_tree(path)
        with writer.commit() as txn:
            return txn.put_record(Record("checkpoint", "job", "old", 1, added.root))


def rewrite(store: Store, record: Digest, edits: dict[bytes, Cut | None]):
    with store.writer("test") as writer:
        added = writer.add_rewritten(store.record(record).root, edits)
        with writer.commit() as txn:
            return added, txn.put_record(Record("checkpoint", "job", "new", 2, added.root))


class Bytes:
    """A stored file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, length: int, offset: int) -> bytes:
        assert offset + length <= len(self.data)
        return self.data[offset : offset + length]


@given(st.binary(max_size=60), st.sets(st.integers(0, 60)), st.binary(max_size=9), st.data())
def test_spliced_bytes_are_the_old_ones_with_holes_and_another_end(data: bytes, marks, tail: bytes, draw) -> None:
    kept = draw.draw(st.integers(0, len(data)))
    edges = sorted(m for m in marks if m <= kept)
    holes = list(zip(edges[::2], edges[1::2], strict=False))
    expected = bytearray(data[:kept])
    for start, end in holes:
        expected[start:end] = bytes(end - start)
    expected += tail
    source = Spliced(Bytes(data), Cut((), holes, kept, tail))  # type: ignore[arg-type]
    assert source.size_bytes == len(expected)
    offset = draw.draw(st.integers(0, len(expected)))
    length = draw.draw(st.integers(0, 80))
    assert source.pread(length, offset) == expected[offset : offset + length]


def test_files_and_folders_are_left_out_and_the_rest_is_not_read(store: Store, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "optimizer_0" / "deep").mkdir(parents=True)
    (top / "sub").mkdir()
    for name in ("weights.bin", "optimizer.pt", "optimizer_0/deep/x", "sub/other.bin", "sub/drop"):
        (top / name).write_bytes(os.urandom(200_000))
    (top / "link").symlink_to("weights.bin")
    os.utime(top / "sub", ns=(1, 10**18))
    old = add(store, top)
    added, new = rewrite(store, old, {b"optimizer.pt": None, b"optimizer_0": None, b"sub/drop": None})
    assert (added.new_bytes, added.files, added.size_bytes) == (0, 2, 400_000)
    root = store.record(new).root
    assert [path for path, _ in store.reader.walk(root)] == [b"link", b"sub", b"sub/other.bin", b"weights.bin"]
    before, after = (store.reader.lookup(r, b"sub") for r in (store.record(old).root, root))
    assert (after.mode, after.mtime_ns) == (before.mode, 10**18)
    told = store.forecast([old], [root])
    store.trash(old)
    report = store.gc(trash_days=0)
    assert abs(report.block_bytes - told.freed_bytes) < 4000 and told.freed_bytes > 600_000
    store.restore(root, tmp_path / "out")
    assert (tmp_path / "out" / "weights.bin").read_bytes() == (top / "weights.bin").read_bytes()
    assert (tmp_path / "out" / "sub" / "other.bin").read_bytes() == (top / "sub" / "other.bin").read_bytes()
    assert store.verify().damaged is False


@pytest.mark.parametrize("size", [3 * MIB + 17, 50_000])
def test_a_file_that_is_cut_shares_its_blocks_and_has_real_holes(
    store: Store, tmp_path: Path, safetensors, size
) -> None:
    import numpy as np

    top = tmp_path / "top"
    rng = np.random.default_rng(1)
    safetensors(top / "m.safetensors", {n: rng.integers(0, 2**16, size // 2, np.uint16) for n in ("a", "b", "c")})
    data = (top / "m.safetensors").read_bytes()
    old = add(store, top)
    entry = store.reader.lookup(store.record(old).root, b"m.safetensors")
    start = len(data) - 2 * (size // 2 * 2)
    holes = [(start, start + size // 2 * 2)]
    added, new = rewrite(store, old, {b"m.safetensors": Cut(["b"], holes, len(data) - 5, b"another end")})
    expected = data[: holes[0][0]] + bytes(holes[0][1] - holes[0][0]) + data[holes[0][1] : -5] + b"another end"
    found = store.reader.lookup(store.record(new).root, b"m.safetensors")
    file = store.reader.open(found)
    assert file.pread(len(expected), 0) == expected
    assert (found.size_bytes, found.mtime_ns, found.mode) == (len(expected), entry.mtime_ns, entry.mode)
    if size > MIB:
        assert added.new_bytes < MIB + 100_000, "only the block with the other end is new"
        assert [t.name for t in file.manifest.tensors] == ["a", "c"]
    store.restore(store.record(new).root, tmp_path / "out")
    restored = tmp_path / "out" / "m.safetensors"
    assert restored.read_bytes() == expected
    if size > MIB:
        assert restored.stat().st_blocks * 512 < len(expected) - MIB
    store.trash(old)
    store.gc(trash_days=0)
    assert store.reader.open(found).pread(len(expected), 0) == expected
    assert store.verify().damaged is False


def test_what_stays_must_be_there(store: Store, tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    for name in ("a", "b"):
        (top / name).write_bytes(os.urandom(200_000))
    old = add(store, top)
    entry = store.reader.lookup(store.record(old).root, b"a")
    block = store.reader.manifest(entry).block(0).digest
    with store.registry.write() as txn:
        store.tables.index.damaged.put(txn, block, {"v": 1, "found_ns": 1, "reason": "test"})
    with pytest.raises(Damaged, match="b'a' cannot be taken over"):
        rewrite(store, old, {b"b": None})
    rewrite(store, old, {b"a": None})
