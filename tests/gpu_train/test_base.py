"""Which bases a job's checkpoints get: its newest of the same kind, what it went on from, and when to start afresh."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpu_train.base import bases_for, pattern_of
from gpu_train.importer import import_checkpoints
from gpu_train.tables.checkpoint import INCOMPLETE, Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas import Entry, Original, TensorClass
from gpu_train_cas.deltas import MAX_DEPTH

Write = Callable[..., None]
MODEL, ADAPTER = pattern_of(["model.safetensors"]), pattern_of(["adapter.safetensors"])


def weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((512, 512), dtype=np.float32)


def root_of(workspace: Workspace, checkpoint: Checkpoint) -> Entry:
    assert checkpoint.record is not None
    return workspace.store.record(checkpoint.record).root


@pytest.fixture
def trained(workspace: Workspace, tmp_path: Path, safetensors: Write) -> Callable[..., Checkpoint]:
    """Imports one checkpoint of one file into a job; its row."""

    def trained(job: str, name: str, file: str = "model.safetensors", values: np.ndarray | None = None) -> Checkpoint:
        safetensors(tmp_path / name / file, {"w": weights() if values is None else values})
        (stored,) = import_checkpoints(workspace, tmp_path / name, job)
        return stored.checkpoint

    return trained


def test_a_pattern_is_blind_to_numbers_and_to_what_holds_no_tensors() -> None:
    assert pattern_of(["lora-000100.safetensors", "README.md"]) == pattern_of(["lora-000200.safetensors"])
    assert pattern_of(["model.safetensors"]) != pattern_of(["model.safetensors", "optimizer.pt"])
    assert pattern_of([]) == pattern_of(["config.json"])
    assert pattern_of(["na\udcffme.pt"])


def test_the_newest_of_the_same_kind_comes_first_and_one_of_each_other_kind_after_it(
    workspace: Workspace, tmp_path: Path, trained: Callable[..., Checkpoint]
) -> None:
    rows = [
        trained("j", "checkpoint-1", "model.safetensors", weights(1)),
        trained("j", "checkpoint-2", "model.safetensors", weights(2)),
        trained("j", "checkpoint-3", "adapter.safetensors", weights(3)),
    ]
    job = rows[0].job_id
    assert [row.pattern for row in rows] == [MODEL, MODEL, ADAPTER]
    roots = [root_of(workspace, row) for row in rows]
    assert bases_for(workspace, job, MODEL, tmp_path).roots == [roots[1], roots[2]]
    assert bases_for(workspace, job, ADAPTER, tmp_path).roots == [roots[2], roots[1]]
    workspace.checkpoints.put(rows[1]._replace(state=INCOMPLETE))
    assert bases_for(workspace, job, MODEL, tmp_path).roots == [roots[0], roots[2]]


def test_a_first_checkpoint_looks_at_what_the_job_went_on_from(
    workspace: Workspace, tmp_path: Path, trained: Callable[..., Checkpoint]
) -> None:
    before = trained("before", "checkpoint-7", values=weights(1))
    loaded = trained("loaded", "checkpoint-8", values=weights(2))
    workspace.jobs.put(Job("next-aaaaaa", "next", parent=before.ref, loads=(before.ref, loaded.ref, "gone-aaaaaa@x")))
    roots = [root_of(workspace, before), root_of(workspace, loaded)]
    assert bases_for(workspace, "next-aaaaaa", MODEL, tmp_path).roots == roots
    own = trained("next-aaaaaa", "checkpoint-9", values=weights(1) * np.float32(1.001))
    assert own.classes[TensorClass.WEIGHTS.value][3] == 1
    assert bases_for(workspace, "next-aaaaaa", MODEL, tmp_path).roots == [root_of(workspace, own)]


def test_checkpoints_of_a_run_are_deltas_and_a_change_of_all_starts_afresh(
    workspace: Workspace, tmp_path: Path, trained: Callable[..., Checkpoint]
) -> None:
    values, rows = weights(1), []
    for step in range(1, 8):
        rows.append(trained("j", f"checkpoint-{step}", values=values))
        values = values * (1 + np.float32(1e-4) * weights(step + 100))
    depths = [row.classes["weights"][3] for row in rows]
    assert depths[0] == 0
    assert all(depth > 0 for depth in depths[1:])
    assert max(depths) <= MAX_DEPTH
    assert all(row.stored_bytes < 0.8 * rows[0].stored_bytes for row in rows[1:])
    fresh = trained("j", "checkpoint-50", values=weights(999))
    assert fresh.classes["weights"][3] == 0
    assert not workspace.store.verify().damaged


def test_a_job_without_checkpoints_has_no_bases(workspace: Workspace, tmp_path: Path) -> None:
    assert bases_for(workspace, "none-aaaaaa", MODEL, tmp_path).roots == []


def test_originals_are_the_folders_and_files_that_are_still_there(
    workspace: Workspace, trained: Callable[..., Checkpoint], tmp_path: Path
) -> None:
    rows = [trained("j", f"checkpoint-{step}", values=weights(step)) for step in (1, 2, 3)]
    roots = [root_of(workspace, row) for row in rows]
    found = bases_for(workspace, rows[0].job_id, MODEL, tmp_path).originals
    assert list(found) == [Original(roots[step - 1], tmp_path / f"checkpoint-{step}") for step in (3, 2, 1)]
    shutil.rmtree(tmp_path / "checkpoint-2")
    found = bases_for(workspace, rows[0].job_id, MODEL, tmp_path).originals
    assert [one.folder.name for one in found] == ["checkpoint-3", "checkpoint-1"]
    (stored,) = import_checkpoints(workspace, tmp_path / "checkpoint-3" / "model.safetensors", "single")
    (single,) = bases_for(workspace, stored.checkpoint.job_id, stored.checkpoint.pattern, tmp_path).originals
    assert single == Original(root_of(workspace, stored.checkpoint), tmp_path / "checkpoint-3")
