#!/usr/bin/env python3
"""How fast are 100,000 small files stored and restored, against cp and borg in one run?

    python benchmarks/bench_small_files.py [--files 100000] [--repeat 3]

Files of 0 to 4 KiB of text-like bytes, a hundred to a folder, as source trees and data sets have them. Steps as in
bench_store.py: new, known (a copy at another path) and restore. Rates are files a second of the whole process.
Restored files are compared. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from contestant import Contestant, Sample, ratios, take_turns
from measuring import Failed, digests, json_line, machine, number, show, space

PER_FOLDER = 100


def write_files(root: Path, count: int) -> None:
    rng = random.Random(0)
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(2000)]
    for i in range(count):
        folder = root / "tree" / f"{i // PER_FOLDER // 100:03d}" / f"{i // PER_FOLDER:05d}"
        if i % PER_FOLDER == 0:
            folder.mkdir(parents=True)
        (folder / f"{i:06d}.txt").write_bytes(b" ".join(rng.choices(words, k=rng.randint(0, 600))))


def measure(tool: str, work: Path, expected: dict[str, str]) -> dict[str, Sample]:
    root = Path(tempfile.mkdtemp(prefix=f"{tool}-", dir=work))
    try:
        one = Contestant(tool, root / "main")
        return {
            "new": one.ingest(work / "new", "new"),
            "known": one.ingest(work / "copy", "known"),
            "restore": one.restore(expected),
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)


def report(results: dict[str, dict[str, Sample]], files: int, size_bytes: int) -> None:
    rates = {tool: {step: files / sample.seconds for step, sample in steps.items()} for tool, steps in results.items()}
    rows = {
        tool: {
            "files_per_s": rates[tool],
            "stored_bytes": steps["new"].stored_bytes,
            "peak_bytes": max(sample.rss_bytes for sample in steps.values()),
        }
        for tool, steps in results.items()
    }
    print(f"{files} files, {size_bytes / 1e6:.0f} MB")
    show(
        ["tool", "new files/s", "known files/s", "restore files/s", "stored MB", "peak MiB"],
        [
            [tool, *(f"{rate:.0f}" for rate in rates[tool].values()), number(row["stored_bytes"], 1e6),
             number(row["peak_bytes"], 1 << 20)]
            for tool, row in rows.items()
        ],
    )  # fmt: skip
    compared = ratios(rates)
    print()
    show(
        ["gpu-train's rate, times", "new", "known", "restore"],
        [[f"{tool}'s", *map(number, row.values())] for tool, row in compared.items()],
    )
    json_line(
        dict(benchmark="small_files", machine=machine(), files=files, bytes=size_bytes, tools=rows, ratios=compared)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder on a real disk (default: the temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-small-files-", dir=options.work) as name:
        work = Path(name)
        write_files(work / "new", options.files)
        shutil.copytree(work / "new", work / "copy")
        expected = digests(work / "new")
        results = take_turns(options.repeat, lambda tool: measure(tool, work, expected))
        report(results, options.files, space(work / "new")[1])


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"bench_small_files.py: {error}")
