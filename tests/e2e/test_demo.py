"""The demo keeps its promises: every checkpoint captured, compared and restored, nothing left mounted."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from safetensors import safe_open


def test_the_demo_captures_what_its_trainer_deletes(shell, project):
    said = shell(f"python '{project}/demo/tour.py' --place place --steps 240 --every 40")
    assert "6 were saved; 4 of them the trainer has deleted: checkpoint-40, checkpoint-80" in said
    assert re.search(r"restored +checkpoint-40, every file compared", said)
    place = shell.folder / "place"
    assert "place/mnt" not in Path("/proc/self/mountinfo").read_text()
    # Restored from the store, and a file that others can read.
    with safe_open(place / "restored" / "checkpoint-40" / "model.safetensors", "pt") as weights:
        assert {str(weights.get_tensor(name).dtype) for name in weights.keys()} == {"torch.bfloat16"}  # noqa: SIM118


def test_the_demo_can_be_taken_again(shell, project):
    for _ in range(2):
        said = shell(f"python '{project}/demo/tour.py' --place 'a place' --steps 60 --every 20")
        assert "3 were saved; 1 of them the trainer has deleted: checkpoint-20" in said


def test_the_trainer_runs_without_gpu_train_too(shell, project):
    shell(f"env -u GPU_TRAIN_HOME python '{project}/demo/train.py' --steps 40 --every 20")
    state = json.loads((shell.folder / "checkpoints" / "checkpoint-40" / "trainer_state.json").read_text())
    losses = [row["loss"] for row in state["log_history"] if "loss" in row]
    assert state["global_step"] == 40
    assert losses[-1] < losses[0]


@pytest.fixture
def tour(project):
    spec = importlib.util.spec_from_file_location("tour", project / "demo" / "tour.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("change", ["other bytes", "one missing", "one too many"])
def test_the_demo_sees_every_difference(tour, tmp_path, change):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    files = {name: tour.sha256(tmp_path / name) for name in ("a", "b")}
    tour.compare(tmp_path, files)
    match change:
        case "other bytes":
            (tmp_path / "b").write_text("c")
        case "one missing":
            (tmp_path / "b").unlink()
        case "one too many":
            (tmp_path / "c").touch()
    with pytest.raises(tour.Failed, match="the trainer saved"):
        tour.compare(tmp_path, files)
