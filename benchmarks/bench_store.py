#!/usr/bin/env python3
"""How fast are checkpoints stored and restored, and in how much memory, against cp and borg in one run?

    python benchmarks/bench_store.py [--mib 512] [--checkpoints 4] [--large-mib 4096] [--repeat 3]

Makes new BF16 checkpoints (normally distributed weights in safetensors files) and runs each tool in a process of
its own, in turns, on the same files, which are in the page cache:

  new       ingest all of them into a fresh store
  known     ingest a copy of them at another path: every byte is looked at, none is new
  restore   write all of them to an empty folder
  large     ingest one large file into a fresh store; its peak memory is what counts

Ingests include a sync of the store's file system. Rates are original MB (10^6) a second of the whole process, its
start included; medians over --repeat. The second table gives them a CPU second, which is what is left to compare
on a machine that has other work to do. Restored bytes are compared. Prints tables and one JSON line.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from contestant import Contestant, Sample, ratios, take_turns
from measuring import Failed, digests, json_line, machine, number, show, space

MAKER = Path(__file__).with_name("bf16_checkpoint.py")


def measure(tool: str, work: Path, expected: dict[str, str], large: bool) -> dict[str, Sample]:
    """One repetition of one tool."""
    root = Path(tempfile.mkdtemp(prefix=f"{tool}-", dir=work))
    try:
        one = Contestant(tool, root / "main")
        result = {
            "new": one.ingest(work / "new", "new"),
            "known": one.ingest(work / "copy", "known"),
            "restore": one.restore(expected),
        }
        shutil.rmtree(root / "main")
        if large:
            result["large"] = Contestant(tool, root / "large").ingest(work / "large", "new")
        return result
    finally:
        shutil.rmtree(root, ignore_errors=True)


def make(path: Path, mib: int, seed: int) -> None:
    """Make a checkpoint in a process of its own: a child's peak memory begins with what this one holds."""
    subprocess.run([sys.executable, MAKER, path, str(mib), str(seed)], check=True)


def prepare(work: Path, options: argparse.Namespace) -> None:
    for i in range(options.checkpoints):
        make(work / "new" / f"checkpoint-{i + 1}" / "model.safetensors", options.mib, i)
    shutil.copytree(work / "new", work / "copy")
    if options.large_mib:
        make(work / "large" / "checkpoint-1" / "model.safetensors", options.large_mib, 10**6)


def report(results: dict[str, dict[str, Sample]], sizes: dict[str, int]) -> None:
    """Print rates and their ratios to cp and borg, then the JSON line."""
    head = ["tool", "new MB/s", "known MB/s", "restore MB/s", "stored", "peak MiB", "large MB/s", "large peak MiB"]
    table, rows = [], {}
    for tool, steps in results.items():
        rates = {step: sizes[step] / 1e6 / sample.seconds for step, sample in steps.items()}
        stored = steps["new"].stored_bytes / sizes["new"]
        peak = max(steps[step].rss_bytes for step in ("new", "known", "restore"))
        large_peak = steps["large"].rss_bytes if "large" in steps else None
        rows[tool] = {
            "mb_per_s": rates, "stored_ratio": stored, "peak_bytes": peak, "large_peak_bytes": large_peak
        }  # fmt: skip
        table.append([
            tool, *(number(rates[step]) for step in ("new", "known", "restore")), number(stored),
            number(peak, 1 << 20), number(rates.get("large")), number(large_peak, 1 << 20),
        ])  # fmt: skip
    show(head, table)
    print()
    a_cpu_second = {
        tool: {step: sizes[step] / 1e6 / sample.cpu_s for step, sample in steps.items()}
        for tool, steps in results.items()
    }
    show(
        ["MB a CPU second", *sizes],
        [[tool, *(number(row.get(step)) for step in sizes)] for tool, row in a_cpu_second.items()],
    )
    compared = ratios({tool: row["mb_per_s"] for tool, row in rows.items()})
    print()
    show(
        ["gpu-train's rate, times", *sizes],
        [[f"{tool}'s", *(number(row.get(step)) for step in sizes)] for tool, row in compared.items()],
    )
    json_line(
        dict(benchmark="store", machine=machine(), bytes=sizes, tools=rows, mb_per_cpu_s=a_cpu_second, ratios=compared)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="size of each checkpoint, a multiple of 32")
    parser.add_argument("--checkpoints", type=int, default=4)
    parser.add_argument("--large-mib", type=int, default=4096, help="size of the large file; 0 leaves it out")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder on a real disk (default: the temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=options.work) as name:
        work = Path(name)
        prepare(work, options)
        expected = digests(work / "new")
        results = take_turns(options.repeat, lambda tool: measure(tool, work, expected, options.large_mib > 0))
        total = space(work / "new")[1]
        sizes = {"new": total, "known": total, "restore": total}
        if options.large_mib:
            sizes["large"] = space(work / "large")[1]
        report(results, sizes)


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        sys.exit(f"bench_store.py: {error}")
