#!/usr/bin/env python3
"""What does one call of gpu-train cost, whatever the size of what it works on?

    python benchmarks/bench_startup.py [--repeat 20] [--before ~/older/gpu-train]

Each command runs as a process of its own on a home with one small checkpoint, so that what it takes is start-up,
opening, the fixed part of the work, and the process's end. The commands take turns, so that a busy machine is busy for
all of them; medians over the repeats, after one turn that fills caches. CPU seconds include the processes that a
command starts (`run`: the capture agent). In shares of `python -c pass`, and beside it `python -S -c pass`, which
leaves the site folders out.

`--before` measures another source tree in the same turns.

Python's bytecode is cached in a folder of the benchmark's own: without that cache everything takes several times as
long.

Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import Cost, Failed, json_line, machine, show

SOURCE_ROOTS = ("", "cas", "fuse", "cli")
PROGRAM = [sys.executable, "-m", "gpu_train_cli.main"]
BARE, NO_SITE = "python -c pass", "python -S -c pass"
JOB = "small"


@dataclass(frozen=True)
class Call:
    """A command to measure."""

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]


def write_checkpoint(folder: Path, step: int) -> Path:
    """A checkpoint of 100 KB of weights, others for each step."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    normal = random.Random(step).gauss
    data = array("f", (normal(0, 0.02) for _ in range(25_000))).tobytes()
    header = json.dumps({"w": {"dtype": "F32", "shape": [25_000], "data_offsets": [0, len(data)]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return path


def environment_of(tree: Path, work: Path, label: str) -> dict[str, str]:
    """Under which a source tree's packages are used, with a home and a bytecode cache of their own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPU_TRAIN", "PYTHON"))}
    roots = os.pathsep.join(str(tree / root) for root in SOURCE_ROOTS)
    return {
        **kept, "PYTHONPATH": roots, "PYTHONPYCACHEPREFIX": str(work / "bytecode"),
        "GPU_TRAIN_HOME": str(work / f"home-{label}"), "NO_COLOR": "1",
    }  # fmt: skip


def calls_of(environment: Mapping[str, str], work: Path, turn: int) -> list[Call]:
    """The commands of one turn: a new checkpoint is another one each time."""
    label = Path(environment["GPU_TRAIN_HOME"]).name
    new = write_checkpoint(work / "new" / label, turn + 2)
    restored = work / "restored" / label / str(turn)
    restored.parent.mkdir(parents=True, exist_ok=True)
    completing = {"_GPU_TRAIN_COMPLETE": "bash_complete", "COMP_WORDS": "gpu-train checkpoints im", "COMP_CWORD": "2"}
    a_ref = {"COMP_WORDS": f"gpu-train checkpoints show {JOB}@", "COMP_CWORD": "3"}
    words = {
        "gpu-train --help": ["--help"],
        "checkpoints list": ["checkpoints", "list", JOB],
        "checkpoints cat": ["checkpoints", "cat", f"{JOB}@step:1/trainer_state.json"],
        "checkpoints restore": ["checkpoints", "restore", f"{JOB}@step:1", "--dest", str(restored)],
        "checkpoints import, known": ["checkpoints", "import", str(work / "checkpoint-1"), "--job", JOB],
        "checkpoints import, new": ["checkpoints", "import", str(new), "--job", JOB],
        "run -- true": ["run", "--name", "nothing", "--", "true"],
    }
    return [
        Call("import gpu_train", [sys.executable, "-c", "import gpu_train"], environment),
        Call("completion", PROGRAM, {**environment, **completing}),
        Call("completion of a ref", PROGRAM, {**environment, **completing, **a_ref}),
        *(Call(name, [*PROGRAM, *arguments], environment) for name, arguments in words.items()),
    ]


def spent_on(call: Call, cwd: Path) -> Cost:
    """Run a command to its end.

    Raises:
        Failed: for any exit but 0.
    """
    start = time.perf_counter()
    process = subprocess.Popen(
        call.words, env=call.environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Failed(f"exit {process.returncode} from {' '.join(call.words)}")
    return Cost(seconds, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime)


def measure(environments: Mapping[str, Mapping[str, str]], work: Path, repeat: int) -> dict[str, dict[str, list[Cost]]]:
    """{tree: {command: what each turn took}}."""
    project = work / "project"
    project.mkdir()
    (project / "train.py").write_text("print('trained')\n")
    write_checkpoint(work, 1)
    costs: dict[str, dict[str, list[Cost]]] = {label: {} for label in environments}
    for turn in range(repeat + 1):
        for label, environment in environments.items():
            if turn == 0:
                first = ["checkpoints", "import", str(work / "checkpoint-1"), "--job", JOB]
                spent_on(Call("", [*PROGRAM, *first], environment), project)
            bare = [
                Call(NO_SITE, [sys.executable, "-S", "-c", "pass"], environment),
                Call(BARE, [sys.executable, "-c", "pass"], environment),
            ]
            for call in [*bare, *calls_of(environment, work, turn)]:
                cost = spent_on(call, project)
                if turn:
                    costs[label].setdefault(call.name, []).append(cost)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--before", type=Path, help="another source tree, to compare with")
    parser.add_argument("--work", type=Path, help="folder on a real disk (default: the temporary folder)")
    options = parser.parse_args()
    trees = {"here": Path(__file__).resolve().parents[1]}
    if options.before:
        trees = {"before": options.before.resolve(), **trees}
    with tempfile.TemporaryDirectory(prefix="bench-startup-", dir=options.work) as name:
        work = Path(name)
        environments = {label: environment_of(tree, work, label) for label, tree in trees.items()}
        costs = measure(environments, work, options.repeat)
    cpu_s = {
        label: {command: statistics.median(cost.cpu_s for cost in taken) for command, taken in commands.items()}
        for label, commands in costs.items()
    }
    wall_s = {
        label: {command: statistics.median(cost.seconds for cost in taken) for command, taken in commands.items()}
        for label, commands in costs.items()
    }
    rows = []
    for command, seconds in cpu_s["here"].items():
        row = [command, f"{seconds:.3f}", f"{wall_s['here'][command]:.3f}"]
        row += [f"{seconds / cpu_s['here'][bare]:.1f}" for bare in (BARE, NO_SITE)]
        rows.append(row + ([f"{cpu_s['before'][command]:.3f}"] if options.before else []))
    show(
        ["command", "CPU s", "wall s", "of bare", "of -S"] + (["before, CPU s"] if options.before else []),
        rows,
    )
    json_line(
        {"benchmark": "startup", "machine": machine(), "repeat": options.repeat, "cpu_s": cpu_s, "wall_s": wall_s}
    )


if __name__ == "__main__":
    main()
