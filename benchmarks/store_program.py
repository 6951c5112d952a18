#!/usr/bin/env python3
"""The engine in a process of its own, for the benchmarks: one record per folder of DIR, and back.

store_program.py ingest HOME DIR
store_program.py restore HOME DEST
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gpu_train_cas import Record, Store


def ingest(home: Path, source: Path, owner: str) -> None:
    with Store.open(home) as store:
        for folder in sorted(p for p in source.iterdir() if p.is_dir()):
            with store.writer("bench") as writer:
                added = writer.add_tree(folder)
                with writer.commit() as txn:
                    txn.put_record(Record("checkpoint", owner, folder.name, time.time_ns(), added.root))


def restore(home: Path, dest: Path, owner: str) -> None:
    with Store.open(home, create=False) as store:
        for record in (r for _, r in store.records() if r.owner == owner):
            store.restore(record.root, dest / record.name)


if __name__ == "__main__":
    what, home, folder, owner = sys.argv[1:5]
    {"ingest": ingest, "restore": restore}[what](Path(home), Path(folder), owner)
