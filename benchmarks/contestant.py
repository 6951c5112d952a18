"""gpu-train, cp and borg as contestants: the same folders go into a fresh store of each and come back."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from measuring import compare, quoted, run, space, sync

PROGRAM = quoted(sys.executable, Path(__file__).with_name("store_program.py").resolve())
TOOLS = {
    "gpu-train": {
        "needs": None,
        "ingest": PROGRAM + " ingest {store} {source} {name}",
        "restore": PROGRAM + " restore {store} {dest} new",
    },
    "cp": {
        "needs": "cp",
        "ingest": "mkdir -p {store}/{name} && cp -r --reflink=never {source}/. {store}/{name}",
        "restore": "cp -r --reflink=never {store}/new/. {dest}",
    },
    "borg": {
        "needs": "borg",
        "init": "borg init -e none {store}/repo",
        "ingest": "cd {source} && borg create -C zstd,1 {store}/repo::{name} .",
        "restore": "cd {dest} && borg extract {store}/repo::new",
    },
}


@dataclass
class Sample:
    """One measured step of one tool."""

    seconds: float
    cpu_s: float
    rss_bytes: int
    stored_bytes: int


class Contestant:
    """A tool, its store of one repetition, and the environment of its commands."""

    def __init__(self, tool: str, root: Path) -> None:
        self.spec, self.root, self.store = TOOLS[tool], root, root / "store"
        self.store.mkdir(parents=True)
        self.env = dict(os.environ, BORG_BASE_DIR=str(root / "borg"), BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK="yes")
        if "init" in self.spec:
            self._go("init")

    def _go(self, step: str, **words: object) -> Sample:
        quoted_words = {key: quoted(value) for key, value in words.items()}
        command = self.spec[step].format(store=quoted(self.store), **quoted_words)
        cost = run(command, env=self.env, log=self.root / "log")
        return Sample(cost.seconds, cost.cpu_s, cost.rss_bytes, 0)

    def ingest(self, source: Path, name: str) -> Sample:
        os.sync()
        sample = self._go("ingest", source=source, name=name)
        sample.seconds += sync(self.store)
        sample.stored_bytes = space(self.store)[0]
        return sample

    def restore(self, expected: dict[str, str]) -> Sample:
        dest = self.root / "dest"
        dest.mkdir()
        sample = self._go("restore", dest=dest)
        compare(dest, expected, "restore")
        return sample


def middle(samples: list[Sample]) -> Sample:
    return Sample(
        statistics.median(s.seconds for s in samples),
        statistics.median(s.cpu_s for s in samples),
        max(s.rss_bytes for s in samples),
        int(statistics.median(s.stored_bytes for s in samples)),
    )


def present() -> list[str]:
    """The tools that this machine has; says which it lacks."""
    lacking = [tool for tool, spec in TOOLS.items() if spec["needs"] and not shutil.which(spec["needs"])]
    for tool in lacking:
        print(f"skipped {tool}: not found")
    return [tool for tool in TOOLS if tool not in lacking]


def take_turns(repeat: int, measure: Callable[[str], dict[str, Sample]]) -> dict[str, dict[str, Sample]]:
    """Measure every tool `repeat` times, in an order that rotates; the median of each step."""
    tools = present()
    samples: dict[str, list[dict[str, Sample]]] = {tool: [] for tool in tools}
    for i in range(repeat):
        turn = i % len(tools)
        for tool in tools[turn:] + tools[:turn]:
            print(f"  run {i + 1}/{repeat}: {tool}", file=sys.stderr, flush=True)
            samples[tool].append(measure(tool))
    return {
        tool: {step: middle([one[step] for one in all_runs]) for step in all_runs[0]}
        for tool, all_runs in samples.items()
    }


def ratios(rates: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """How many times as fast as each other tool gpu-train is, step by step."""
    ours = rates["gpu-train"]
    return {
        tool: {step: ours[step] / rate for step, rate in theirs.items()}
        for tool, theirs in rates.items()
        if tool != "gpu-train"
    }
