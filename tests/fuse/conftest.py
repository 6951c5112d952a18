"""Homes to look at, trees in memory, and mounts that are gone after each test whatever happens in it."""

import os
import shutil
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from blake3 import blake3

import gpu_train_fuse
from gpu_train import Checkpoint, Job, Workspace
from gpu_train_cas import Digest, Entry, EntryKind, Manifest, Record, Tree
from gpu_train_cas.errors import Damaged, GpuTrainError, NotFound
from gpu_train_fuse import table
from gpu_train_fuse.listing import ShownCheckpoint, ShownCode, ShownJob
from gpu_train_fuse.unmount import unmount

NS = 1_000_000_000
BLOCK = 1000
ODD_NAMES = [
    b"new\nline", b"not-utf8-\xff\xfe", b"back\\slash", b" space ", b"percent%41%2f", b"quote\"'<&>", b"-dash",
    "na\u0308me".encode(), "na\u00e4me".encode(), "\N{CJK UNIFIED IDEOGRAPH-5B57}".encode(), b"n" * 255,
    b"?query#part;x", b"tab\t\x01", b"*", b"~",
]  # fmt: skip


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Wait for a condition, and fail when it does not come true within 20 s."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.01)

    return wait


# ---- in memory -------------------------------------------------------------------------------------


@dataclass
class Stored:
    """A file of `Memory`, in blocks of 1000 bytes."""

    data: bytes
    manifest: Manifest
    broken: set[int]

    def readinto(self, buffer: memoryview, offset: int, /) -> int:
        for ref in self.manifest.covering(offset, offset + len(buffer)):
            if ref.start // BLOCK in self.broken:
                raise Damaged("a frame's header fails its checksum")
        part = self.data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)


@dataclass
class Memory:
    """Stored objects without a store. `broken` maps a file's digest to the numbers of its bad blocks."""

    trees: dict[Digest, Tree] = field(default_factory=dict)
    files: dict[Digest, bytes] = field(default_factory=dict)
    broken: dict[Digest, set[int]] = field(default_factory=dict)
    decoded: int = 0

    def tree(self, digest: Digest, /) -> Tree:
        self.decoded += 1
        if digest not in self.trees:
            raise NotFound(f"tree {digest.hex()[:16]} is not in the store")
        return self.trees[digest]

    def open(self, entry: Entry, /) -> Stored:
        if entry.digest not in self.files:
            raise NotFound("no such manifest")
        data = self.files[entry.digest]
        cuts = range(0, len(data), BLOCK)
        names = b"".join(blake3(data[at : at + BLOCK]).digest() for at in cuts)
        ends = [min(at + BLOCK, len(data)) for at in cuts]
        return Stored(data, Manifest(len(data), entry.digest, names, ends), self.broken.get(entry.digest, set()))

    def add(self, content: dict[str, object], name: bytes = b"", mtime_ns: int = NS) -> Entry:
        """A directory of bytes (files), str (links) and dicts (directories)."""
        entries = []
        for key, value in content.items():
            raw = os.fsencode(key)
            if isinstance(value, dict):
                entries.append(self.add(value, raw, mtime_ns))
            elif isinstance(value, str):
                target = os.fsencode(value)
                digest = Digest(blake3(target).digest())
                entries.append(Entry(raw, EntryKind.SYMLINK, 0o777, mtime_ns, len(target), digest, target=target))
            else:
                assert isinstance(value, bytes)
                digest = Digest(blake3(value).digest())
                self.files[digest] = value
                entries.append(Entry(raw, EntryKind.FILE, 0o640, mtime_ns, len(value), digest, files=1))
        tree = Tree.of(entries)
        digest, _ = tree.encode()
        self.trees[digest] = tree
        size, files = sum(e.size_bytes for e in entries), sum(e.files for e in entries)
        return Entry(name, EntryKind.DIRECTORY, 0o750, mtime_ns, size, digest, content=tree.content(), files=files)


@dataclass
class FakeCatalogue:
    """A catalogue whose answers a test writes down; `touch` is what a commit does to the registry."""

    memory: Memory
    folder: Path
    shown: dict[str, ShownJob] = field(default_factory=dict)
    versions: dict[str, ShownCode] = field(default_factory=dict)
    registered: tuple[ShownCheckpoint, ...] = ()
    measured: int = 0
    roots: dict[Digest, Entry] = field(default_factory=dict)
    held: Counter[Digest] = field(default_factory=Counter)
    commits: int = 0
    reads: int = 0

    def stamp(self) -> int:
        return self.commits

    def jobs(self) -> dict[str, int]:
        return {name: job.changed_ns for name, job in self.shown.items()}

    def has_job(self, job_id: str) -> bool:
        return job_id in self.shown

    def job(self, job_id: str) -> ShownJob:
        self.reads += 1
        if job_id not in self.shown:
            raise NotFound(f"no job {job_id!r}")
        return self.shown[job_id]

    def code(self) -> dict[str, ShownCode]:
        return self.versions

    def models(self) -> tuple[ShownCheckpoint, ...]:
        return self.registered

    def stored_bytes(self, entry: Entry) -> int:
        self.measured += 1
        return entry.size_bytes // 2

    def root(self, record: Digest) -> Entry:
        if record not in self.roots:
            raise NotFound("no such record")
        return self.roots[record]

    @contextmanager
    def holding(self, record: Digest) -> Iterator[None]:
        self.held[record] += 1
        yield
        self.held[record] -= 1

    def totals(self) -> tuple[int, int]:
        rows = [c for job in self.shown.values() for c in job.checkpoints]
        return sum(c.size_bytes for c in rows), sum(c.files for c in rows)

    def data(self) -> Path:
        return self.folder

    def record(self, content: dict[str, object]) -> Digest:
        entry = self.memory.add(content)
        digest = Digest(blake3(entry.digest + bytes([len(self.roots)])).digest())
        self.roots[digest] = entry
        return digest

    def checkpoint(self, name: str, content: dict[str, object], sequence: int, version: int = 1) -> ShownCheckpoint:
        record = self.record(content)
        root = self.roots[record]
        return ShownCheckpoint(
            sequence, name, version, record, sequence * 100, sequence * NS, root.size_bytes, root.files
        )


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def catalogue(memory: Memory, tmp_path: Path) -> FakeCatalogue:
    return FakeCatalogue(memory, tmp_path / "data")


# ---- on disk ---------------------------------------------------------------------------------------


@dataclass
class Lab:
    """A home of its own, and plain folders whose content goes into it."""

    workspace: Workspace
    sources: Path

    def job(self, name: str, **facts: object) -> Job:
        job = Job(id=f"{name}-aaaaaa", name=name, created_ns=time.time_ns(), **facts)  # type: ignore[arg-type]
        self.workspace.jobs.put(job)
        return job

    def checkpoint(self, job: Job, name: str, source: Path, **facts: object) -> Checkpoint:
        with self.workspace.store.writer("test") as writer:
            added = writer.add_tree(source)
            with writer.commit() as txn:
                record = txn.put_record(Record("checkpoint", job.id, name, time.time_ns(), added.root))
                row = Checkpoint(
                    job_id=job.id, name=name, record=record, created_ns=time.time_ns(), committed_ns=time.time_ns(),
                    size_bytes=added.size_bytes, files=added.files, **facts,  # type: ignore[arg-type]
                )  # fmt: skip
                return self.workspace.checkpoints.add_in(txn, row)

    def folder(self, name: str, files: dict[str, bytes]) -> Path:
        path = self.sources / name
        for relative, data in files.items():
            (path / relative).parent.mkdir(parents=True, exist_ok=True)
            (path / relative).write_bytes(data)
        return path

    def awkward(self, name: str = "awkward") -> Path:
        """Everything a folder can have that is easily lost."""
        path = self.folder(name, {"model.bin": os.urandom(3_500_000), "sub/deep/notes.txt": b"notes\n", "zero": b""})
        (path / "empty").mkdir()
        (path / "link").symlink_to("sub/deep/notes.txt")
        (path / "dangling").symlink_to("/nowhere/at/all")
        (path / "around").symlink_to(".")
        (path / "odd").mkdir()
        for odd in ODD_NAMES:
            Path(os.fsdecode(os.fsencode(path / "odd") + b"/" + odd)).write_bytes(odd)
        with (path / "sparse").open("wb") as sparse:
            sparse.truncate(5_000_000)
            sparse.seek(2_000_000)
            sparse.write(b"island")
        script = path / "run.sh"
        script.write_text("#!/bin/sh\n")
        script.chmod(0o4751)
        for at, found in enumerate(sorted(path.rglob("*"))):
            os.utime(found, ns=(NS, 1_600_000_000 * NS + at * 1_000_003), follow_symlinks=False)
        os.utime(path, ns=(NS, 1_500_000_000 * NS))
        return path


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Workspace.open(tmp_path / "home", cwd=tmp_path) as workspace:
        yield Lab(workspace, tmp_path / "sources")


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One for all tests of a module that only look."""
    root = tmp_path_factory.mktemp("lab")
    with Workspace.open(root / "home", cwd=root) as workspace:
        yield Lab(workspace, root / "sources")


def facts_of(root: Path) -> dict[str, tuple[object, ...]]:
    """What is comparable of everything below a folder, the folder itself under "."."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        content: object = None
        if stat.S_ISREG(status.st_mode):
            content = (status.st_size, blake3(path.read_bytes()).hexdigest())
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        mode = None if stat.S_ISLNK(status.st_mode) else status.st_mode
        found[str(path.relative_to(root))] = (stat.S_IFMT(status.st_mode), mode, status.st_mtime_ns, content)
    return found


@pytest.fixture
def same_tree() -> Callable[[Path, Path], None]:
    """Insist that two folders have the same names, kinds, modes, times and bytes."""

    def compare(one: Path, other: Path) -> None:
        assert facts_of(one) == facts_of(other)

    return compare


@pytest.fixture(scope="session")
def rclone_program() -> str:
    """rclone, where this environment or the machine has it; skips where neither does."""
    beside = os.fspath(Path(sys.executable).parent)
    found = shutil.which("rclone", path=os.pathsep.join([beside, os.environ["PATH"]]))
    if found is None:
        pytest.skip("rclone is not installed")
    return found


# ---- mounts ----------------------------------------------------------------------------------------


def take_away(root: Path) -> list[Path]:
    """Unmount everything below a folder, lazily; what was there."""
    found = [path for path, _ in table.paths() if root in path.parents]
    for path in reversed(found):
        try:
            unmount(path, lazy=True)
        except GpuTrainError as e:
            print(f"{path}: {e}")
    return found


@pytest.fixture
def mount(lab: Lab, tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount from the lab's home; skips, saying why, where nothing can be mounted."""
    try:
        gpu_train_fuse.check()
    except gpu_train_fuse.MountUnavailable as e:
        pytest.skip(str(e))

    def start(target: str, path: Path | None = None, **options: bool) -> Path:
        return gpu_train_fuse.mount(lab.workspace, target, path, **options).path

    try:
        yield start
    finally:
        take_away(tmp_path)
