#!/usr/bin/env python3
"""How long does a code snapshot of 10,000 files take, when nothing changed and when something did?

    python benchmarks/bench_code.py [--files 10000] [--repeat 9]

Small source-like files, a hundred to a folder, in a git working tree when git is there; beside them a left-out
folder of 20,000 files. Medians over the repeats, in the process, without its start; the files' pages are in the
system's cache. Steps:

- unchanged: nothing was touched since the last snapshot;
- one changed: one file was rewritten;
- no notes: nothing was touched, but the stat cache is gone, so every file is read;
- git status: what `git status` alone takes on the same tree, as a measure of the machine.

Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import json_line, machine, show

from gpu_train.code import CodeVersions
from gpu_train.workspace import Workspace

PER_FOLDER = 100
LEFT_OUT_FILES = 20_000


def write_tree(root: Path, files: int) -> None:
    for n in range(files):
        folder = root / f"package{n // PER_FOLDER:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"module{n:05d}.py").write_text(f"def function_{n}(x):\n    return x + {n}\n" * 10)
    for n in range(LEFT_OUT_FILES):
        folder = root / ".venv" / "lib" / f"p{n // PER_FOLDER:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"m{n:05d}.py").write_text("x")
    if shutil.which("git"):
        (root / ".gitignore").write_text(".venv/\n")
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
        for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "bench"]):
            subprocess.run(["git", *words], cwd=root, check=True)


def a_minute_on() -> int:
    """The time at which files written just now count as old."""
    return time.time_ns() + 60_000_000_000


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(root: Path, home: Path, repeat: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {}
    with Workspace.open(home, cwd=root) as workspace:

        def snapshot() -> None:
            CodeVersions(workspace.home, workspace.config, workspace.store, clock=a_minute_on).snapshot(root)

        def git_status() -> None:
            subprocess.run(["git", "status", "--porcelain"], cwd=root, check=True, capture_output=True)

        def step(name: str, action: Callable[[], object]) -> None:
            seconds.setdefault(name, []).append(timed(action))

        seconds["first"] = [timed(snapshot)]
        changing = next(root.glob("package000/*.py"))
        for n in range(repeat):
            step("unchanged", snapshot)
            changing.write_text(f"x = {n}\n")
            step("one changed", snapshot)
            shutil.rmtree(workspace.home.cache)
            step("no notes", snapshot)
            if (root / ".git").is_dir():
                step("git status", git_status)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--work", type=Path, help="folder on a real disk (default: the temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-code-", dir=options.work) as name:
        work = Path(name)
        write_tree(work / "project", options.files)
        seconds = measure(work / "project", work / "home", options.repeat)
    medians = {step: statistics.median(values) for step, values in seconds.items()}
    print(f"{options.files} files, {LEFT_OUT_FILES} left out")
    show(
        ["snapshot", "median ms", "least ms"],
        [[step, f"{medians[step] * 1e3:.0f}", f"{min(values) * 1e3:.0f}"] for step, values in seconds.items()],
    )
    json_line(
        {"benchmark": "code", "machine": machine(), "files": options.files, "left_out_files": LEFT_OUT_FILES,
         "median_s": medians}
    )  # fmt: skip


if __name__ == "__main__":
    main()
