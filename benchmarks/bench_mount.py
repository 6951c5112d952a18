#!/usr/bin/env python3
"""How fast is a large file read through a mount, against the engine's own reader, a mount that does nothing, and a
plain file, in one run?

    python benchmarks/bench_mount.py [--mib 512] [--repeat 3]

Two files: `raw` is random bytes in a safetensors file (nothing to decode), `float` BF16 weights (decoded block by
block). Read in turns:

  plain        the file itself, from the page cache
  noop cold    a mount by the same adapter of a file of zeros: what FUSE alone costs
  mount cold   a fresh mount, front to back in 1 MiB reads
  mount mmap   a fresh mount, front to back through mmap, as safetensors opens files
  mount warm   the same mount again: the kernel has the pages
  engine       the engine's reader, 1 MiB at a time, one thread
  engine x N   the same with as many threads as cores, each a part of the file

The store's packs are in the page cache throughout: the disk is not what is measured. Rates are MB (10^6) a second,
medians over --repeat. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from bf16_checkpoint import write_checkpoint
from measuring import json_line, machine, number, show

import gpu_train_fuse
from gpu_train import Checkpoint, Job, Workspace
from gpu_train_cas import Reader, Record

READ_BYTES = 1 << 20
FILE = b"model.safetensors"
NOOP = Path(__file__).with_name("noop_mount.py")


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


def read_file(path: Path) -> int:
    fd, total = os.open(path, os.O_RDONLY), 0
    buffer = mmap.mmap(-1, READ_BYTES)  # starts at a page
    try:
        while length := os.readv(fd, [buffer]):
            total += length
    finally:
        os.close(fd)
    return total


def read_mapped(path: Path) -> int:
    buffer, total = bytearray(READ_BYTES), 0
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


def read_engine(workspace: Workspace, job: Job, threads: int) -> int:
    reader = Reader([workspace.store.packs], 64 << 20)
    row = workspace.checkpoints.latest(job.id)
    assert row is not None and row.record is not None
    file = reader.open(reader.lookup(reader.record(row.record).root, FILE))
    step = -(-file.size_bytes // threads // READ_BYTES) * READ_BYTES

    def part(start: int) -> int:
        buffer = bytearray(READ_BYTES)
        return sum(file.readinto(buffer, at) for at in range(start, min(start + step, file.size_bytes), READ_BYTES))

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(part, range(0, file.size_bytes, step)))


def rate(read: Callable[[], int], size: int) -> float:
    start = time.perf_counter()
    if read() != size:
        raise SystemExit("a read gave another length than the file has")
    return size / (time.perf_counter() - start) / 1e6


def prepare(workspace: Workspace, name: str, folder: Path) -> Job:
    """A job with that folder as its one checkpoint."""
    job = Job(id=f"{name}-aaaaaa", name=name, created_ns=time.time_ns())
    workspace.jobs.put(job)
    with workspace.store.writer("bench") as writer:
        added = writer.add_tree(folder)
        with writer.commit() as txn:
            record = txn.put_record(Record("checkpoint", job.id, "c", time.time_ns(), added.root))
            workspace.checkpoints.add_in(
                txn, Checkpoint(job_id=job.id, name="c", record=record, size_bytes=added.size_bytes, files=added.files)
            )
    return job


def through_mount(workspace: Workspace, job: Job, work: Path, rates: dict[str, list[float]], size: int) -> None:
    for what, read in (("mount cold", read_file), ("mount mmap", read_mapped)):
        mounted = gpu_train_fuse.mount(workspace, job.id, work / "m")
        try:
            path = mounted.path / "latest" / FILE.decode()
            rates[what].append(rate(lambda read=read, path=path: read(path), size))
            if read is read_file:
                rates["mount warm"].append(rate(lambda path=path: read_file(path), size))
        finally:
            gpu_train_fuse.umount(mounted, lazy=True)


def through_noop(work: Path, size: int) -> float:
    point = work / "noop"
    point.mkdir(exist_ok=True)
    process = subprocess.Popen([sys.executable, NOOP, point, str(size)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise SystemExit("the no-op mount did not come up")
        return rate(lambda: read_file(point / "zeros"), size)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def measure(workspace: Workspace, name: str, work: Path, repeat: int) -> dict[str, float]:
    job = prepare(workspace, name, work / name)
    path = work / name / FILE.decode()
    size, cores = path.stat().st_size, len(os.sched_getaffinity(0))
    names = ("plain", "noop cold", "mount cold", "mount mmap", "mount warm", "engine", f"engine x {cores}")
    rates: dict[str, list[float]] = {what: [] for what in names}
    read_file(path)
    for _ in range(repeat):
        rates["plain"].append(rate(lambda: read_file(path), size))
        rates["noop cold"].append(through_noop(work, size))
        rates["engine"].append(rate(lambda: read_engine(workspace, job, 1), size))
        rates[f"engine x {cores}"].append(rate(lambda: read_engine(workspace, job, cores), size))
        through_mount(workspace, job, work, rates, size)
    return {what: statistics.median(values) for what, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="size of each file")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where to work (by default the temporary folder)")
    options = parser.parse_args()
    gpu_train_fuse.check()
    work = Path(tempfile.mkdtemp(prefix="bench-mount-", dir=options.dir))
    try:
        write_random(work / "raw" / FILE.decode(), options.mib)
        write_checkpoint(work / "float" / FILE.decode(), options.mib, 0)
        with Workspace.open(work / "home") as workspace:
            found = {name: measure(workspace, name, work, options.repeat) for name in ("raw", "float")}
    finally:
        with suppress(OSError):
            shutil.rmtree(work)
    print(f"{options.mib} MiB a file, MB/s, medians of {options.repeat}")
    show(["", *found], [[what, *(number(found[name][what]) for name in found)] for what in found["raw"]])
    ratios = {
        name: {f"mount cold / {what}": round(of["mount cold"] / value, 3) for what, value in of.items()}
        for name, of in found.items()
    }
    json_line({"benchmark": "mount", "mib": options.mib, "mb_s": found, "ratios": ratios, "machine": machine()})


if __name__ == "__main__":
    main()
