"""Restoring: the same bytes, names, modes and times; whole or not at all; never outside the destination."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_train_cas import Digest, Entry, EntryKind, Manifest, Progress, Store, Tree
from gpu_train_cas.blocksource import BlockSource
from gpu_train_cas.codecs import encode_object
from gpu_train_cas.digest import HOLE, Kind, digest_of
from gpu_train_cas.errors import Damaged, DestinationExists, NotFound, StorageFull, UnsafeName
from gpu_train_cas.frame import FrameHeader
from gpu_train_cas.reader import Reader
from gpu_train_cas.restore import MAX_DEPTH, MAX_TASKS, restore

MIB = 1 << 20
Commit = Callable[..., Digest]
Seen = Callable[[Path], dict[bytes, tuple[object, ...]]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with one of everything that is stored."""
    top = tmp_path / "source"
    (top / "sub" / "deep" / "deeper").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "zero").touch()
    (top / "small").write_bytes(b"hello")
    (top / "large").write_bytes(os.urandom(5 * MIB + 4321))
    (top / "sub" / "text").write_text("line\n" * 400_000)
    with (top / "sub" / "sparse").open("wb") as f:
        f.seek(3 * MIB)
        f.write(b"data")
        f.truncate(9 * MIB)
    (top / "sub" / "link").symlink_to("../large")
    (top / "dangling").symlink_to("/no/such/file")
    (top / "sub" / "deep" / "script").write_bytes(b"#!/bin/sh\n")
    (top / "sub" / "deep" / "script").chmod(0o755)
    with open(os.fsencode(top) + b"/sub/n\xff\xfeme", "wb") as f:
        f.write(b"no utf-8")
    for index in range(150):
        (top / "sub" / "deep" / "deeper" / f"f{index}").write_bytes(b"%d" % index)
    os.utime(top / "large", ns=(1, 1_500_000_000_123_456_789))
    os.utime(top / "dangling", ns=(1, 1_400_000_000_000_000_007), follow_symlinks=False)
    (top / "sub" / "deep").chmod(0o500)
    (top / "empty").chmod(0o700)
    os.utime(top / "sub", ns=(1, 1_300_000_000_000_000_001))
    os.utime(top, ns=(1, 1_200_000_000_000_000_003))
    return top


def test_a_new_destination_is_the_source_again(
    store: Store, source: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    root = store.record(commit(store, source)).root
    dest = tmp_path / "made" / "on the way" / "out"
    done = store.restore(root, dest)
    assert seen(dest) == seen(source)
    assert (done.files, done.size_bytes) == (root.files, root.size_bytes)
    assert os.listdir(dest.parent) == ["out"]
    assert (dest / "sub" / "sparse").stat().st_blocks * 512 < 4 * MIB


@pytest.mark.parametrize("threads", [1, 7])
def test_with_any_number_of_threads_and_synced(
    store: Store, source: Path, tmp_path: Path, commit: Commit, seen: Seen, threads: int
) -> None:
    store.restore(store.record(commit(store, source)).root, tmp_path / "out", threads=threads, fsync=True)
    assert seen(tmp_path / "out") == seen(source)


def test_an_empty_destination_is_filled_and_stays_the_same_folder(
    store: Store, source: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    dest = tmp_path / "out"
    dest.mkdir()
    inode = dest.stat().st_ino
    store.restore(store.record(commit(store, source)).root, dest)
    assert seen(dest) == seen(source)
    assert dest.stat().st_ino == inode


def test_what_is_there_is_not_touched_unless_told(
    store: Store, source: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    root = store.record(commit(store, source)).root
    dest = tmp_path / "out"
    (dest / "sub" / "deep").mkdir(parents=True)
    (dest / "sub" / "own").write_bytes(b"mine")
    (dest / "small").write_bytes(b"old")
    (dest / "empty").write_bytes(b"a file where a folder goes")
    before = seen(dest)
    with pytest.raises(DestinationExists, match="not empty"):
        store.restore(root, dest)
    with pytest.raises(DestinationExists, match="no directory"):
        store.restore(root, dest / "small")
    assert seen(dest) == before

    store.restore(root, dest, overwrite=True)
    after = seen(dest)
    assert after.pop(b"sub/own") == before[b"sub/own"]
    assert after == seen(source)


def test_overwriting_does_not_remove_a_folder_for_a_file(
    store: Store, source: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    dest = tmp_path / "out"
    (dest / "large" / "kept").mkdir(parents=True)
    (dest / "small").write_bytes(b"old")
    before = seen(dest)
    with pytest.raises(DestinationExists, match="large"):
        store.restore(store.record(commit(store, source)).root, dest, overwrite=True)
    changed = {path for path, facts in seen(dest).items() if facts != before.get(path)}
    assert changed <= {b"."}, "only the folder's time may show that something was tried"


def test_a_part_is_restored_alone(store: Store, source: Path, tmp_path: Path, commit: Commit, seen: Seen) -> None:
    root = store.record(commit(store, source)).root
    store.restore(root, tmp_path / "part", select=b"sub/deep")
    assert seen(tmp_path / "part") == seen(source / "sub" / "deep")

    done = store.restore(root, tmp_path / "one", select=b"large")
    assert (done.files, done.size_bytes) == (1, 5 * MIB + 4321)
    assert (tmp_path / "one").read_bytes() == (source / "large").read_bytes()
    assert (tmp_path / "one").stat().st_mtime_ns == 1_500_000_000_123_456_789
    folder = tmp_path / "folder"
    folder.mkdir()
    store.restore(root, folder, select=b"sub/text")
    store.restore(root, folder, select=b"dangling")
    assert sorted(os.listdir(folder)) == ["dangling", "text"]
    assert os.readlink(folder / "dangling") == "/no/such/file"
    with pytest.raises(DestinationExists):
        store.restore(root, folder / "text", select=b"small")
    store.restore(root, folder / "text", select=b"small", overwrite=True)
    assert (folder / "text").read_bytes() == b"hello"
    with pytest.raises(NotFound, match="nowhere"):
        store.restore(root, tmp_path / "x", select=b"nowhere")
    assert not (tmp_path / "x").exists()


def test_set_id_bits_of_files_are_left_out(store: Store, tmp_path: Path, commit: Commit) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "tool").write_bytes(b"x")
    (source / "tool").chmod(0o6755)
    root = store.record(commit(store, source)).root
    assert store.reader.lookup(root, b"tool").mode == 0o6755
    store.restore(root, tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out" / "tool").stat().st_mode) == 0o755


def test_progress_comes_from_the_calling_thread_and_ends_at_the_total(
    store: Store, source: Path, tmp_path: Path, commit: Commit
) -> None:
    reports: list[tuple[int, int | None]] = []
    threads = set()

    def report(progress: Progress) -> None:
        reports.append((progress.done_bytes, progress.total_bytes))
        threads.add(threading.get_ident())

    root = store.record(commit(store, source)).root
    store.restore(root, tmp_path / "out", progress=report)
    assert reports[-1] == (root.size_bytes, root.size_bytes)
    assert threads == {threading.get_ident()}


def test_many_folders_do_not_use_up_the_descriptors(store: Store, tmp_path: Path, commit: Commit, seen: Seen) -> None:
    source = tmp_path / "source"
    for index in range(4 * MAX_TASKS):
        (source / f"d{index}").mkdir(parents=True)
        (source / f"d{index}" / "f").write_bytes(b"%d" % index)
    store.restore(store.record(commit(store, source)).root, tmp_path / "out")
    assert seen(tmp_path / "out") == seen(source)
    assert len(os.listdir("/proc/self/fd")) < MAX_TASKS


def test_a_repeated_restore_overwrites_read_only_folders(
    store: Store, source: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    root = store.record(commit(store, source)).root
    store.restore(root, tmp_path / "out")
    (tmp_path / "out" / "small").write_bytes(b"changed")
    store.restore(root, tmp_path / "out", overwrite=True)
    assert seen(tmp_path / "out") == seen(source)


# What is not restored


class Crafted:
    """A source of frames that nobody's ingest would write."""

    def __init__(self) -> None:
        self.frames: dict[Digest, tuple[FrameHeader, memoryview]] = {}

    def add(self, kind: Kind, data: bytes, digest: Digest | None = None) -> Digest:
        name = digest or digest_of(data, kind)
        encoded = encode_object(data)
        header = FrameHeader(kind, encoded.codec, name, len(data), len(encoded.payload))
        self.frames[name] = (header, memoryview(encoded.payload))
        return name

    def tree(self, *entries: Entry) -> Entry:
        digest, data = Tree(entries).encode()
        return Entry(b"", EntryKind.DIRECTORY, 0o755, 0, 0, self.add(Kind.TREE, data, digest))

    def file(self, name: bytes, data: bytes) -> Entry:
        return Entry(name, EntryKind.FILE, 0o644, 0, len(data), self.add(Kind.BLOCK, data))

    def many(self, name: bytes, *blocks: bytes | int, ends: list[int] | None = None) -> Entry:
        """A file with a manifest; a number is a hole of that length."""
        digests = b"".join(HOLE if isinstance(b, int) else self.add(Kind.BLOCK, b) for b in blocks)
        lengths = [b if isinstance(b, int) else len(b) for b in blocks]
        ends = ends or [sum(lengths[: i + 1]) for i in range(len(lengths))]
        digest, data = Manifest(ends[-1], digest_of(b""), digests, ends).encode()
        self.add(Kind.MANIFEST, data, digest)
        return Entry(name, EntryKind.FILE, 0o644, 0, ends[-1], digest_of(b""), digest)

    def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
        return self.frames.get(digest)


def named(entry: Entry, name: bytes) -> Entry:
    return Entry(name, entry.kind, entry.mode, entry.mtime_ns, entry.size_bytes, entry.digest)


@pytest.fixture
def crafted() -> Crafted:
    return Crafted()


def reading(source: BlockSource) -> Reader:
    return Reader([source])


@pytest.mark.parametrize("name", [b"..", b".", b"", b"../escaped", b"/etc/escaped", b"a/b", b"nul\0"])
def test_names_that_leave_the_folder_are_refused(crafted: Crafted, tmp_path: Path, name: bytes) -> None:
    root = crafted.tree(crafted.file(name, b"x"))
    with pytest.raises(UnsafeName):
        restore(reading(crafted), root, tmp_path / "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", [b"", b"a\0b"])
def test_links_without_a_valid_target_are_refused(crafted: Crafted, tmp_path: Path, target: bytes) -> None:
    root = crafted.tree(Entry(b"l", EntryKind.SYMLINK, 0o777, 0, 0, digest_of(target), target=target))
    with pytest.raises(UnsafeName):
        restore(reading(crafted), root, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_link_planted_at_the_destination_is_replaced_not_followed(crafted: Crafted, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_bytes(b"precious")
    dest = tmp_path / "out"
    dest.mkdir()
    (dest / "folder").symlink_to(outside)
    (dest / "victim").symlink_to(outside / "victim")
    inner = crafted.tree(crafted.file(b"victim", b"attack"))
    root = crafted.tree(named(inner, b"folder"), crafted.file(b"victim", b"attack"))
    restore(reading(crafted), root, dest, overwrite=True)
    assert (outside / "victim").read_bytes() == b"precious"
    assert not (dest / "folder").is_symlink()
    assert (dest / "folder" / "victim").read_bytes() == (dest / "victim").read_bytes() == b"attack"


def test_a_tree_of_endless_depth_is_refused(crafted: Crafted, tmp_path: Path) -> None:
    entry = crafted.tree(crafted.file(b"f", b"x"))
    for _ in range(MAX_DEPTH + 1):
        entry = crafted.tree(named(entry, b"d"))
    with pytest.raises(UnsafeName, match="deeper"):
        restore(reading(crafted), entry, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_small_tree_that_unfolds_to_more_than_any_disk_is_refused_at_once(crafted: Crafted, tmp_path: Path) -> None:
    entry = crafted.tree(crafted.file(b"f", b"x"))
    for _ in range(60):
        entry = crafted.tree(named(entry, b"a"), named(entry, b"b"))
    with pytest.raises(StorageFull, match=r"takes \d+ bytes and \d+ are free"):
        restore(reading(crafted), entry, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_holes_take_no_space_however_long(crafted: Crafted, tmp_path: Path) -> None:
    root = crafted.tree(crafted.many(b"f", b"start", 1 << 40, b"end"))
    restore(reading(crafted), root, tmp_path / "out")
    assert (tmp_path / "out" / "f").stat().st_size == (1 << 40) + 8


def test_a_file_longer_than_files_can_be_is_damaged(crafted: Crafted, tmp_path: Path) -> None:
    root = crafted.tree(crafted.many(b"f", (1 << 64) - 1))
    with pytest.raises(Damaged, match="more than a file can have"):
        restore(reading(crafted), root, tmp_path / "out")


def test_a_block_of_another_length_than_the_manifest_says_is_damaged(crafted: Crafted, tmp_path: Path) -> None:
    root = crafted.tree(crafted.many(b"f", b"x" * 100, b"y" * 100, ends=[50, 200]))
    with pytest.raises(Damaged, match=r"f: .*another length"):
        restore(reading(crafted), root, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_missing_block_names_the_file_and_leaves_nothing(crafted: Crafted, tmp_path: Path) -> None:
    large = crafted.many(b"large", *(os.urandom(MIB) for _ in range(8)))
    gone = crafted.file(b"gone", b"soon")
    del crafted.frames[gone.digest]
    locked = crafted.tree(crafted.file(b"f", b"x"))
    locked = Entry(b"locked", EntryKind.DIRECTORY, 0, 0, 0, locked.digest)
    root = crafted.tree(named(crafted.tree(gone), b"folder"), large, locked)
    with pytest.raises(NotFound, match="folder/gone"):
        restore(reading(crafted), root, tmp_path / "out")
    (tmp_path / "there").mkdir()
    with pytest.raises(NotFound, match="folder/gone"):
        restore(reading(crafted), root, tmp_path / "there")
    assert os.listdir(tmp_path) == ["there"]
    assert os.listdir(tmp_path / "there") == []


def test_a_destination_that_appears_meanwhile_is_left_alone(store: Store, tmp_path: Path, commit: Commit) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_bytes(b"x" * MIB)
    root = store.record(commit(store, source)).root
    dest = tmp_path / "out"

    def plant(_: Progress) -> None:
        dest.mkdir(exist_ok=True)
        (dest / "theirs").write_bytes(b"y")

    with pytest.raises(DestinationExists, match="meanwhile"):
        store.restore(root, dest, progress=plant)
    assert os.listdir(dest) == ["theirs"]
    assert sorted(os.listdir(tmp_path)) == ["home", "out", "source"]
