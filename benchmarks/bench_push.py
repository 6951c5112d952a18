#!/usr/bin/env python3
"""How many bytes does it take to replicate a whole run, checkpoint by checkpoint, in each layout?

    python benchmarks/bench_push.py CORPUS/hf-bf16 [--dir DIR]

Each checkpoint of the run is imported and pushed to a sink in a folder, as it would be during training; then a new home
pulls all of them. Bytes are those that go over the line, as a share of the checkpoint's plain bytes; the first one and
the others are told apart. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path

from measuring import json_line, machine, show

from gpu_train import Workspace, import_checkpoints, natural_key
from gpu_train.sinks import SinkSetting
from gpu_train.sinks.opening import open_sink
from gpu_train.sinks.pull import pull
from gpu_train.sinks.push import push


def replicate(run: list[Path], work: Path, layout: str) -> tuple[list[float], float]:
    """The share of each checkpoint's plain bytes that pushing it sent; and that pulling all of them received."""
    setting = SinkSetting("local", dest=str(work / "nas"), layout=layout)
    shares = []
    with Workspace.open(work / "home", cwd=work) as workspace, open_sink(workspace, setting) as sink:
        for folder in run:
            (stored,) = import_checkpoints(workspace, folder, "run")
            pushed = push(workspace, sink, [stored.checkpoint])
            shares.append(pushed.sent_bytes / pushed.plain_bytes)
    with Workspace.open(work / "other", cwd=work) as workspace, open_sink(workspace, setting) as sink:
        sink.sync()
        pulled = pull(workspace, sink, sink.records())
        report = workspace.store.verify()
        if report.damaged or len(pulled.new) != len(run):
            raise SystemExit("what was pulled is not what was pushed")
        plain = sum(checkpoint.size_bytes for checkpoint in pulled.checkpoints)
    return shares, pulled.received_bytes / plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a folder with one folder for each checkpoint, as corpus.py makes it")
    parser.add_argument("--dir", type=Path, help="where to work (by default the temporary folder)")
    options = parser.parse_args()
    run = sorted((p for p in options.run.iterdir() if p.is_dir()), key=lambda path: natural_key(path.name))
    found = {}
    for layout in ("files", "packs"):
        work = Path(tempfile.mkdtemp(prefix="bench-push-", dir=options.dir))
        try:
            shares, back = replicate(run, work, layout)
        finally:
            shutil.rmtree(work)
        later = shares[1:] or shares
        found[layout] = {
            "first": round(shares[0], 3), "later": round(statistics.mean(later), 3),
            "worst_later": round(max(later), 3), "pulled": round(back, 3),
        }  # fmt: skip
    print(f"{len(run)} checkpoints of {options.run.name}; bytes over the line as a share of plain bytes")
    show(["", *found], [[what, *(f"{found[layout][what]:.3f}" for layout in found)] for what in found["files"]])
    json_line({"benchmark": "push", "run": options.run.name, "checkpoints": len(run), **found, "machine": machine()})


if __name__ == "__main__":
    main()
