#!/usr/bin/env python3
"""How long does `gpu_train.commit` keep a training waiting?

    python benchmarks/bench_commit.py [--commits 200]

Runs a job that writes checkpoints of 1, 10, 100 and 1000 files, commits each and deletes it at once, while the agent
stores what was committed before. Median, 99th percentile and maximum of the call, and what linking the same files
costs without anything around it. Checks that every one of them is in the store. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from measuring import Failed, json_line, machine, number, show

import gpu_train

FILES = (1, 10, 100, 1000)
FILE_BYTES = 64 << 10


def write(folder: Path, files: int) -> None:
    folder.mkdir(parents=True)
    for n in range(files):
        (folder / f"shard-{n:04d}.bin").write_bytes(os.urandom(64) * (FILE_BYTES // 64 // files + 1))


def link_only(folder: Path, scratch: Path) -> float:
    start = time.perf_counter()
    scratch.mkdir()
    for path in folder.iterdir():
        os.link(path, scratch / path.name)
    seconds = time.perf_counter() - start
    shutil.rmtree(scratch)
    return seconds


def inside(commits: int, result: Path) -> None:
    """What the job does."""
    seconds: dict[int, dict[str, list[float]]] = {}
    for files in FILES:
        times: dict[str, list[float]] = {"commit": [], "link": []}
        for n in range(max(10, commits // files)):
            folder = gpu_train.checkpoint_dir() / f"files-{files}" / f"checkpoint-{n}"
            write(folder, files)
            times["link"].append(link_only(folder, gpu_train.checkpoint_dir() / "tmp-scratch"))
            start = time.perf_counter()
            gpu_train.commit(folder)
            times["commit"].append(time.perf_counter() - start)
            shutil.rmtree(folder)
        seconds[files] = times
    result.write_text(json.dumps(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--commits", type=int, default=200, help="of checkpoints of one file; fewer of larger ones")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.commits, options.inside)
        return
    with tempfile.TemporaryDirectory(prefix="bench-commit-") as scratch:
        home, result = Path(scratch, "home"), Path(scratch, "result.json")
        command = [sys.executable, __file__, "--commits", str(options.commits), "--inside", str(result)]
        job = gpu_train.run({"command": command, "cwd": scratch}, home=home)
        seconds = {int(files): times for files, times in json.loads(result.read_text()).items()}
        made = sum(len(times["commit"]) for times in seconds.values())
        with gpu_train.Workspace.open(home) as workspace:
            stored = [c for c in workspace.checkpoints.list(job.id) if c.state == "verified" and c.proof == "explicit"]
        if len(stored) != made:
            raise Failed(f"{made} were committed, {len(stored)} are stored")
    rows, table = {}, []
    for files, times in seconds.items():
        commit, link = sorted(times["commit"]), statistics.median(times["link"])
        median, high = statistics.median(commit), commit[min(len(commit) - 1, len(commit) * 99 // 100)]
        rows[files] = {"median_s": median, "p99_s": high, "max_s": commit[-1], "link_s": link}
        table.append([str(files), str(len(commit)), *(number(1000 * s) for s in (median, high, commit[-1], link))])
    show(["files", "commits", "median ms", "p99 ms", "max ms", "links alone ms"], table)
    json_line({"benchmark": "commit", "files": rows, "machine": machine()})


if __name__ == "__main__":
    main()
