"""Jobs of real frameworks, and what became of their checkpoints."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_train import Workspace
from gpu_train.tables.checkpoint import Checkpoint

KIT = Path(__file__).parents[2] / "kit"
PATIENCE_S = 240.0
"""Importing a framework takes seconds of a processor, on a busy machine many."""


@dataclass
class Trained:
    """A job that has ended well: its checkpoints, first captured first, what it said last, and its stderr."""

    job_id: str
    checkpoints: dict[str, Checkpoint]
    said: dict[str, Any]
    errors: str
    home: Path

    def files(self, name: str) -> set[str]:
        """The paths of a checkpoint's files."""
        with Workspace.open(self.home) as workspace:
            record = workspace.store.record(self.checkpoints[name].record or "")
            return {os.fsdecode(path) for path, e in workspace.store.reader.walk(record.root) if e.kind == 0}


@pytest.fixture
def train(launch, home: Path, require: Callable[..., None]) -> Callable[..., Trained]:
    """Runs a script of tests/kit/frameworks as a job whose agent looks for checkpoints by itself only at the end."""
    launch.env["PYTHONPATH"] = os.pathsep.join([str(KIT / "frameworks"), launch.env["PYTHONPATH"]])
    launch.env["GPU_TRAIN_CAPTURE_SCAN_S"] = "60"

    def train(script: str, *words: str, needs: tuple[str, ...] = (), ranks: int = 1, **arguments: Any) -> Trained:
        require("torch", *needs)
        ranked = ("-m", "torch.distributed.run", "--nproc-per-node", str(ranks)) if ranks > 1 else ()
        run = launch(sys.executable, *ranked, KIT / "frameworks" / f"{script}.py", *words, **arguments)
        return _outcome(run, home)

    return train


@pytest.fixture
def train_text(launch, home: Path, require: Callable[..., None]) -> Callable[..., Trained]:
    """Runs a script given by its name and text as a job."""

    def train(name: str, text: str, *, needs: tuple[str, ...] = ()) -> Trained:
        require("torch", *needs)
        (launch.cwd / name).write_text(text)
        return _outcome(launch(sys.executable, name, env={"OMP_NUM_THREADS": "1"}), home)

    return train


@pytest.fixture
def require() -> Callable[..., None]:
    """Skips the test when one of some packages is not installed."""

    def require(*names: str) -> None:
        missing = [name for name in names if importlib.util.find_spec(name) is None]
        if missing:
            pytest.skip(f"needs {', '.join(missing)}")

    return require


def _outcome(run: Any, home: Path) -> Trained:
    code, out, err = run.finish(PATIENCE_S)
    assert code == 0, err.decode()
    said = [line for line in out.decode().splitlines() if line.startswith('{"')]
    with Workspace.open(home) as workspace:
        rows = workspace.checkpoints.list(run.job_id)[::-1]
    return Trained(run.job_id, {c.name: c for c in rows}, json.loads(said[-1]) if said else {}, err.decode(), home)
