#!/usr/bin/env python3
"""A whole run against the stores that people use: how small, how fast, and is that enough?

    python benchmarks/bench_run.py corpus/hf-bf16 corpus/hf-fp32 --repeat 3
    python benchmarks/bench_run.py --make medium --out corpus

Each DIR holds a run's checkpoints, one folder each, stored one after the other by one process each, as
peers.py does (whose options it takes); start-up and a sync count. Beside its tables it prints for each run
what was aimed at and what was reached:

  share         stored / original bytes
  size          stored / stored by the best general-purpose store (restic, borg, casync, tar + zstd)
  vs z4ai       stored / stored by z4ai's chained XOR deltas, where that is installed
  ingest        seconds to store all checkpoints / the fastest general-purpose store's
  ingest vs cp  the same / `cp -r` and sync
  restore vs cp seconds to restore all checkpoints / `cp -r`

--make makes the runs first (corpus.py, all kinds of that size).
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peers
from measuring import json_line, machine, show
from peer_tools import BASELINE, OURS, version

GENERAL = ["restic-auto", "borg-zstd1", "casync", "tar-zstd3"]
CHAINED = "z4ai-delta"
TOOLS = [OURS, *GENERAL, CHAINED]


@dataclass(frozen=True)
class Aim:
    """What a run should reach; None where nothing is aimed at."""

    size: float | None = None
    share: float | None = None
    chained: float = 1.0
    ingest: float = 1.0
    ingest_cp: float = 1.5
    restore_cp: float = 1.5


AIMS = {"hf-bf16": Aim(size=0.66, share=0.40), "hf-fp32": Aim(size=0.80, share=0.68)}


def reached(corpus: dict[str, Any]) -> dict[str, float | None]:
    """The measured side of an aim, by its fields."""
    rows = corpus["tools"]
    ours = rows[OURS]
    general = [rows[tool] for tool in GENERAL if tool in rows]

    def against(key: str, others: list[dict[str, Any]]) -> float | None:
        values = [row[key] for row in others if row[key]]
        return ours[key] / min(values) if values else None

    cp = [rows[BASELINE]] if BASELINE in rows else []
    return {
        "share": ours["stored_bytes"] / corpus["bytes"],
        "size": against("stored_bytes", general),
        "chained": against("stored_bytes", [rows[CHAINED]] if CHAINED in rows else []),
        "ingest": against("first_s", general),
        "ingest_cp": against("first_s", cp),
        "restore_cp": against("restore_s", cp),
    }


def judged(aim: Aim, found: dict[str, float | None]) -> list[list[str]]:
    """A line for each figure: what was aimed at, what was reached, and whether that will do."""
    titles = {
        "share": "share", "size": "size", "chained": "vs z4ai", "ingest": "ingest", "ingest_cp": "ingest vs cp",
        "restore_cp": "restore vs cp",
    }  # fmt: skip
    lines = []
    for name, title in titles.items():
        wanted, value = getattr(aim, name), found[name]
        verdict = "-" if wanted is None or value is None else "yes" if value <= wanted else "no"
        lines.append([
            title, "-" if wanted is None else f"<= {wanted:.2f}", "-" if value is None else f"{value:.3f}", verdict,
        ])  # fmt: skip
    return lines


def make(words: list[str]) -> list[str]:
    """Make the runs when asked to; the arguments for peers.py."""
    if "--make" not in words:
        return words
    at = words.index("--make")
    size, rest = words[at + 1], words[:at] + words[at + 2 :]
    out = "corpus"
    if "--out" in rest:
        where = rest.index("--out")
        out, rest = rest[where + 1], rest[:where] + rest[where + 2 :]
    program = Path(__file__).with_name("corpus.py")
    subprocess.run([sys.executable, str(program), "all", "--out", out, "--size", size], check=True)
    return [*(str(p) for p in sorted(Path(out).iterdir()) if p.is_dir()), *rest]


def main() -> None:
    sys.argv[1:] = make(sys.argv[1:])
    if not any(word.startswith("--tools") for word in sys.argv):
        sys.argv += ["--tools", ",".join(TOOLS)]
    options = peers.parse_options()
    peers.find_programs()
    tools = peers.choose_tools(options)
    for tool in tools:
        print(f"{tool}: {version(tool)}")
    for folder in options.dirs:
        corpus = peers.bench(folder.resolve(), tools, options)
        if OURS not in corpus["tools"]:
            sys.exit(f"bench_run.py: error: {OURS} failed on {folder}: {corpus['failed'].get(OURS)}")
        aim, found = AIMS.get(folder.name, Aim()), reached(corpus)
        print()
        show([folder.name, "aim", "reached", "met"], judged(aim, found))
        json_line(dict(benchmark="run", dir=folder.name, bytes=corpus["bytes"], **found, machine=machine()))


if __name__ == "__main__":
    main()
