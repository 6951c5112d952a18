#!/usr/bin/env python3
"""What does capture keep of checkpoints that live for a moment, and what does it cost the training beside it?

    python benchmarks/bench_capture.py [--only loss overhead memory list] [--versions 40] [--rounds 3] [--gib 2]

loss: writers of six kinds (tests/kit/trainers/rotating.py) delete, replace or write over each checkpoint after 1 to
100 ms, in a whole `gpu-train run`. What is stored is compared with the writers' own lists: captured bit for bit,
reported (gone, or kept as incomplete), or neither, which must not be. `--no-realtime` takes the right to real-time
priority away from the sentry, as it is for most users (needs setpriv).

overhead: a torch training and a plain loop on every core, with and without gpu-train in turns; each writes a checkpoint
of 24 MB every 8 s. Medians and means of the steps' times, of all rounds together; they are to be judged on a machine
that does nothing else: `echo 0 > /proc/sys/kernel/sched_autogroup_enabled` and `nice -n -10` for this benchmark make
other processes matter less. What runner, agent and sentry used of the processors' time, start and end included,
depends less on that.

memory: the agent's and the sentry's peak while a checkpoint of so many GiB is captured.

list: `gpu-train checkpoints list` of 10,000 checkpoints of one job, start of the process included.

Prints tables and one JSON line.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from measuring import Cost, Failed, json_line, machine, number, quoted, run, show

from gpu_train import Workspace
from gpu_train.tables.checkpoint import VERIFIED, Checkpoint
from gpu_train.tables.job import Job

KIT = Path(__file__).resolve().parents[1] / "tests" / "kit"
PROGRAM = [sys.executable, "-m", "gpu_train_cli.main"]
KINDS = ("folder", "single", "move", "replace", "in_place", "again")
LIFETIMES_MS = (1, 2, 5, 10, 20, 50, 100)
MIB = 1 << 20
ROUND_S = 20.0
SAVE_S = 8.0
"""A checkpoint so often; real trainings save less often, which costs less."""


def environment_of(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GPU_TRAIN_")}
    return {**kept, "GPU_TRAIN_HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def run_job(home: Path, cwd: Path, command: Sequence[str], before: Sequence[str] = ()) -> Cost:
    """Run a command as a job to its end; what that took, with the agent and the sentry.

    Raises:
        Failed: for any exit but 0.
    """
    words = (
        f"export GPU_TRAIN_HOME={quoted(home)}; cd {quoted(cwd)}; {quoted(*before, *PROGRAM, 'run', '--', *command)}"
    )
    return run(words, env=environment_of(home), log=cwd / "log")


# What is kept


def losses(work: Path, kinds: Sequence[str], versions: int, *, realtime: bool) -> list[dict[str, object]]:
    """What became of the versions that each kind of writer wrote, by lifetime."""
    sys.path.insert(0, str(KIT))
    from rotation import Written, account

    before = [] if realtime else ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"]
    rows: list[dict[str, object]] = []
    for kind in kinds:
        for lifetime_ms in LIFETIMES_MS:
            folder = work / f"{kind}-{lifetime_ms}"
            folder.mkdir()
            home = folder / "home"
            writer = [sys.executable, str(KIT / "trainers" / "rotating.py"), kind, str(versions), str(lifetime_ms)]
            run_job(home, folder, writer, before)
            written = Written.of([folder])
            with Workspace.open(home) as workspace:
                (job,) = workspace.jobs.list()
                result = account(workspace, job.id, written)
            if result.wrong:
                raise Failed(f"{kind}, {lifetime_ms} ms: verified, but nobody finished it: {result.wrong}")
            silent = len(result.silent)
            reported = len(written.versions) - result.captured - silent
            rows.append({
                "kind": kind, "lifetime_ms": lifetime_ms, "captured": result.captured, "reported": reported,
                "silent": silent,
            })  # fmt: skip
            shutil.rmtree(folder)
    return rows


def show_losses(rows: list[dict[str, object]], versions: int) -> None:
    found = {(row["kind"], row["lifetime_ms"]): row for row in rows}
    print(f"captured / reported / silent, of {versions} each")
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        cells = [found[kind, lifetime] for lifetime in LIFETIMES_MS]
        lines.append([str(kind), *(f"{c['captured']} / {c['reported']} / {c['silent']}" for c in cells)])
    show(["kind", *(f"{lifetime} ms" for lifetime in LIFETIMES_MS)], lines)


# What it costs

TORCH = """
import os, sys, time
import torch
out, times, seconds, save_s = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
out = os.environ.get("GPU_TRAIN_CHECKPOINT_DIR", out)
torch.manual_seed(0)
torch.set_num_threads(len(os.sched_getaffinity(0)))
model = torch.nn.Sequential(*(layer for _ in range(2) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())))
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
rows = torch.randn(256, 1024)
taken, saved, begun, step = [], time.monotonic() - save_s / 2, time.monotonic(), 0
while time.monotonic() - begun < seconds:
    start = time.perf_counter()
    optimizer.zero_grad()
    model(rows).pow(2).mean().backward()
    optimizer.step()
    taken.append(time.perf_counter() - start)
    step += 1
    if time.monotonic() - saved > save_s:
        saved = time.monotonic()
        folder = os.path.join(out, f"checkpoint-{step}")
        os.makedirs(folder)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, os.path.join(folder, "state.pt"))
open(times, "w").write("\\n".join(map(str, [time.process_time(), *taken])))
"""

BUSY = """
import os, sys, time
out, times, seconds, save_s = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
out = os.environ.get("GPU_TRAIN_CHECKPOINT_DIR", out)
data = os.urandom(24 << 20)
first = True
for _ in range(len(os.sched_getaffinity(0)) - 1):
    if os.fork() == 0:
        first = False
        break
taken, saved, begun, step = [], time.monotonic() - save_s / 2, time.monotonic(), 0
while time.monotonic() - begun < seconds:
    start = time.perf_counter()
    x = 1
    for _ in range(100_000):
        x = x * 5 % 1_000_003
    taken.append(time.perf_counter() - start)
    step += 1
    if first and time.monotonic() - saved > save_s:
        saved = time.monotonic()
        os.makedirs(os.path.join(out, f"checkpoint-{step}"))
        with open(os.path.join(out, f"checkpoint-{step}", "state.pkl"), "wb") as file:
            file.write(data[step % 4096:])
if first:
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass
open(f"{times}{'' if first else os.getpid()}", "w").write("\\n".join(map(str, [time.process_time(), *taken])))
"""


def overhead(work: Path, text: str, rounds: int) -> dict[str, object]:
    """Steps' times with and without capture, in turns, their ratios, and what ran beside the training."""
    script, taken = work / "train.py", {"off": list[float](), "on": list[float]()}
    beside_s = wall_s = 0.0
    script.write_text(text)
    for turn in range(2 * rounds):
        which = ("off", "on", "on", "off")[turn % 4]
        folder = work / f"turn-{turn}"
        (folder / "out").mkdir(parents=True)
        command = [sys.executable, str(script), str(folder / "out"), str(folder / "times"), str(ROUND_S), str(SAVE_S)]
        if which == "on":
            cost = run_job(folder / "home", folder, command)
            beside_s += cost.cpu_s
            wall_s += cost.seconds
        else:
            subprocess.run(command, cwd=folder, check=True)
        for times in folder.glob("times*"):
            cpu_s, *steps = (float(line) for line in times.read_text().split())
            taken[which] += steps[5:]
            beside_s -= cpu_s if which == "on" else 0
        shutil.rmtree(folder)
    cores = len(os.sched_getaffinity(0))
    share = beside_s / wall_s / cores
    result: dict[str, object] = {
        "rounds": rounds, "load": os.getloadavg()[0], "beside_cpu_s": beside_s, "beside_share": share,
    }  # fmt: skip
    for name, of in (("median", statistics.median), ("mean", statistics.fmean)):
        off, on = of(taken["off"]), of(taken["on"])
        result |= {f"{name}_off_ms": off * 1e3, f"{name}_on_ms": on * 1e3, f"{name}_ratio": on / off}
    return result


# What it holds

LARGE = """
import os, sys
out, mib = os.environ["GPU_TRAIN_CHECKPOINT_DIR"], int(sys.argv[1])
import json, random
os.makedirs(f"{out}/checkpoint-1")
header = json.dumps({"w": {"dtype": "F32", "shape": [mib << 18], "data_offsets": [0, mib << 20]}}).encode()
with open(f"{out}/checkpoint-1/model.safetensors", "wb") as file:
    file.write(len(header).to_bytes(8, "little") + header)
    block = os.urandom(1 << 20)
    for n in range(mib):
        file.write(n.to_bytes(8, "little") + block[8:])
with open(f"{out}/checkpoint-1/trainer_state.json", "w") as file:
    file.write("{}")
"""


def memory(work: Path, gib: int) -> dict[str, object]:
    """The largest that agent and sentry ever were while a large checkpoint was captured."""
    home = work / "home"
    process = subprocess.Popen(
        [*PROGRAM, "run", "--", sys.executable, "-c", LARGE, str(gib << 10)], env=environment_of(home), cwd=work,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    peaks = {"agent": {"rss": 0, "pss": 0}, "sentry": {"rss": 0, "pss": 0}}
    start = time.monotonic()
    while process.poll() is None:
        for name, pid in processes_of(home):
            peak = peaks[name]
            peak["rss"] = max(peak["rss"], kib(Path(f"/proc/{pid}/status"), "VmHWM:"))
            peak["pss"] = max(peak["pss"], kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:"))
        time.sleep(0.05)
    if process.returncode:
        raise Failed(f"exit {process.returncode} from the job with a checkpoint of {gib} GiB")
    seconds = time.monotonic() - start
    return {
        "gib": gib,
        "seconds": seconds,
        **{f"{n}_{k}_mib": v / 1024 for n, p in peaks.items() for k, v in p.items()},
    }


def processes_of(home: Path) -> Iterator[tuple[str, int]]:
    names = {b"gpu_train.capture": "agent", b"gpu_train.capture.watch": "sentry"}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        for module, name in names.items():
            if module in words and any(word.startswith(os.fsencode(home)) for word in words):
                yield name, int(folder.name)


def kib(path: Path, field: str) -> int:
    try:
        return next((int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(field)), 0)
    except OSError:
        return 0


# What is listed


def listing(work: Path, count: int, repeat: int) -> dict[str, object]:
    """How long it takes to list so many checkpoints of one job."""
    home, now = work / "home", time.time_ns()
    with Workspace.open(home) as workspace:
        workspace.jobs.put(Job("many-aaaaaa", "many", status="finished", created_ns=now))
        with workspace.store.transaction("benchmark") as txn:
            for n in range(count):
                row = Checkpoint(
                    "many-aaaaaa", f"checkpoint-{n}", step=n, state=VERIFIED, proof="hf-trainer", created_ns=now + n,
                    committed_ns=now + n, size_bytes=10**9, stored_bytes=10**8, files=7, metrics={"loss": 1 / (n + 1)},
                    source=f"/home/somebody/runs/checkpoint-{n}", fingerprint=f"{n:032x}",
                )  # fmt: skip
                workspace.checkpoints.add_in(txn, row)
    result: dict[str, object] = {"count": count}
    for name, words in (("table", []), ("json", ["-o", "json"])):
        taken = []
        for _ in range(repeat + 1):
            start = time.perf_counter()
            done = subprocess.run(
                [*PROGRAM, "checkpoints", "list", "many-aaaaaa", *words], env=environment_of(home), cwd=work,
                capture_output=True, check=True,
            )  # fmt: skip
            taken.append(time.perf_counter() - start)
            if done.stdout.count(b"checkpoint-") < count:
                raise Failed(f"checkpoints list printed {len(done.stdout.splitlines())} lines for {count} checkpoints")
        result |= {f"{name}_s": statistics.median(taken[1:]), f"{name}_least_s": min(taken[1:])}
    return result


def show_pairs(title: str, row: Mapping[str, object]) -> None:
    print(f"\n{title}")
    show(
        ["", "figure"], [[key, number(value) if isinstance(value, float) else str(value)] for key, value in row.items()]
    )


def main() -> None:
    parts = ("loss", "overhead", "memory", "list")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, metavar="PART", help=", ".join(parts))
    parser.add_argument("--versions", type=int, default=40, help="of each kind and lifetime")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--no-realtime", action="store_true", help="without the right to real-time priority")
    parser.add_argument("--rounds", type=int, default=3, help=f"of {ROUND_S:.0f} s with and without capture each")
    parser.add_argument("--gib", type=int, default=2, help="size of the large checkpoint")
    parser.add_argument("--repeat", type=int, default=10, help="of the listing")
    parser.add_argument("--work", type=Path, help="folder on a real disk (default: the temporary folder)")
    options = parser.parse_args()
    result: dict[str, object] = {"benchmark": "capture", "machine": machine(), "load": os.getloadavg()[0]}
    for part in options.only:
        with tempfile.TemporaryDirectory(prefix="bench-capture-", dir=options.work) as name:
            work = Path(name)
            if part == "loss":
                result[part] = rows = losses(work, options.kinds, options.versions, realtime=not options.no_realtime)
                show_losses(rows, options.versions)
            elif part == "overhead":
                result[part] = found = {
                    k: overhead(work, t, options.rounds) for k, t in (("torch", TORCH), ("busy", BUSY))
                }
                for key, row in found.items():
                    show_pairs(f"{key}, steps with and without capture", row)
            elif part == "memory":
                result[part] = row = memory(work, options.gib)
                show_pairs("memory", row)
            else:
                result[part] = row = listing(work, 10_000, options.repeat)
                show_pairs("checkpoints list", row)
    json_line(result)


if __name__ == "__main__":
    main()
