#!/usr/bin/env python3
"""How fast is a job with 10,000 checkpoints listed, filtered and sorted, the program's start included?

    python benchmarks/bench_listing.py [--checkpoints 10000] [--repeat 9]

The rows are as a Hugging Face run leaves them; nothing is behind them in the store, which a listing does not read.
Each command runs as a process of its own, and they take turns; medians over the repeats after one turn that fills
caches. CPU seconds hold on a machine that others use. In shares of `gpu-train --help`, the start alone.

Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench_startup import PROGRAM, Call, environment_of, spent_on
from measuring import Cost, json_line, machine, show

JOB = "long-aaaaaa"
TREE = Path(__file__).resolve().parents[1]
COMMANDS = {
    "--help": [],
    "list --limit 20": ["--limit", "20"],
    "filter by step and size": ["--filter", "step>=500", "--filter", "size>1GB", "--limit", "20"],
    "filter by metric": ["--filter", "metric:loss<0.01"],
    "sort by metric": ["--sort", "metric:loss", "--limit", "20"],
    "sort by name": ["--sort", "name:desc", "--limit", "20"],
    "the best": [],
    "search": ["--search", "checkpoint-99", "--limit", "20"],
    "all, ids": ["-q"],
    "all, table": [],
    "all, JSON": ["-o", "json"],
    "all, CSV": ["-o", "csv"],
}
WORDS = {"--help": ["--help"], "the best": ["checkpoints", "show", f"{JOB}@best", "-q"]}
"""Commands that are no list."""

FILL = """
import json, sys
from gpu_train import Checkpoint, Job, Workspace
rows = json.load(sys.stdin)
with Workspace.open() as workspace, workspace.store.transaction() as txn:
    workspace.jobs.put_in(txn, Job(rows[0]["job_id"], "long", status="finished", command=("python", "train.py")))
    for row in rows:
        workspace.checkpoints.add_in(txn, Checkpoint(**row, record=bytes(32), identity=bytes(32)))
"""


def rows_of(number: int) -> list[dict[str, object]]:
    """The rows of a run that saved so often, some GB each."""
    rng = random.Random(1)
    now = time.time_ns()
    classes = {name: [10**9, 10**8, 10**8, 3] for name in ("weights", "exp_avg", "exp_avg_sq", "other")}
    return [
        dict(
            job_id=JOB, name=f"checkpoint-{10 * i}", step=10 * i, proof="trainer_state.json", created_ns=now + i,
            committed_ns=now + i, size_bytes=rng.randrange(10**9, 4 * 10**9), stored_bytes=10**8, files=9,
            metrics={"loss": 3 * rng.random(), "eval_loss": rng.random(), "learning_rate": 1e-4, "grad_norm": 1.0},
            source=f"/home/someone/out/checkpoint-{10 * i}", fingerprint="f" * 64, pattern="p" * 16, classes=classes,
            seen_ns=now, settled_ns=now, shape="folder", total_steps=10 * number, kind="lora", base_model="gpt2",
        )
        for i in range(1, number + 1)
    ]  # fmt: skip


def measure(environment: Mapping[str, str], work: Path, repeat: int) -> dict[str, list[Cost]]:
    """{command: what each turn took}."""
    costs: dict[str, list[Cost]] = {name: [] for name in COMMANDS}
    for turn in range(repeat + 1):
        for name, words in COMMANDS.items():
            listing = WORDS.get(name, ["checkpoints", "list", JOB, *words])
            cost = spent_on(Call(name, [*PROGRAM, *listing], environment), work)
            if turn:
                costs[name].append(cost)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--work", type=Path, help="folder on a real disk (default: the temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-listing-", dir=options.work) as name:
        work = Path(name)
        environment = environment_of(TREE, work, "here")
        rows = json.dumps(rows_of(options.checkpoints))
        subprocess.run([sys.executable, "-c", FILL], input=rows, text=True, env=environment, check=True)
        costs = measure(environment, work, options.repeat)
    cpu_s = {name: statistics.median(cost.cpu_s for cost in taken) for name, taken in costs.items()}
    wall_s = {name: statistics.median(cost.seconds for cost in taken) for name, taken in costs.items()}
    show(
        ["command", "CPU s", "wall s", "of --help"],
        [[name, f"{cpu:.3f}", f"{wall_s[name]:.3f}", f"{cpu / cpu_s['--help']:.1f}"] for name, cpu in cpu_s.items()],
    )
    json_line({
        "benchmark": "listing", "machine": machine(), "repeat": options.repeat, "checkpoints": options.checkpoints,
        "cpu_s": cpu_s, "wall_s": wall_s,
    })  # fmt: skip


if __name__ == "__main__":
    main()
