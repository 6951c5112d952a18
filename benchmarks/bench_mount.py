#!/usr/bin/env python3
"""How fast is a mount, against what FUSE, the engine and a plain file would give, and against borg's and restic's?

    python benchmarks/bench_mount.py [--mib 512] [--repeat 3] [--before ~/older/gpu-train] [--only reads,load]

Everything is read in turns, in one run, and each figure is the median of --repeat. `--before` serves the same mounts by
another source tree (built in place) as well.

reads   Three files: `raw`, random bytes (nothing to decode); `float`, BF16 weights; `delta`, the same some steps later.
        plain        the file itself, from the page cache
        noop         a plain mfusepy file system that returns zeros: what FUSE and Python alone cost
        engine x N   the engine's reader, on all cores, without a mount
        cold, mmap   a fresh mount, front to back: by 1 MiB reads, through mmap
        warm         the same mount again: the kernel has the pages
        4, 16        a fresh mount, by so many threads, each with a part of the file of its own
peers   `borg mount` and `restic mount` of raw and float, against `cold`.
random  4 KiB at random places of a file of --large GiB, in its first and in its last hundredth, and an open of it.
load    safetensors.safe_open with every tensor, transformers.from_pretrained of a small model made here: from a fresh
        mount and from plain files, neither in the page cache (nor what the mount reads from).
home    10,000 checkpoints: until the mount is ready, a first and a second `ls -l`, and its memory.

But for `load`, packs and files are in the page cache: the disk is not what is measured. Rates are MB (10^6) a second.
On a machine that others use: echo 0 > /proc/sys/kernel/sched_autogroup_enabled, and nice -n -10 this.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from bf16_checkpoint import write_checkpoint
from measuring import Failed, json_line, machine, number, show
from mount_peers import Peer, installed
from mounting import (
    FILE,
    cpu_s,
    drop_pages,
    memory_bytes,
    mounted,
    noop,
    random_reads_us,
    rate,
    read_engine,
    read_file,
    read_mapped,
    read_parallel,
    store,
    store_many,
    write_later,
    write_random,
    write_repeated,
)

import gpu_train_fuse
from gpu_train import Workspace
from gpu_train_cas import Entry

HERE = Path(__file__).resolve().parents[1]
SECTIONS = ("reads", "peers", "random", "load", "home")
READERS = (4, 16)
CHECKPOINTS = 10_000
Figures = dict[str, float]


class Bench:
    """The files, the homes that hold them, and the trees that serve them."""

    def __init__(self, work: Path, options: argparse.Namespace) -> None:
        self.work, self.options = work, options
        self.trees = {"now": HERE} | ({"before": options.before.resolve()} if options.before else {})
        self.home, self.point = work / "home", work / "m"
        self.cores = len(os.sched_getaffinity(0))

    def median(self, once: Callable[[dict[str, list[float]]], None]) -> Figures:
        """Figures by name, each measured in every round."""
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(self.options.repeat):
            once(found)
        return {name: statistics.median(values) for name, values in found.items()}

    def job_file(self, name: str, file: str = FILE) -> tuple[str, Path]:
        return f"{name}-aaaaaa", self.point / "latest" / file

    # ---- reads

    def make_files(self, workspace: Workspace) -> dict[str, Entry]:
        write_random(self.work / "raw" / FILE, self.options.mib)
        write_checkpoint(self.work / "float" / FILE, self.options.mib, 0)
        write_later(self.work / "delta" / FILE, self.work / "float" / FILE)
        roots = {name: store(workspace, name, self.work / name) for name in ("raw", "float")}
        return roots | {"delta": store(workspace, "delta", self.work / "delta", roots["float"])}

    def reads(self, workspace: Workspace, name: str, root: Entry) -> Figures:
        path = self.work / name / FILE
        size = path.stat().st_size
        read_file(path)

        def once(found: dict[str, list[float]]) -> None:
            found["plain"].append(rate(lambda: read_file(path), size))
            with noop(self.work / "noop", size) as zeros:
                found["noop"].append(rate(lambda: read_file(zeros), size))
            found[f"engine x {self.cores}"].append(rate(lambda: read_engine(workspace, root, self.cores), size))
            for label, tree in self.trees.items():
                self.through_mount(tree, name, size, found, "" if label == "now" else f", {label}")

        return self.median(once)

    def through_mount(self, tree: Path, name: str, size: int, found: dict[str, list[float]], mark: str) -> None:
        target, path = self.job_file(name)
        with mounted(tree, self.home, target, self.point) as (pid, _):
            begun = cpu_s(pid)
            found[f"cold{mark}"].append(rate(lambda: read_file(path), size))
            found[f"cold, CPU s/GB{mark}"].append((cpu_s(pid) - begun) / (size / 1e9))
            found[f"warm{mark}"].append(rate(lambda: read_file(path), size))
        with mounted(tree, self.home, target, self.point):
            found[f"mmap{mark}"].append(rate(lambda: read_mapped(path), size))
        for readers in READERS:
            with mounted(tree, self.home, target, self.point):
                found[f"{readers}{mark}"].append(rate(lambda readers=readers: read_parallel(path, readers), size))

    # ---- peers

    def peers(self) -> dict[str, Figures]:
        folders = [self.work / "raw", self.work / "float"]
        known = {}
        for name in installed():
            peer = Peer(name, self.work, folders)
            try:
                with peer.mounted(self.work / f"{name}-m"):
                    known[name] = peer
            except Failed as e:
                print(f"left out: {e}")
        sizes = {folder.name: (folder / FILE).stat().st_size for folder in folders}

        def once(found: dict[str, list[float]]) -> None:
            for kind, size in sizes.items():
                target, path = self.job_file(kind)
                with mounted(HERE, self.home, target, self.point):
                    found[f"{kind} gpu-train"].append(rate(lambda path=path: read_file(path), size))
                for name, peer in known.items():
                    with peer.mounted(self.work / f"{name}-m") as root:
                        there = root / (self.work / kind / FILE).relative_to("/")
                        found[f"{kind} {name}"].append(rate(lambda there=there: read_file(there), size))

        figures = self.median(once)
        return {kind: {n: figures[f"{kind} {n}"] for n in ("gpu-train", *known)} for kind in sizes}

    # ---- random

    def random(self, workspace: Workspace) -> dict[str, Figures]:
        path = self.work / "large" / "w.npy"
        write_repeated(path, self.options.large)
        size = path.stat().st_size
        store(workspace, "large", path.parent)
        path.unlink()
        ends = {"first": (0, size // 100), "last": (size - size // 100, size)}
        result = {}
        for label, tree in self.trees.items():
            target, there = self.job_file("large", "w.npy")
            with mounted(tree, self.home, target, self.point):
                there.parent.stat()
                start = time.perf_counter()
                os.close(os.open(there, os.O_RDONLY))
                opened = time.perf_counter() - start
                figures = random_reads_us(there, ends, 1000)
            result[label] = {"open ms": opened * 1e3} | {f"{k} us": v for k, v in figures.items()}
        return result

    # ---- load

    def load(self, workspace: Workspace) -> dict[str, Figures]:
        import safetensors  # these take seconds, and only this part needs them
        import torch
        from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, vocab_size=32_000
        )
        model = LlamaForCausalLM(config).to(torch.bfloat16)
        model.save_pretrained(self.work / "llama")
        del model
        store(workspace, "llama", self.work / "llama")

        def safe_open(folder: Path) -> None:
            with safetensors.safe_open(folder / FILE, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  it is no mapping
                    file.get_tensor(name).clone()

        def from_pretrained(folder: Path) -> None:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
            for parameter in model.parameters():
                parameter.sum()

        ways = {"safe_open": safe_open, "from_pretrained": from_pretrained}
        for way in ways.values():
            way(self.work / "llama")  # whatever is done once

        def once(found: dict[str, list[float]]) -> None:
            for name, way in ways.items():
                drop_pages(self.work / "llama")
                found[f"{name} plain s"].append(_seconds(lambda way=way: way(self.work / "llama")))
                for label, tree in self.trees.items():
                    drop_pages(self.home)
                    with mounted(tree, self.home, "llama-aaaaaa", self.point):
                        there = self.point / "latest"
                        found[f"{name} {label} s"].append(_seconds(lambda way=way, there=there: way(there)))

        figures = self.median(once)
        return {
            name: {"plain s": figures[f"{name} plain s"]}
            | {f"{label} s": figures[f"{name} {label} s"] for label in self.trees}
            for name in ways
        }

    # ---- home

    def many(self) -> dict[str, Figures]:
        home, source = self.work / "many", self.work / "small"
        source.mkdir()
        (source / "a.bin").write_bytes(bytes(1000))
        with Workspace.open(home) as workspace:
            store_many(workspace, "many", source, CHECKPOINTS)
        result: dict[str, Figures] = {}
        for label, tree in self.trees.items():
            for target in ("many-aaaaaa", "all"):
                with mounted(tree, home, target, self.point) as (_, seconds):
                    pass
                result.setdefault(label, {})[f"ready s, {'all' if target == 'all' else 'job'}"] = seconds
            with mounted(tree, home, "many-aaaaaa", self.point) as (pid, _):
                for what in ("first ls -l s", "second ls -l s"):
                    folder = self.point / "checkpoints"
                    result[label][what] = _seconds(
                        lambda folder=folder: subprocess.run(["ls", "-l", folder], check=True, capture_output=True)
                    )
                result[label]["memory MiB"] = memory_bytes(pid) / (1 << 20)
        return result


def _seconds(do: Callable[[], object]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def targets(found: dict[str, dict[str, Figures]], cores: int) -> list[tuple[str, float, str]]:
    """What is aimed at: what it is, what was found, and what it should be."""
    lines: list[tuple[str, float, str]] = []
    reads = found.get("reads", {})
    for name, of in reads.items():
        other = "noop" if name == "raw" else f"engine x {cores}"
        lines.append((f"{name}, cold, of {other}", of["cold"] / of[other], ">= 0.7"))
        lines.append((f"{name}, warm, of plain", of["warm"] / of["plain"], ">= 0.9"))
        lines.append((f"{name}, 16 readers, of one", of["16"] / of["cold"], ">= 1"))
    for kind, of in found.get("peers", {}).items():
        lines += [(f"{kind}, of {n}", of["gpu-train"] / v, ">= 5") for n, v in of.items() if n != "gpu-train"]
    for of in [found["random"]["now"]] if "random" in found else []:
        lines.append(("4 KiB at the end, of at the start", of["last us"] / of["first us"], "<= 1.1"))
    for name, of in found.get("load", {}).items():
        lines.append((f"{name}, of plain", of["now s"] / of["plain s"], "<= 1.3"))
    for of in [found["home"]["now"]] if "home" in found else []:
        lines += [(f"{CHECKPOINTS:,} checkpoints, {k}", v, "<= 0.5") for k, v in of.items() if k.startswith("ready")]
        lines.append((f"{CHECKPOINTS:,} checkpoints, memory MiB", of["memory MiB"], "<= 214"))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="size of each file that is read front to back")
    parser.add_argument("--large", type=int, default=10, help="GiB of the file that is read at random")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--before", type=Path, help="another source tree, to compare with")
    parser.add_argument("--only", default=",".join(SECTIONS), help="parts to measure, of " + ", ".join(SECTIONS))
    parser.add_argument("--dir", type=Path, help="where to work (by default the temporary folder)")
    options = parser.parse_args()
    parts = options.only.split(",")
    gpu_train_fuse.check()
    work = Path(tempfile.mkdtemp(prefix="bench-mount-", dir=options.dir)).resolve()
    bench = Bench(work, options)
    found: dict[str, dict[str, Figures]] = {}
    try:
        with Workspace.open(bench.home) as workspace:
            if "reads" in parts or "peers" in parts:
                roots = bench.make_files(workspace)
            if "reads" in parts:
                found["reads"] = {name: bench.reads(workspace, name, root) for name, root in roots.items()}
            if "peers" in parts:
                found["peers"] = bench.peers()
            if "random" in parts:
                found["random"] = bench.random(workspace)
            if "load" in parts:
                found["load"] = bench.load(workspace)
            if "home" in parts:
                found["home"] = bench.many()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for part, columns in found.items():
        print(f"\n{part}, medians of {options.repeat}")
        rows = list(dict.fromkeys(row for of in columns.values() for row in of))
        show(["", *columns], [[row, *(number(of.get(row)) for of in columns.values())] for row in rows])
    print("\nfound and aimed at")
    lines = targets(found, bench.cores)
    show(["", "found", "aim"], [[what, f"{value:.2f}", aim] for what, value, aim in lines])
    json_line(
        {
            "benchmark": "mount", "mib": options.mib, "figures": found,
            "targets": {what: round(value, 3) for what, value, _ in lines}, "machine": machine(),
        }
    )  # fmt: skip


if __name__ == "__main__":
    main()
