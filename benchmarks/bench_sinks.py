#!/usr/bin/env python3
"""How fast are packs and small files put into S3, against rclone copying the same files to the same server in one run?

    python benchmarks/bench_sinks.py [--mib 2048] [--packs 8] [--files 5000] [--repeat 3]

SeaweedFS on loopback takes them; both programs compare what it then holds with what they sent. Each contestant is a
process of its own, start-up included, and writes below a prefix of its own, which is deleted afterwards. rclone runs
with its defaults, and with as much at a time as we have ("rclone wide"). Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))
from measuring import Failed, json_line, machine, number, quoted, run, show
from objectservers import BUCKET, KEY, SECRET, Server, client, credentials, program, seaweedfs

OURS = "gpu-train"
PER_FOLDER = 100


def write_files(root: Path, count: int, size_bytes: int) -> None:
    """Files of bytes that nothing makes smaller, all of the same size."""
    rng = random.Random(0)
    for i in range(count):
        path = root / f"{i // PER_FOLDER:03d}" / f"{i:05d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for at in range(0, size_bytes, 1 << 24):
                file.write(rng.randbytes(min(1 << 24, size_bytes - at)))


def put(folder: Path, endpoint: str, prefix: str) -> None:
    """What the measured process of ours does."""
    from gpu_train.sinks.objects.content import Lazy
    from gpu_train.sinks.objects.objectstore import Put
    from gpu_train.sinks.objects.patient import PatientObjects
    from gpu_train.sinks.objects.s3 import S3Objects

    def read(path: Path, length: int, offset: int) -> bytes:
        fd = os.open(path, os.O_RDONLY)
        try:
            return os.pread(fd, length, offset)
        finally:
            os.close(fd)

    store = PatientObjects(S3Objects(BUCKET, prefix, endpoint=endpoint, credentials=credentials))
    objects = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found, key = path.stat(), path.relative_to(folder).as_posix()
        objects.append(Put(key, Lazy(found.st_size, partial(read, path)), mtime_ns=found.st_mtime_ns))
    store.put(objects)
    store.close()


def command(tool: str, folder: Path, server: Server, prefix: str) -> str:
    if tool == OURS:
        return quoted(sys.executable, __file__, "--put", folder, server.endpoint, prefix)
    place = (
        f":s3,provider=SeaweedFS,endpoint='{server.endpoint}',access_key_id={KEY},secret_access_key={SECRET},"
        f"no_check_bucket=true:{BUCKET}/{prefix}"
    )
    wide = ["--transfers", "16", "--s3-upload-concurrency", "8"] if tool == "rclone wide" else []
    return quoted(program("rclone"), "--config", "/dev/null", "copy", *wide, folder, place)


def clear(server: Server, prefix: str) -> int:
    """Delete all below a prefix; how many bytes there were."""
    asking, size = client(server.endpoint), 0
    while found := asking.list_objects_v2(Bucket=BUCKET, Prefix=prefix + "/").get("Contents"):
        size += sum(row["Size"] for row in found)
        asking.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": row["Key"]} for row in found], "Quiet": True})
    return size


def measure(kind: str, folder: Path, server: Server, repeat: int, log: Path) -> dict[str, dict[str, float]]:
    """Median seconds, CPU seconds and peak bytes of each contestant, which take turns."""
    tools = [OURS, "rclone", "rclone wide"]
    expected = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    costs: dict[str, list[tuple[float, float, int]]] = {tool: [] for tool in tools}
    run(command("rclone", folder, server, "warm"), log=log)  # the server makes its volumes
    clear(server, "warm")
    for i in range(repeat):
        for tool in tools[i % len(tools) :] + tools[: i % len(tools)]:
            print(f"  {kind}, run {i + 1}/{repeat}: {tool}", file=sys.stderr, flush=True)
            prefix = f"bench/{kind}-{i}-{tool.replace(' ', '-')}"
            cost = run(command(tool, folder, server, prefix), log=log)
            if (found := clear(server, prefix)) != expected:
                raise Failed(f"{tool}: {found} of {expected} bytes are there")
            costs[tool].append((cost.seconds, cost.cpu_s, cost.rss_bytes))
    names = ("seconds", "cpu_s", "peak_bytes")
    return {
        tool: {name: statistics.median(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        | {"ratio": statistics.median(theirs[0] / ours[0] for theirs, ours in zip(rows, costs[OURS], strict=True))}
        for tool, rows in costs.items()
    }


def report(kind: str, unit: str, amount: float, rows: Mapping[str, Mapping[str, float]]) -> None:
    show(
        [kind, unit, "CPU s", "peak MiB", "our rate, times"],
        [
            [tool, number(amount / row["seconds"]), number(row["cpu_s"]), number(row["peak_bytes"], 1 << 20),
             number(row["ratio"])]
            for tool, row in rows.items()
        ],
    )  # fmt: skip
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=2048, help="of all packs together")
    parser.add_argument("--packs", type=int, default=8)
    parser.add_argument("--files", type=int, default=5000, help="of 4 KiB")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder on a real disk (default: the temporary folder)")
    parser.add_argument("--put", nargs=3, metavar=("FOLDER", "ENDPOINT", "PREFIX"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.put:
        put(Path(options.put[0]), *options.put[1:])
        return
    with tempfile.TemporaryDirectory(prefix="bench-sinks-", dir=options.work) as name:
        work = Path(name)
        write_files(work / "packs", options.packs, (options.mib << 20) // options.packs)
        write_files(work / "small", options.files, 4096)
        with seaweedfs(work / "server") as server:
            packs = measure("packs", work / "packs", server, options.repeat, work / "log")
            small = measure("small", work / "small", server, options.repeat, work / "log")
        report("packs", "MB/s", options.mib * (1 << 20) / 1e6, packs)
        report("small files", "files/s", options.files, small)
        json_line(
            dict(benchmark="sinks", machine=machine(), mib=options.mib, files=options.files, packs=packs, small=small)
        )


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"bench_sinks.py: {error}")
