#!/usr/bin/env python3
"""How fast is the engine itself, start-up and disk left out: new BF16 weights, known ones, and restore, against cp?

    python benchmarks/bench_pipeline.py --mib 1024 --repeat 5

One process, files in the page cache. Each round stores new weights (durably, commit included), stores them again,
restores them, and copies the file with shutil.copyfile; the table has medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpu_train_cas import Added, Record, Store

STD = 0.02


def write_weights(path: Path, mib: int, seed: int) -> None:
    """A safetensors file with one BF16 tensor of normal values."""
    rng = np.random.default_rng(seed)
    length = mib << 20
    entry = {"dtype": "BF16", "shape": [length // 2], "data_offsets": [0, length]}
    header = json.dumps({"w": entry}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(mib):
            values = rng.standard_normal(1 << 19, dtype=np.float32) * np.float32(STD)
            file.write((values.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def ingest(store: Store, source: Path, name: str) -> Added:
    with store.writer("bench") as writer:
        added = writer.add_tree(source)
        with writer.commit() as txn:
            txn.put_record(Record("checkpoint", "bench", name, time.time_ns(), added.root))
    return added


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def one_round(box: Path, mib: int, seed: int) -> dict[str, float]:
    source = box / "source"
    source.mkdir()
    write_weights(source / "model.safetensors", mib, seed)
    os.sync()
    took: dict[str, float] = {}
    with Store.open(box / "home") as store:
        took["new"] = seconds(lambda: ingest(store, source, "new"))
        took["known"] = seconds(lambda: ingest(store, source, "known"))
        root = ingest(store, source, "again").root
        os.sync()
        took["restore"] = seconds(lambda: store.restore(root, box / "restored"))
        if (box / "restored" / "model.safetensors").read_bytes() != (source / "model.safetensors").read_bytes():
            raise SystemExit("what was restored is not what was stored")
    took["cp"] = seconds(lambda: shutil.copyfile(source / "model.safetensors", box / "copy"))
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of the weights")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--work", help="folder for the store and the files (default: the system's temporary one)")
    options = parser.parse_args()
    rounds = []
    for seed in range(options.repeat):
        with tempfile.TemporaryDirectory(dir=options.work, prefix="bench-pipeline-") as box:
            rounds.append(one_round(Path(box), options.mib, seed))
    size_mb = (options.mib << 20) / 1e6
    rates = {what: size_mb / statistics.median(r[what] for r in rounds) for what in rounds[0]}
    print(f"{'':10}{'MB/s':>8}{'to cp':>8}")
    for what, rate in rates.items():
        print(f"{what:10}{rate:8.0f}{rate / rates['cp']:8.2f}")
    facts = {"cores": len(os.sched_getaffinity(0)), "mib": options.mib, "repeat": options.repeat}
    print(json.dumps({"benchmark": "pipeline", **facts, "mb_per_s": rates}))


if __name__ == "__main__":
    main()
