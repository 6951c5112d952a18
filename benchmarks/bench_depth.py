#!/usr/bin/env python3
"""How deep should deltas go? A run is stored with each depth from 0 to the deepest allowed, and read back.

    python benchmarks/bench_depth.py corpus/hf-bf16 corpus/hf-fp32

For each depth: the share of the original bytes that is stored, by class of tensors; CPU seconds per GB to store
all checkpoints and to restore the last one (whose chains are the longest); and, for the cost rule, how many of
the checkpoints' classes were stored afresh. The engine and the rule are the library's own; only the depth differs.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from measuring import json_line, machine, show
from peers import natural

from gpu_train.base import pattern_of
from gpu_train.refresh import Spent, deepest_base
from gpu_train_cas import Bases, Entry, Record, Store, TensorClass
from gpu_train_cas.deltas import MAX_DEPTH

GB = 1e9
TENSORS = [TensorClass.WEIGHTS, TensorClass.EXP_AVG, TensorClass.EXP_AVG_SQ]


def store_run(store: Store, folders: list[Path], most: int) -> tuple[dict[str, float], list[Entry]]:
    """Store a run with so many deltas on top of each other at most; what it took, and the roots."""
    histories: dict[str, dict[TensorClass, list[Spent]]] = {}
    newest: dict[str, Entry] = {}  # of each kind of checkpoint, as the library chooses
    original: dict[TensorClass, int] = dict.fromkeys(TensorClass, 0)
    stored: dict[TensorClass, int] = dict.fromkeys(TensorClass, 0)
    roots: list[Entry] = []
    total = fresh = 0
    begun = time.process_time()
    for folder in folders:
        kind = pattern_of(str(path.relative_to(folder)) for path in folder.rglob("*"))
        history = histories.setdefault(kind, {one: [] for one in TensorClass})
        depths = {one: deepest_base(seen, most - 1) if most else -1 for one, seen in history.items()}
        near = [newest[one] for one in sorted(newest, key=lambda one: one != kind)]
        with store.writer("bench") as writer:
            added = writer.add_tree(folder, bases=Bases(near, depths))
            with writer.commit() as txn:
                txn.put_record(Record("checkpoint", "bench", folder.name, time.time_ns(), added.root))
        roots.append(added.root)
        newest[kind] = added.root
        total += added.stored_bytes
        for one, cost in added.classes.items():
            original[one] += cost.original_bytes
            stored[one] += cost.stored_bytes
            if cost.original_bytes:
                history[one].append(Spent(cost.stored_bytes / cost.original_bytes, cost.depth))
                fresh += one in TENSORS and cost.depth == 0
    size = sum(root.size_bytes for root in roots)
    row = {"depth": float(most), "share": total / size, "fresh": float(fresh)}
    row |= {str(one): stored[one] / original[one] for one in TENSORS if original[one]}
    row["ingest_cpu_s_per_gb"] = (time.process_time() - begun) / (size / GB)
    return row, roots


def measure(folders: list[Path], most: int) -> dict[str, float]:
    work = Path(tempfile.mkdtemp(prefix="depth-", dir=folders[0].parent.parent))
    try:
        with Store.open(work / "home") as store:
            row, roots = store_run(store, folders, most)
        with Store.open(work / "home") as store:  # with nothing in its cache
            begun = time.process_time()
            store.restore(roots[-1], work / "restored")
            row["restore_cpu_s_per_gb"] = (time.process_time() - begun) / (roots[-1].size_bytes / GB)
        return row
    finally:
        shutil.rmtree(work)


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        folders = sorted((p for p in folder.resolve().iterdir() if p.is_dir()), key=natural)
        rows = [measure(folders, most) for most in range(MAX_DEPTH + 1)]
        names = list(rows[0])
        print(f"\n{folder.name}: {len(folders)} checkpoints")
        show(names, [[f"{row[n]:.0f}" if n in ("depth", "fresh") else f"{row[n]:.3f}" for n in names] for row in rows])
        json_line(dict(benchmark="depth", dir=folder.name, depths=rows, machine=machine()))


if __name__ == "__main__":
    main()
