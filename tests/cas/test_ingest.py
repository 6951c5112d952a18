"""Bringing files in and reading them back: bit for bit, each block once, nothing before the commit."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpu_train_cas import Added, Entry, EntryKind, Progress, Record, Store, reserve
from gpu_train_cas.digest import Digest, digest_of
from gpu_train_cas.errors import NotFound, SourceChanged, UsageError
from gpu_train_cas.lease import leases

MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home") as store:
        yield store


def put(store: Store, path: Path, name: str = "c") -> tuple[Digest, Added]:
    with store.writer("test") as writer:
        added = writer.add_tree(path) if path.is_dir() else writer.add_file(path)
        with writer.commit() as txn:
            digest = txn.put_record(Record("checkpoint", "job", name, time.time_ns(), added.root))
    return digest, added


def content(store: Store, root: Entry) -> dict[bytes, bytes]:
    return {
        path: store.reader.open(e).pread(e.size_bytes, 0)
        for path, e in store.reader.walk(root)
        if e.kind is EntryKind.FILE
    }


def weights(count: int, seed: int = 0) -> bytes:
    floats = np.random.default_rng(seed).standard_normal(count, dtype=np.float32) * 0.02
    return floats.tobytes()


def test_everything_that_a_folder_can_hold_comes_back(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    (source / "empty folder").mkdir(parents=True)
    (source / "sub" / "deep").mkdir(parents=True)
    (source / "zero").touch()
    (source / "small").write_bytes(b"hello")
    (source / "sub" / "large").write_bytes(os.urandom(3 * MIB + 17))
    (source / "sub" / "deep" / "weights").write_bytes(weights(MIB))
    (source / "sub" / "link").symlink_to("../no/such/place")
    with open(os.fsencode(source) + b"/na\xffme", "wb") as f:
        f.write(b"no utf-8")
    (source / "small").chmod(0o4751)
    os.utime(source / "small", ns=(1, 1_600_000_000_123_456_789))
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(source / "socket"))
    os.mkfifo(source / "fifo")

    digest, added = put(store, source)
    root = store.record(digest).root
    assert added.skipped == [b"fifo", b"socket"]
    assert (added.files, root.files) == (5, 5)
    assert content(store, root) == {
        os.fsencode(p.relative_to(source)): p.read_bytes()
        for p in source.rglob("*")
        if p.is_file() and not p.is_symlink()
    }
    small = store.reader.lookup(root, b"small")
    assert (small.mode, small.mtime_ns) == (0o4751, 1_600_000_000_123_456_789)
    link = store.reader.lookup(root, b"sub/link")
    assert (link.kind, link.target) == (EntryKind.SYMLINK, b"../no/such/place")
    assert store.reader.lookup(root, b"empty folder").kind is EntryKind.DIRECTORY
    with pytest.raises(NotFound, match="sub/nothing"):
        store.reader.lookup(root, b"sub/nothing/below")
    with pytest.raises(NotFound):
        store.reader.open(link)


def test_the_same_content_is_stored_once(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(os.urandom(4 * MIB))
    (source / "twin").write_bytes((source / "a").read_bytes())
    first, added = put(store, source)
    assert added.new_bytes == 4 * MIB
    second, again = put(store, source)
    assert (again.new_bytes, again.stored_bytes) == (0, 0)
    assert again.root == added.root
    assert first != second
    assert store.stats().unique_bytes == 4 * MIB
    assert store.stats().original_bytes == 16 * MIB


def test_the_same_tensor_in_a_renamed_file_with_another_header_dedups(tmp_path: Path, store: Store) -> None:
    import json

    body = weights(2 * MIB)

    def safetensors(path: Path, note: str) -> None:
        header = json.dumps({
            "__metadata__": {"note": note},
            "w": {"dtype": "F32", "shape": [2 * MIB], "data_offsets": [0, len(body)]},
        }).encode()  # fmt: skip
        path.write_bytes(len(header).to_bytes(8, "little") + header + body)

    source = tmp_path / "source"
    source.mkdir()
    safetensors(source / "a.safetensors", "x")
    put(store, source)
    (source / "a.safetensors").unlink()
    safetensors(source / "b.safetensors", "quite another note, of another length")
    _, added = put(store, source)
    assert added.new_bytes < 4096
    entry = store.reader.lookup(added.root, b"b.safetensors")
    (tensor,) = store.reader.manifest(entry).tensors
    assert (tensor.name, tensor.dtype, tensor.shape) == ("w", "F32", (2 * MIB,))


def test_a_files_digest_is_plain_blake3_and_an_empty_file_has_no_block(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    data = os.urandom(5 * MIB)
    (source / "f").write_bytes(data)
    (source / "e").touch()
    _, added = put(store, source)
    assert store.reader.lookup(added.root, b"f").digest == digest_of(data)
    empty = store.reader.lookup(added.root, b"e")
    assert empty.digest == digest_of(b"")
    assert store.reader.open(empty).pread(10, 0) == b""


def test_a_single_file_becomes_a_folder_of_one(tmp_path: Path, store: Store) -> None:
    (tmp_path / "ckpt.pt").write_bytes(b"state")
    digest, _ = put(store, tmp_path / "ckpt.pt")
    assert content(store, store.record(digest).root) == {b"ckpt.pt": b"state"}


def test_holes_are_not_read_and_not_stored(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with open(source / "sparse", "wb") as f:
        f.truncate(1 << 30)
        f.seek(512 * MIB + 5)
        f.write(b"island")
    with open(source / "all hole", "wb") as f:
        f.truncate(64 * MIB)
    _, added = put(store, source)
    assert added.new_bytes < MIB
    sparse = store.reader.open(store.reader.lookup(added.root, b"sparse"))
    assert sparse.pread(20, 512 * MIB) == b"\0" * 5 + b"island" + b"\0" * 9
    assert sparse.pread(100, (1 << 30) - 7) == bytes(7)
    hole = store.reader.lookup(added.root, b"all hole")
    assert hole.digest == digest_of(bytes(64 * MIB))
    assert store.reader.open(hole).pread(9, MIB) == bytes(9)


@pytest.mark.parametrize("seed", range(3))
def test_any_range_of_a_file_can_be_read(tmp_path: Path, store: Store, seed: int) -> None:
    source = tmp_path / "source"
    source.mkdir()
    data = weights(MIB + 999, seed) + os.urandom(2 * MIB + 1) + bytes(MIB)
    (source / "f").write_bytes(data)
    _, added = put(store, source)
    file = store.reader.open(store.reader.lookup(added.root, b"f"))
    rng = np.random.default_rng(seed)
    for _ in range(200):
        offset = int(rng.integers(0, len(data) + 10))
        length = int(rng.integers(0, 1 << int(rng.integers(1, 22))))
        assert file.pread(length, offset) == data[offset : offset + length]
        buffer = bytearray(length)
        assert bytes(buffer[: file.readinto(buffer, offset)]) == data[offset : offset + length]


def test_threads_may_share_a_file(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    data = os.urandom(8 * MIB)
    (source / "f").write_bytes(data)
    _, added = put(store, source)
    file = store.reader.open(store.reader.lookup(added.root, b"f"))
    wrong: list[int] = []

    def read(start: int) -> None:
        wrong.extend(at for at in range(start, len(data), 300_000) if file.pread(5000, at) != data[at : at + 5000])

    threads = [threading.Thread(target=read, args=(i * 1000,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_nothing_is_visible_before_the_commit_and_nothing_is_left_without_it(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_bytes(os.urandom(2 * MIB))
    with store.writer("test") as writer:
        added = writer.add_tree(source)
        (lease,) = leases(store.folders.leases)
        assert (lease.alive, lease.purpose) == (True, "test")
        with pytest.raises(NotFound):
            store.reader.tree(added.root.digest)
    with pytest.raises(ZeroDivisionError), store.writer("test") as writer:
        writer.add_tree(source)
        with writer.commit() as txn:
            txn.put_record(Record("checkpoint", "job", "c", 0, added.root))
            raise ZeroDivisionError
    assert list(store.records()) == []
    assert list(leases(store.folders.leases)) == []
    assert [p.name for p in (store.root / "store").rglob("*") if p.is_file()] == [reserve.NAME]


def test_a_writer_can_commit_more_than_once(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with store.writer("test") as writer:
        for i in range(3):
            (source / f"f{i}").write_bytes(os.urandom(MIB))
            added = writer.add_tree(source)
            with writer.commit() as txn:
                txn.put_record(Record("checkpoint", "job", str(i), i, added.root))
            assert added.new_bytes == MIB
    assert [r.name for _, r in sorted(store.records(), key=lambda x: x[1].name)] == ["0", "1", "2"]
    assert len(content(store, added.root)) == 3


def test_a_file_that_changes_while_it_is_read_is_no_checkpoint(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    big = source / "big"
    big.write_bytes(os.urandom(40 * MIB))

    def shrink(progress: Progress) -> None:
        if progress.done_bytes:
            os.truncate(big, MIB)

    def touch(progress: Progress) -> None:
        if progress.done_bytes:
            with open(big, "r+b") as f:
                f.write(os.urandom(8))

    for change in (touch, shrink):
        with store.writer("test") as writer, pytest.raises(SourceChanged, match="big"):
            writer.add_tree(source, progress=change)
    assert list(store.records()) == []


def test_folders_nested_beyond_reason_are_refused(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    fd = os.open(source, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    with store.writer("test") as writer, pytest.raises(UsageError, match="deeper than"):
        writer.add_tree(source)


def test_excluded_names_are_left_out_whole(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    (source / "cache" / "below").mkdir(parents=True)
    (source / "cache" / "below" / "f").write_bytes(b"x")
    (source / "keep").write_bytes(b"y")
    asked: list[tuple[bytes, bool]] = []

    def exclude(path: bytes, is_dir: bool) -> bool:
        asked.append((path, is_dir))
        return path == b"cache"

    with store.writer("test") as writer:
        added = writer.add_tree(source, exclude=exclude)
        with writer.commit() as txn:
            txn.put_record(Record("code", "", "v", 0, added.root))
    assert asked == [(b"cache", True), (b"keep", False)]
    assert content(store, added.root) == {b"keep": b"y"}


class Remembering:
    """A cache that trusts size and mtime, to see what the writer does with it."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[int, int, Digest, Digest | None]] = {}
        self.hits = 0

    def lookup(self, path: bytes, found: os.stat_result) -> tuple[Digest, Digest | None] | None:
        size, mtime, digest, manifest = self.known.get(path, (-1, -1, Digest(b""), None))
        if (size, mtime) != (found.st_size, found.st_mtime_ns):
            return None
        self.hits += 1
        return digest, manifest

    def remember(self, path: bytes, found: os.stat_result, digest: Digest, manifest: Digest | None) -> None:
        self.known[path] = (found.st_size, found.st_mtime_ns, digest, manifest)


def test_a_cache_saves_reading_but_is_not_believed_about_what_is_stored(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "small").write_bytes(b"abc")
    (source / "large").write_bytes(os.urandom(4 * MIB))
    cache = Remembering()

    def add(into: Store) -> Added:
        with into.writer("test") as writer:
            added = writer.add_tree(source, cache=cache)
            with writer.commit() as txn:
                txn.put_record(Record("code", "", "v", 0, added.root))
        return added

    first = add(store)
    second = add(store)
    assert cache.hits == 2
    assert (second.root, second.new_bytes) == (first.root, 0)
    with Store.open(tmp_path / "other") as other:
        third = add(other)
        assert third.new_bytes == 3 + 4 * MIB
        assert content(other, third.root) == content(store, first.root)


def test_progress_ends_with_all_that_was_read(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_bytes(os.urandom(3 * MIB))
    (source / "b").write_bytes(b"x")
    seen: list[tuple[int, int, int]] = []
    with store.writer("test") as writer:
        writer.add_tree(source, progress=lambda p: seen.append((p.done_bytes, p.files_done, p.new_bytes)))
    assert seen[-1] == (3 * MIB + 1, 2, 3 * MIB + 1)
    assert seen == sorted(seen)


def test_a_store_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="GPU_TRAIN_HOME"):
        Store.open(tmp_path / "none", create=False)
    with pytest.raises(NotFound):
        Store.open(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


def test_modes_of_the_source_do_not_matter_to_reading_but_are_kept(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_bytes(b"x")
    (source / "f").chmod(0o400)
    source.chmod(0o500)
    _, added = put(store, source)
    assert stat.S_IMODE(source.stat().st_mode) == added.root.mode == 0o500
    assert store.reader.lookup(added.root, b"f").mode == 0o400
