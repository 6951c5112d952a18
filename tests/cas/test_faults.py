"""Bad disks, bad homes, bad packs: a clear error or a recovery, never a wrong byte, never a lost record."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_train_cas import Digest, Record, Store, rebuild_registry
from gpu_train_cas.codecs import encode_object
from gpu_train_cas.digest import Kind
from gpu_train_cas.errors import Damaged, GpuTrainError, NotFound, ReadOnly, StorageFull, UnsafeName, UnsupportedHome
from gpu_train_cas.filesystem import check_fit
from gpu_train_cas.pack import PackReader, PackWriter, publish
from gpu_train_cas.tree import Entry, EntryKind, Tree

MIB = 1 << 20
Commit = Callable[..., Digest]
Seen = Callable[[Path], dict[bytes, tuple[object, ...]]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    top.mkdir()
    (top / "f").write_bytes(os.urandom(MIB))
    (top / "g").write_bytes(b"small")
    return top


# Full disks


def mount(kind: str, point: Path, options: str) -> None:
    point.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", kind, "-o", options, kind, str(point)], check=False, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"{kind} cannot be mounted here: {done.stderr.decode().strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB, and the home on it."""
    point = tmp_path / "disk"
    mount("tmpfs", point, "size=24m")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Take all the room but some."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(bytes(64 << 10))
    if leave:
        os.truncate(ballast, max(0, ballast.stat().st_size - leave))
    return ballast


def check_records(store: Store, records: dict[Digest, Path], out: Path, seen: Seen) -> None:
    report = store.verify()
    assert report.complete and not report.damaged
    assert set(records) <= {digest for digest, _ in store.records()}
    for digest, source in records.items():
        store.restore(store.record(digest).root, out / digest.hex()[:8])
        assert seen(out / digest.hex()[:8]) == seen(source)
    shutil.rmtree(out)


def test_an_ingest_on_a_full_disk_fails_clearly_and_works_later(
    small_disk: Path, source: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    big = tmp_path / "big"
    big.mkdir()
    (big / "f").write_bytes(os.urandom(4 * MIB))
    with Store.open(small_disk / "home") as store:
        records = {commit(store, source): source}
        ballast = fill(small_disk, leave=2 * MIB)
        with pytest.raises(StorageFull, match="no space left"):
            commit(store, big, "big")
        assert list(store.folders.tmp.iterdir()) == []
        check_records(store, records, tmp_path / "out", seen)
        ballast.unlink()
        records[commit(store, big, "big")] = big
        check_records(store, records, tmp_path / "out", seen)


def test_what_fails_on_a_full_disk_leaves_nothing_behind(small_disk: Path, source: Path, commit: Commit) -> None:
    """A capture tries again and again: no attempt may leave a file, an open one, or a lease that gc would wait for."""
    with Store.open(small_disk / "home") as store:
        jobs = store.registry.table("jobs")
        commit(store, source)
        ballast = fill(small_disk)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(StorageFull):
                commit(store, source, "again")
            with pytest.raises(StorageFull), store.transaction() as txn:
                txn.put(jobs, b"job", {"v": 1}, durable=True)
        assert len(os.listdir("/proc/self/fd")) == before
        assert list(store.folders.tmp.iterdir()) == []
        assert list(store.folders.leases.iterdir()) == []
        ballast.unlink()
        assert store.gc().waiting == []


def test_commits_with_less_and_less_room(small_disk: Path, tmp_path: Path, commit: Commit, seen: Seen) -> None:
    """The disk gets full at every stage of a commit; what was committed stays, what was not is not there."""
    sources = []
    for index in range(12):
        folder = tmp_path / f"s{index}"
        folder.mkdir()
        (folder / "f").write_bytes(os.urandom(20_000))
        sources.append(folder)
    with Store.open(small_disk / "home") as store:
        records = {commit(store, sources[0]): sources[0]}
        jobs = store.registry.table("jobs")
        failed = 0
        for index, left in enumerate(range(0, 88 << 10, 8 << 10)):
            ballast = fill(small_disk, leave=left)
            try:
                records[commit(store, sources[index + 1], f"c{index}")] = sources[index + 1]
            except StorageFull:
                failed += 1
            try:
                with store.transaction() as txn:
                    txn.put(jobs, b"%d" % index, {"v": 1}, durable=True)
            except StorageFull:
                failed += 1
            ballast.unlink()
            assert {digest for digest, _ in store.records()} == set(records)
        assert 2 <= failed < 22, "some must fail and some must not"
        check_records(store, records, tmp_path / "out", seen)
        store.gc()
    with Store.open(small_disk / "home") as store:
        check_records(store, records, tmp_path / "out", seen)


def test_a_restore_that_does_not_fit_writes_nothing(
    small_disk: Path, source: Path, tmp_path: Path, commit: Commit, store: Store
) -> None:
    (source / "large").write_bytes(os.urandom(30 * MIB))
    root = store.record(commit(store, source)).root
    with pytest.raises(StorageFull, match=r"takes \d+ bytes and \d+ are free"):
        store.restore(root, small_disk / "out")
    assert os.listdir(small_disk) == []


def test_a_restore_that_runs_out_of_room_on_the_way_leaves_nothing(
    small_disk: Path, source: Path, commit: Commit, store: Store
) -> None:
    (source / "large").write_bytes(os.urandom(12 * MIB))
    root = store.record(commit(store, source)).root
    taken: list[Path] = []

    def during(_: object) -> None:
        if not taken:
            taken.append(fill(small_disk))

    with pytest.raises(StorageFull):
        store.restore(root, small_disk / "out", progress=during, threads=1)
    assert os.listdir(small_disk) == ["ballast"]


def test_gc_on_a_nearly_full_disk_frees_what_it_can(
    small_disk: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    keep, drop, both = (tmp_path / name for name in ("keep", "drop", "both"))
    for folder, size in ((keep, 2 * MIB), (drop, 6 * MIB)):
        folder.mkdir()
        (folder / folder.name).write_bytes(os.urandom(size))
    shutil.copytree(keep, both)
    (both / "half").write_bytes(os.urandom(3 * MIB))
    with Store.open(small_disk / "home") as store:
        halved = commit(store, both, "both")
        records = {commit(store, keep, "keep"): keep}
        dropped = commit(store, drop, "drop")
        store.trash(halved)
        store.trash(dropped)
        ballast = fill(small_disk, leave=300_000)
        report = store.gc(trash_days=0)
        assert report.freed_bytes > 6 * MIB, "a pack of which nothing lives needs no room to go"
        check_records(store, records, tmp_path / "out", seen)
        ballast.unlink()
        store.gc(trash_days=0)
        assert sum(p.stat().st_size for p in store.folders.packs.glob("??/*")) < 3 * MIB
        check_records(store, records, tmp_path / "out", seen)


def test_gc_on_a_full_disk_frees_space_and_a_rebuild_loses_nothing(
    small_disk: Path, source: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    home = small_disk / "home"
    other = tmp_path / "other"
    other.mkdir()
    (other / "f").write_bytes(os.urandom(6 * MIB))
    reserve = home / "store" / "reserve"
    with Store.open(home) as store:
        records = {commit(store, source): source}
        store.trash(commit(store, other, "gone"))
        assert reserve.stat().st_blocks * 512 >= 4 * MIB, "it must be real blocks"
        ballast = fill(small_disk)
    with pytest.raises(StorageFull):
        rebuild_registry(home)
    assert sorted(os.listdir(home)) == ["registry", "store"]
    with Store.open(home) as store:
        with pytest.raises(StorageFull):
            commit(store, other, "again")
        report = store.gc(trash_days=0)
        assert len(report.records) == 1
        assert report.freed_bytes > 6 * MIB
        assert shutil.disk_usage(small_disk).free > 6 * MIB
        check_records(store, records, tmp_path / "out", seen)
        assert not reserve.exists(), "there is not room enough for it again"
        ballast.unlink()
        store.gc()
        assert reserve.stat().st_blocks * 512 >= 4 * MIB
        check_records(store, records, tmp_path / "out", seen)


def test_gc_on_a_full_disk_buries_many_blocks_by_small_batches(
    small_disk: Path, source: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for index in range(6000):
        (other / str(index)).write_bytes(b"%d" % index)
    with Store.open(small_disk / "home") as store:
        records = {commit(store, source): source}
        store.trash(commit(store, other, "gone"))
        (store.root / "store" / "reserve").unlink()
        fill(small_disk, leave=800_000)
        report = store.gc(trash_days=0)
        assert report.blocks > 6000
        check_records(store, records, tmp_path / "out", seen)


def test_a_gc_that_has_no_room_does_not_advise_gc(small_disk: Path, source: Path, commit: Commit) -> None:
    with Store.open(small_disk / "home") as store:
        store.trash(commit(store, source))
        (store.root / "store" / "reserve").unlink()
        fill(small_disk)
        with pytest.raises(StorageFull, match="remove something else") as caught:
            store.gc(trash_days=0)
        assert "gpu-train gc" not in str(caught.value)


# Homes that cannot be written, or not be used


def test_a_read_only_home_reads_and_refuses_to_write(
    small_disk: Path, source: Path, tmp_path: Path, commit: Commit, seen: Seen
) -> None:
    home = small_disk / "home"
    with Store.open(home) as store:
        records = {commit(store, source): source}
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(ReadOnly):
        Store.open(home)
    with Store.open(home, read_only=True) as store:
        check_records(store, records, tmp_path / "out", seen)
        assert store.gc(dry_run=True).blocks == 0
        for write in (lambda: store.gc(), lambda: commit(store, source, "x"), lambda: store.trash(next(iter(records)))):
            with pytest.raises(ReadOnly):
                write()
    with pytest.raises(ReadOnly):
        rebuild_registry(home)
    with pytest.raises(ReadOnly), Store.open(tmp_path / "other") as other:
        digest = commit(other, source)
        other.restore(other.record(digest).root, small_disk / "out")


@pytest.mark.parametrize("kind", ["nfs4", "nfs", "cifs", "fuse.sshfs", "fuse", "9p", "lustre"])
def test_a_home_on_a_network_filesystem_is_refused(tmp_path: Path, kind: str) -> None:
    table = tmp_path / "mountinfo"
    near = "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
    table.write_text(f"{near}36 22 0:40 / {tmp_path}/far rw,relatime shared:1 - {kind} server:/x rw\n")
    with pytest.raises(UnsupportedHome, match=f"{kind}.*GPU_TRAIN_HOME"):
        check_fit(tmp_path / "far" / "home", table)
    check_fit(tmp_path / "near" / "home", table)


EMPTY_FILESYSTEM = """
import errno, stat, sys, mfusepy

class Empty(mfusepy.Operations):
    def getattr(self, path, fh=None):
        if path != "/":
            raise mfusepy.FuseOSError(errno.ENOENT)
        return {"st_mode": stat.S_IFDIR | 0o777, "st_nlink": 2}

mfusepy.FUSE(Empty(), sys.argv[1], foreground=True)
"""


@pytest.fixture
def fuse_mount(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "mnt"
    point.mkdir()
    if not Path("/dev/fuse").exists() or shutil.which("fusermount3") is None:
        pytest.skip("FUSE cannot be had")
    process = subprocess.Popen([sys.executable, "-c", EMPTY_FILESYSTEM, str(point)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while process.poll() is None and not point.is_mount() and time.monotonic() < deadline:
        time.sleep(0.02)
    mounted = point.is_mount()
    if mounted:
        yield point
        subprocess.run(["fusermount3", "-u", str(point)], check=True)
    _, err = process.communicate(timeout=30)
    if not mounted:
        pytest.skip(f"FUSE filesystems cannot be mounted here: {err.strip()}")


def test_a_home_on_a_real_fuse_mount_is_refused(fuse_mount: Path) -> None:
    for read_only in (False, True):
        with pytest.raises(UnsupportedHome, match="fuse"):
            Store.open(fuse_mount / "home", read_only=read_only)
    assert not (fuse_mount / "home").exists()


# Bad packs


def packs_of(root: Path) -> list[Path]:
    return sorted((root / "store" / "packs").glob("??/*.pack"), key=lambda p: p.stat().st_size)


def places(path: Path) -> dict[str, int]:
    """Offsets of every structure of a pack."""
    size = path.stat().st_size
    with PackReader(path) as reader:
        entries = reader.index()
    middle = entries[len(entries) // 2]
    found = {"magic": 0, "version": 8, "pad": 12, "index": entries[-1].end, "index end": size - 81}
    found |= {f"header+{at}": middle.offset + at for at in (0, 4, 5, 6, 7, 8, 30, 40, 44, 48, 79, 80, 95)}
    found |= {"payload": middle.offset + 96, "payload end": middle.end - 1}
    found |= {f"footer-{at}": size - at for at in (80, 72, 64, 40, 16, 1)}
    return found


def read_all(store: Store, digest: Digest, expected: dict[str, bytes]) -> int:
    """Read every file: right bytes or a clear error; how many errors."""
    errors = 0
    for name, data in expected.items():
        try:
            entry = store.reader.lookup(store.record(digest).root, name.encode())
            assert store.reader.open(entry).pread(entry.size_bytes, 0) == data
        except (Damaged, NotFound):
            errors += 1
    return errors


def test_a_flipped_bit_anywhere_in_a_pack(tmp_path: Path, source: Path, commit: Commit) -> None:
    for index in range(6):
        (source / f"s{index}").write_bytes(os.urandom(3000))
    expected = {p.name: p.read_bytes() for p in source.iterdir()}
    root = tmp_path / "home"
    with Store.open(root) as store:
        digest = commit(store, source)
    [path] = packs_of(root)
    whole = path.read_bytes()
    for name, offset in places(path).items():
        for bit in (0x01, 0x80):
            path.write_bytes(whole[:offset] + bytes([whole[offset] ^ bit]) + whole[offset + 1 :])
            with Store.open(root) as store:
                report = store.verify()
                errors = read_all(store, digest, expected)
                assert report.damaged or name == "pad", (name, bit)
                assert bool(report.hits) == bool(errors), (name, bit)
                assert errors <= 1 or "header" in name or "payload" in name, (name, bit)
            path.write_bytes(whole)
            with Store.open(root) as store:
                assert store.verify().damaged is False, "whole again, and no mark is left"


def test_a_rebuild_from_packs_with_flipped_bits_gives_right_bytes_or_none(
    tmp_path: Path, source: Path, commit: Commit
) -> None:
    expected = {p.name: p.read_bytes() for p in source.iterdir()}
    root = tmp_path / "home"
    with Store.open(root) as store:
        digest = commit(store, source)
    [path] = packs_of(root)
    whole = path.read_bytes()
    for name, offset in places(path).items():
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x10]) + whole[offset + 1 :])
        rebuild_registry(root, check=True)
        with Store.open(root) as store:
            assert read_all(store, digest, expected) == 0 or "header" in name or "payload" in name, name
        for old in root.glob("registry.broken-*"):
            shutil.rmtree(old)


def test_a_truncated_swapped_or_foreign_pack(tmp_path: Path, source: Path, commit: Commit) -> None:
    expected = {p.name: p.read_bytes() for p in source.iterdir()}
    other = tmp_path / "other"
    other.mkdir()
    (other / "f").write_bytes(os.urandom(2 * MIB))
    others = {"f": (other / "f").read_bytes()}
    root = tmp_path / "home"
    with Store.open(root) as store:
        first, second = commit(store, source, "one"), commit(store, other, "two")
    small, large = packs_of(root)
    whole, whole_large = small.read_bytes(), large.read_bytes()

    def harmed(what: str) -> None:
        with Store.open(root) as store:
            report = store.verify()
            assert report.damaged, what
            assert read_all(store, first, expected) + read_all(store, second, others) > 0, what

    for size in (0, 1, 50, len(whole) // 3, len(whole) - 200):
        small.write_bytes(whole[:size])
        with Store.open(root) as store:
            assert store.verify().damaged, size
            read_all(store, first, expected)
    small.write_bytes(whole_large)
    harmed("one pack in another's place")
    large.write_bytes(whole)
    harmed("two packs swapped")
    rebuild_registry(root)
    with Store.open(root) as store:  # frames name themselves: under whatever name a pack lies, they are found
        assert read_all(store, first, expected) + read_all(store, second, others) == 0
        assert not store.verify().damaged


@pytest.mark.parametrize("name", [b"..", b"../../escaped", b"/etc/passwd", b"a\0b", b""])
def test_a_hostile_pack_cannot_write_outside(tmp_path: Path, name: bytes) -> None:
    root = tmp_path / "home"
    with Store.open(root):
        pass
    block = b"attack"
    with_block = PackWriter(tmp_path / "crafted")
    entry = Entry(name, EntryKind.FILE, 0o644, 0, len(block), Digest(bytes(32)))
    tree, data = Tree((entry,)).encode()
    record = Record("checkpoint", "job", "hostile", 1, Entry(b"", EntryKind.DIRECTORY, 0o755, 0, 0, tree))
    digest, record_data = record.encode()
    with_block.add(Kind.TREE, tree, len(data), encode_object(data))
    with_block.add(Kind.RECORD, digest, len(record_data), encode_object(record_data))
    publish(with_block.seal(), root / "store" / "packs")
    rebuild_registry(root)
    with Store.open(root) as store:
        with pytest.raises(UnsafeName):
            store.restore(store.record(digest).root, tmp_path / "out")
        report = store.verify()
        assert [(hit.name, hit.path) for hit in report.hits] == [("hostile", b"")]
        assert store.gc().blocks == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home"]


@pytest.mark.parametrize("pages", [0, 1, 2, 3, 5, 8, 13])
def test_a_truncated_registry_is_an_error_and_can_be_rebuilt(
    tmp_path: Path, source: Path, commit: Commit, seen: Seen, pages: int
) -> None:
    root = tmp_path / "home"
    with Store.open(root) as store:
        digests = [commit(store, source, f"c{index}") for index in range(8)]
    with (root / "registry" / "data.mdb").open("r+b") as f:
        f.truncate(pages * 4096 + 17)
    try:
        with Store.open(root) as store:
            for digest, _ in store.records():
                store.restore(store.record(digest).root, tmp_path / "out" / digest.hex()[:8])
            store.verify()
    except GpuTrainError as e:
        assert "rebuild-registry" in str(e)
    else:
        pytest.fail("a registry without most of its pages must not pass for a sound one")
    rebuild_registry(root)
    with Store.open(root) as store:
        check_records(store, dict.fromkeys(digests, source), tmp_path / "out2", seen)
