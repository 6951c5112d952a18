"""Base models: found by path, by name in the home and in the Hugging Face cache, and used for what was made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpu_train.importer import import_checkpoints
from gpu_train.workspace import Workspace
from gpu_train_cas import Codec, TensorClass
from gpu_train_cas.errors import NotFound, UsageError

Write = Callable[..., None]


def weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((512, 512), dtype=np.float32)


def model(write: Write, path: Path, seed: int = 0) -> Path:
    write(path / "model.safetensors", {"encoder.w": weights(seed)})
    (path / "config.json").write_text('{"model_type": "bert"}')
    (path / "tf_model.h5").write_bytes(b"another format" * 9999)
    return path


def tuned(write: Write, path: Path, seed: int = 0, says: str | None = None) -> Path:
    """A checkpoint that was made of the model of that seed."""
    write(path / "model.safetensors", {"bert.encoder.w": weights(seed) * np.float32(1.0001)})
    if says is not None:
        (path / "config.json").write_text(json.dumps({"_name_or_path": says}))
    return path


def deltas(workspace: Workspace, job: str) -> int:
    found = workspace.checkpoints.list(workspace.jobs.find(job).id)
    assert found[0].record is not None
    stats = workspace.store.stats([workspace.store.record(found[0].record).root])
    codecs = stats.classes[TensorClass.WEIGHTS].codecs
    return codecs[Codec.DELTA].blocks if Codec.DELTA in codecs else 0


def test_a_folder_is_registered_once_and_only_what_serves(
    workspace: Workspace, tmp_path: Path, safetensors: Write
) -> None:
    path = model(safetensors, tmp_path / "mini")
    added = workspace.models.add(path)
    assert (added.name, added.files, added.new) == ("mini", 2, True)
    assert not workspace.models.add(path).new
    assert [m.name for m in workspace.models.list()] == ["mini"]
    other = workspace.models.add(path, "org/tiny")
    assert workspace.models.get("tiny").record == other.record
    workspace.models.remove("org/tiny")
    assert [m.name for m in workspace.models.list()] == ["mini"]
    with pytest.raises(NotFound, match="mini"):
        workspace.models.get("maxi")


def test_names_are_looked_for_in_the_home_and_in_the_cache(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, safetensors: Write
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    cached = tmp_path / "hub" / "models--org--mini"
    blobs = model(safetensors, cached / "blobs")
    snapshot = cached / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    for name in ("model.safetensors", "config.json"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc123\n")
    found = workspace.models.add("org/mini")
    assert (found.name, found.revision, found.files) == ("org/mini", "abc123", 2)
    assert found.size_bytes > (blobs / "model.safetensors").stat().st_size
    model(safetensors, workspace.home.models / "own", seed=1)
    assert workspace.models.add("own").source == str(workspace.home.models / "own")
    with pytest.raises(NotFound, match="hf download org/none"):
        workspace.models.add("org/none")


def test_a_folder_without_tensors_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no tensors"):
        workspace.models.add(tmp_path / "empty")


@pytest.mark.parametrize("says", [None, "org/mini", "/elsewhere/mini"])
def test_the_first_checkpoint_of_a_fine_tune_is_a_delta(
    workspace: Workspace, tmp_path: Path, says: str | None, safetensors: Write
) -> None:
    workspace.models.add(model(safetensors, tmp_path / "mini"), "org/mini")
    if says is not None:  # the same tensors, other numbers: only what the checkpoint says tells them apart
        workspace.models.add(model(safetensors, tmp_path / "other", seed=5), "org/other")
    import_checkpoints(workspace, tuned(safetensors, tmp_path / "checkpoint-1", says=says), "tune")
    assert deltas(workspace, "tune") > 0
    workspace.models.remove("org/mini")
    workspace.store.gc(trash_days=0)
    assert not workspace.store.verify().damaged


def test_a_model_of_other_tensors_is_left_alone(workspace: Workspace, tmp_path: Path, safetensors: Write) -> None:
    safetensors(tmp_path / "odd" / "model.safetensors", {"decoder.v": weights()})
    workspace.models.add(tmp_path / "odd")
    assert workspace.models.roots_for(tuned(safetensors, tmp_path / "checkpoint-1")) == []
    import_checkpoints(workspace, tmp_path / "checkpoint-1", "tune")
    assert deltas(workspace, "tune") == 0
