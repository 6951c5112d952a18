"""What bench_mount.py measures with: what is stored, mounts of this tree or another, ways of reading."""

from __future__ import annotations

import json
import mmap
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gpu_train import Checkpoint, Job, Workspace
from gpu_train_cas import Bases, Entry, Reader, Record

READ_BYTES = 1 << 20
SMALL_BYTES = 4096
FILE = "model.safetensors"
NOOP = Path(__file__).with_name("noop_mount.py")
ROOTS = ("", "cas", "fuse", "cli")
MOUNT = """
import sys, time
from pathlib import Path
from gpu_train import Workspace
import gpu_train_fuse
with Workspace.open(Path(sys.argv[1]), create=False, read_only=True) as workspace:
    start = time.perf_counter()
    gpu_train_fuse.mount(workspace, sys.argv[2], Path(sys.argv[3]))
    print(time.perf_counter() - start)
"""


# ---- what is stored ----------------------------------------------------------------------------


def write_random(path: Path, mib: int) -> None:
    """A safetensors file with one tensor of random bytes."""
    size = mib << 20
    text = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _ in range(mib):
            out.write(os.urandom(1 << 20))


def write_later(path: Path, earlier: Path) -> None:
    """What a checkpoint of BF16 weights is some steps later: one weight in four moved a little."""
    data = bytearray(earlier.read_bytes())
    begins = 8 + int.from_bytes(data[:8], "little")
    values = np.frombuffer(data, np.uint16, offset=begins)
    rng = np.random.default_rng(1)
    for start in range(0, len(values), 1 << 22):
        part = values[start : start + (1 << 22)]
        moved = rng.random(len(part), np.float32) < 0.25
        part += (moved * rng.integers(-2, 3, len(part))).astype(np.uint16)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)


def write_repeated(path: Path, gib: int) -> None:
    """A large .npy file that costs little: a few random blocks over and over."""
    path.parent.mkdir(parents=True)
    parts = [os.urandom(1 << 20) for _ in range(16)]
    with path.open("wb") as out:
        np.lib.format.write_array_header_1_0(  # type: ignore[no-untyped-call]
            out, {"descr": "|u1", "fortran_order": False, "shape": (gib << 30,)}
        )
        for at in range(gib << 10):
            out.write(parts[at % len(parts)])


def store(workspace: Workspace, name: str, folder: Path, base: Entry | None = None) -> Entry:
    """Store a folder as a job's newest checkpoint; its root."""
    job = Job(id=f"{name}-aaaaaa", name=name, created_ns=time.time_ns())
    workspace.jobs.put(job)
    with workspace.store.writer("bench") as writer:
        added = writer.add_tree(folder, bases=Bases([base]) if base else None)
        with writer.commit() as txn:
            record = txn.put_record(Record("checkpoint", job.id, "c", time.time_ns(), added.root))
            workspace.checkpoints.add_in(
                txn, Checkpoint(job_id=job.id, name="c", record=record, size_bytes=added.size_bytes, files=added.files)
            )
    return added.root


def store_many(workspace: Workspace, name: str, folder: Path, count: int) -> None:
    """A job with so many checkpoints of the same small folder."""
    job = Job(id=f"{name}-aaaaaa", name=name, created_ns=time.time_ns())
    workspace.jobs.put(job)
    with workspace.store.writer("bench") as writer:
        added = writer.add_tree(folder)
        with writer.commit() as txn:
            for i in range(count):
                record = txn.put_record(Record("checkpoint", job.id, f"checkpoint-{i}", time.time_ns(), added.root))
                row = Checkpoint(
                    job_id=job.id, name=f"checkpoint-{i}", record=record, step=i, size_bytes=added.size_bytes,
                    files=added.files,
                )  # fmt: skip
                workspace.checkpoints.add_in(txn, row)


# ---- mounts ------------------------------------------------------------------------------------


def environment(tree: Path) -> dict[str, str]:
    """The environment in which Python imports that source tree."""
    return dict(os.environ, PYTHONPATH=os.pathsep.join(str(tree / root) for root in ROOTS))


@contextmanager
def mounted(tree: Path, home: Path, target: str, point: Path) -> Iterator[tuple[int, float]]:
    """A mount served by that source tree: its process, and the seconds from the call until it was ready."""
    command = [sys.executable, "-c", MOUNT, str(home), target, str(point)]
    seconds = float(subprocess.run(command, env=environment(tree), check=True, capture_output=True).stdout)
    try:
        yield int(os.getxattr(point, "user.gpu_train.pid")), seconds
    finally:
        subprocess.run(["fusermount3", "-u", "-z", point], check=True)


@contextmanager
def noop(point: Path, size: int) -> Iterator[Path]:
    """The mount that does nothing; its one file."""
    point.mkdir(exist_ok=True)
    process = subprocess.Popen([sys.executable, NOOP, point, str(size)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise SystemExit("the no-op mount did not come up")
        yield point / "zeros"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def memory_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def cpu_s(pid: int) -> float:
    """The processor's time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drop_pages(folder: Path) -> None:
    """Have the kernel forget what it holds of the files below a folder."""
    for path in [folder] if folder.is_file() else folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


# ---- ways of reading ---------------------------------------------------------------------------


def read_file(path: Path, start: int = 0, end: int | None = None) -> int:
    """Front to back, 1 MiB at a time, into memory that starts at a page."""
    fd, at = os.open(path, os.O_RDONLY), start
    try:
        end = os.fstat(fd).st_size if end is None else end
        with mmap.mmap(-1, READ_BYTES) as buffer:
            while at < end:
                length = os.preadv(fd, [buffer], at)
                if not length:
                    break
                at += length
    finally:
        os.close(fd)
    return at - start


def read_mapped(path: Path) -> int:
    """Front to back through mmap."""
    buffer, total = mmap.mmap(-1, READ_BYTES), 0
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
        memoryview(view) as all_,
    ):
        for at in range(0, len(view), READ_BYTES):
            part = all_[at : at + READ_BYTES]
            buffer[: len(part)] = part
            total += len(part)
            part.release()
    return total


def read_parallel(path: Path, readers: int) -> int:
    """By so many threads, each with a part of the file that it opens itself."""
    size = path.stat().st_size
    step = -(-size // readers // READ_BYTES) * READ_BYTES
    with ThreadPoolExecutor(readers) as pool:
        return sum(pool.map(lambda at: read_file(path, at, min(at + step, size)), range(0, size, step)))


def read_engine(workspace: Workspace, root: Entry, threads: int) -> int:
    """By the engine's own reader, without a mount; each thread a part of the file."""
    reader = Reader([workspace.store.packs], 64 << 20)
    file = reader.open(reader.lookup(root, FILE.encode()))
    step = -(-file.size_bytes // threads // READ_BYTES) * READ_BYTES

    def part(start: int) -> int:
        buffer = memoryview(mmap.mmap(-1, READ_BYTES))
        return sum(file.readinto(buffer, at) for at in range(start, min(start + step, file.size_bytes), READ_BYTES))

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(part, range(0, file.size_bytes, step)))


def random_reads_us(path: Path, places: Mapping[str, tuple[int, int]], count: int) -> dict[str, float]:
    """Microseconds for 4 KiB at random in parts of a file, read in turns; medians."""
    rng, seconds = random.Random(0), {name: [0.0] * count for name in places}
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    try:
        for i in range(count):
            for name, (start, end) in places.items():
                at = rng.randrange(start, end - SMALL_BYTES) // SMALL_BYTES * SMALL_BYTES
                begun = time.perf_counter()
                os.pread(fd, SMALL_BYTES, at)
                seconds[name][i] = time.perf_counter() - begun
    finally:
        os.close(fd)
    return {name: sorted(values)[count // 2] * 1e6 for name, values in seconds.items()}


def rate(read: Callable[[], int], size: int) -> float:
    """MB a second."""
    start = time.perf_counter()
    if read() != size:
        raise SystemExit("a read gave another length than the file has")
    return size / (time.perf_counter() - start) / 1e6
