#!/usr/bin/env python3
"""Measure checkpoint stores side by side on the same folders, in one run.

    python benchmarks/peers.py corpus/hf-bf16 corpus/lora --repeat 3 --json out.json

Each DIR holds checkpoints, one folder each. They are ingested one after the other, each as a snapshot of its
own, as training produces them (--whole ingests DIR at once as one snapshot). For every tool of peer_tools.py:

  first    seconds to ingest everything into a fresh store
  again    seconds to ingest the same files again (a tool may go by their mtime and inode)
  copied   seconds to ingest a copy of them at another path (a tool has to look at the bytes)
  grow     megabytes that `again` and `copied` together added to the store
  stored   megabytes allocated on disk by the store after `first`
  restore  seconds to restore every snapshot into an empty folder
  RSS      peak resident MB of the largest process of the tool, over all its commands (never below this script's
           own 20-40; a process that outlives its command, such as a daemon, is not seen)
  CPU      user + system seconds of `first`

All are medians over --repeat runs; the tools take turns within each run; the best peer is picked for each
column. A number of an ingest includes a sync of the store's filesystem; restores are not synced. Sources are
read (hashed) before, so they come from the page cache. Every restored file is compared with its source by
SHA-256. A missing tool is skipped with a line. Run it under `taskset -c 0` to measure on one core. Standard
library only; the codecs run in child processes.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measuring import Failed, compare, digests, json_line, machine, number, run, show, space, sync
from peer_codec import dtype_of, knows
from peer_tools import BASELINE, OURS, TOOLS, missing, version

Row = dict[str, Any]
COLUMNS = [
    ("first", "first_s", 1), ("again", "again_s", 1), ("copied", "copied_s", 1), ("stored", "stored_bytes", 1e6),
    ("grow", "grow_bytes", 1e6), ("restore", "restore_s", 1), ("RSS", "rss_bytes", 1e6), ("CPU", "cpu_s", 1),
]  # fmt: skip
RATIOS = [
    ("first", "first_s"), ("again", "again_s"), ("copied", "copied_s"), ("stored", "stored_bytes"),
    ("restore", "restore_s"),
]  # fmt: skip


@dataclass
class Box:
    """One tool with a fresh store of its own, and what its commands have cost so far."""

    tool: str
    root: Path
    synced: bool
    rss_bytes: int = 0
    env: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        for folder in (self.store, self.cache, self.restored):
            folder.mkdir()
        texts = TOOLS[self.tool].get("env", {})
        self.env = dict(os.environ, **{name: self.fill(text) for name, text in texts.items()})

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def restored(self) -> Path:
        return self.root / "dest"

    def fill(self, text: str, **words: object) -> str:
        quoted = {k: shlex.quote(str(v)) if v else "''" for k, v in words.items()}
        return text.format(store=self.store, cache=self.cache, **quoted)

    def go(self, text: str, *, sync_after: bool = False, **words: object) -> tuple[float, float]:
        """Run one of the tool's commands; its seconds and CPU seconds."""
        cost = run(
            self.fill(text, **words), env=self.env, log=self.root / "log",
            self_timed=TOOLS[self.tool].get("self_timed", False),
        )  # fmt: skip
        self.rss_bytes = max(self.rss_bytes, cost.rss_bytes)
        return cost.seconds + (sync(self.store) if sync_after and self.synced else 0), cost.cpu_s

    def ingest(self, folders: list[Path], suffix: str) -> tuple[list[float], float]:
        """Ingest folders one by one; the seconds of each, and the CPU seconds of all."""
        os.sync()
        costs = [
            self.go(
                TOOLS[self.tool]["ingest"], sync_after=True, src=folder, name=folder.name + suffix,
                earlier=":".join(x.name for x in folders[:i]),
            )
            for i, folder in enumerate(folders)
        ]  # fmt: skip
        return [seconds for seconds, _ in costs], sum(cpu for _, cpu in costs)


def measure(
    tool: str, snapshots: list[Path], copies: list[Path], hashes: dict[Path, dict[str, str]], work: Path,
    options: argparse.Namespace,
) -> Row:  # fmt: skip
    """One run of one tool in a fresh store."""
    spec = TOOLS[tool]
    box = Box(tool, Path(tempfile.mkdtemp(prefix=f"{tool}-", dir=work)), not options.no_sync)
    try:
        if spec.get("init"):
            box.go(spec["init"])
        each, cpu_s = box.ingest(snapshots, "")
        allocated, apparent = space(box.store)
        row: Row = dict(
            first_s=sum(each), first_each_s=each, cpu_s=cpu_s, stored_bytes=allocated,
            stored_apparent_bytes=apparent, again_s=None, copied_s=None, grow_bytes=None,
        )  # fmt: skip
        if spec["dedup"]:
            row["again_s"] = sum(box.ingest(snapshots, "-again")[0])
            row["copied_s"] = sum(box.ingest(copies, "-copied")[0])
            row["grow_bytes"] = space(box.store)[0] - allocated
        os.sync()
        if options.cold:
            Path("/proc/sys/vm/drop_caches").write_text("3")
        each = []
        for folder in snapshots:
            dest = box.restored / folder.name
            dest.mkdir()
            each.append(box.go(spec["restore"], name=folder.name, dest=dest)[0])
        row.update(restore_s=sum(each), restore_each_s=each, rss_bytes=box.rss_bytes)
        for folder in snapshots:
            compare(box.restored / folder.name, hashes[folder], f"VERIFY: {folder.name}")
        return row
    finally:
        if not options.keep:
            shutil.rmtree(box.root, ignore_errors=True)


def median(values: list[Any]) -> Any:
    """The median of numbers, or of each place in lists of numbers; None where there is none."""
    if values[0] is None:
        return None
    if isinstance(values[0], list):
        return [statistics.median(place) for place in zip(*values, strict=True)]
    return statistics.median(values)


def ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def with_ratios(runs: dict[str, list[Row]]) -> dict[str, Row]:
    """Each tool's medians, and how they compare with the best peer's and with cp's."""
    rows = {
        tool: {"tool": tool} | {key: median([r[key] for r in all_runs]) for key in all_runs[0]}
        for tool, all_runs in runs.items()
        if all_runs
    }
    peers = [row for tool, row in rows.items() if tool not in (OURS, BASELINE)]
    best = {k: min((r[k] for r in peers if r[k] is not None), default=None) for _, k in RATIOS}
    base = rows.get(BASELINE, {})
    for row in rows.values():
        row["ratio_to_best_peer"] = {k: ratio(row[k], best[k]) for _, k in RATIOS}
        # Ingesting once more costs cp what the first time did: its `first` stands for its `again` and `copied`.
        row["ratio_to_cp"] = {k: ratio(row[k], base.get(k) or base.get("first_s")) for _, k in RATIOS}
    return rows


def natural(path: Path) -> tuple[int, str]:
    numbers = re.findall(r"\d+", path.name)
    return (int(numbers[-1]) if numbers else -1), path.name


def take_turns(
    tools: list[str], snapshots: list[Path], work: Path, options: argparse.Namespace
) -> tuple[dict[str, list[Row]], dict[str, str]]:
    """All runs of all tools, and why a tool failed."""
    hashes = {folder: digests(folder) for folder in snapshots}
    copies = [work / "copy" / folder.name for folder in snapshots]
    for source, copy in zip(snapshots, copies, strict=True):
        shutil.copytree(source, copy, symlinks=True)
    runs: dict[str, list[Row]] = {tool: [] for tool in tools}
    failed: dict[str, str] = {}
    for i in range(options.repeat):
        turn = i % len(tools)
        for tool in tools[turn:] + tools[:turn]:
            if tool in failed:
                continue
            print(f"  run {i + 1}/{options.repeat}: {tool}", file=sys.stderr, flush=True)
            try:
                runs[tool].append(measure(tool, snapshots, copies, hashes, work, options))
            except Failed as error:
                failed[tool] = str(error)
    return {tool: runs[tool] for tool in tools if tool not in failed}, failed


def bench(folder: Path, tools: list[str], options: argparse.Namespace) -> Row:
    """Measure all tools on one folder of checkpoints and print the tables."""
    snapshots = [folder] if options.whole else sorted((p for p in folder.iterdir() if p.is_dir()), key=natural)
    if not snapshots:
        sys.exit(f"peers.py: error: {folder} holds no checkpoint folders")
    total = sum(space(snapshot)[1] for snapshot in snapshots)
    if options.whole:
        tools = [tool for tool in tools if not TOOLS[tool].get("incremental_only")]
    types = {dtype_of(path) for snapshot in snapshots for path in snapshot.rglob("*") if path.is_file()}
    for tool in [t for t in tools if TOOLS[t].get("modules") and not any(knows(t, x) for x in types)]:
        print(f"skipped {tool} for {folder.name}: no file of a type that it knows")
        tools = [x for x in tools if x != tool]
    work = Path(tempfile.mkdtemp(prefix="peers-", dir=options.work or folder.parent))
    try:
        if shutil.disk_usage(work).free < 5 * total:
            sys.exit(f"peers.py: error: {work} has less than 5 times {total / 1e6:.0f} MB free; see --work")
        runs, failed = take_turns(tools, snapshots, work, options)
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    rows = with_ratios(runs)
    mode = "as one snapshot" if options.whole else "one snapshot each"
    print(
        f"\n{folder.name}: {len(snapshots)} checkpoint folder(s), {total / 1e6:.1f} MB, {mode}, median of "
        f"{options.repeat}, {machine()['cores']} core(s), {'cold' if options.cold else 'warm'} restore"
    )
    print_tables(rows)
    for tool, why in failed.items():
        print(f"FAILED {tool}: {why}")
    if rows:
        print(f"restored bytes equal the source: {', '.join(rows)}")
    return dict(
        dir=folder.name, bytes=total, snapshots=[s.name for s in snapshots], whole=options.whole,
        repeat=options.repeat, cold=options.cold, synced=not options.no_sync, tools=rows, runs=runs, failed=failed,
    )  # fmt: skip


def print_tables(rows: dict[str, Row]) -> None:
    show(
        ["s and MB", *(name for name, _, _ in COLUMNS)],
        [[tool, *(number(row[key], unit) for _, key, unit in COLUMNS)] for tool, row in rows.items()],
    )
    print()
    names = [name for name, _ in RATIOS]
    show(
        ["times the best peer's", *names, "|", "times cp's", *names],
        [
            [tool, *(number(row["ratio_to_best_peer"][k]) for _, k in RATIOS), "|", "",
             *(number(row["ratio_to_cp"][k]) for _, k in RATIOS)]
            for tool, row in rows.items()
        ],
    )  # fmt: skip


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("dirs", nargs="+", metavar="DIR", type=Path, help="folder of checkpoint folders; each gets its own table")
    add("--repeat", type=int, default=3)
    add("--whole", action="store_true", help="ingest DIR at once as a single snapshot")
    names = ", ".join(TOOLS)
    add("--tools", default="*", help=f"names or patterns, by comma (cp is always measured): {names}")
    add("--skip", default="", help="names or patterns to leave out, by comma")
    add("--json", metavar="FILE", help="also write all numbers there (- for standard output)")
    add("--work", type=Path, help="folder on a real disk for the stores (default: beside DIR)")
    add("--no-sync", action="store_true", help="leave the sync out of ingest times")
    add("--cold", action="store_true", help="drop the page cache before the restores (root only)")
    add("--keep", action="store_true", help="keep the stores")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error("--repeat must be 1 or more")
    if options.cold and not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        parser.error("--cold needs root")
    for folder in options.dirs:
        if not folder.is_dir():
            parser.error(f"{folder}: no such folder")
    return options


def choose_tools(options: argparse.Namespace) -> list[str]:
    """The tools that are asked for and installed."""

    def hit(tool: str, patterns: str) -> bool:
        return any(fnmatch.fnmatch(tool, pattern) for pattern in patterns.split(",") if pattern)

    chosen = []
    for tool in TOOLS:
        if tool != BASELINE and (not hit(tool, options.tools) or hit(tool, options.skip)):
            continue
        lack = missing(tool)
        if lack:
            print(f"skipped {tool}: {', '.join(lack)} not found")
        else:
            chosen.append(tool)
    return chosen


def find_programs() -> None:
    """Let the gpu-train of this environment come first, whether or not the environment is activated."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def main() -> None:
    options = parse_options()
    find_programs()
    tools = choose_tools(options)
    versions = {tool: version(tool) for tool in tools}
    for tool, text in versions.items():
        print(f"{tool}: {text}")
    corpora = [bench(folder.resolve(), tools, options) for folder in options.dirs]
    everything = dict(machine=machine(), versions=versions, corpora=corpora)
    if options.json == "-":
        print(json.dumps(everything, indent=1))
    elif options.json:
        Path(options.json).write_text(json.dumps(everything, indent=1) + "\n")
    for corpus in corpora:
        ours = corpus["tools"].get(OURS)
        if ours:
            ratios = {key: ours[key] for key in ("ratio_to_best_peer", "ratio_to_cp")}
            json_line(dict(benchmark="peers", dir=corpus["dir"], bytes=corpus["bytes"], **ratios))
    if any(corpus["failed"] for corpus in corpora):
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"peers.py: error: {error}")
