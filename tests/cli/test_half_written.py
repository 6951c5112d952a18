"""A half-written checkpoint is reached by its name alone, on every way in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpu_train
from gpu_train_cas.errors import Incomplete
from gpu_train_fuse.catalogue import WorkspaceCatalogue


@pytest.fixture
def job(program, safetensors, tmp_path: Path) -> str:
    """A job whose whole checkpoint is older than what crashes left behind: under its name and step, and later."""
    import numpy as np

    def write(folder: Path, value: int, *, whole: bool, loss: float) -> None:
        safetensors(folder / "model.safetensors", {"w": np.full(1 << 19, value, np.float32)})
        state = json.dumps({"log_history": [{"step": int(folder.name[11:]), "loss": loss}]})
        (folder / "trainer_state.json").write_text(state if whole else state[:-3])

    write(tmp_path / "a" / "checkpoint-5", 1, whole=True, loss=0.5)
    write(tmp_path / "b" / "checkpoint-5", 2, whole=False, loss=0.1)
    write(tmp_path / "b" / "checkpoint-9", 3, whole=False, loss=0.1)
    for run in ("a", "b"):
        program("checkpoints", "import", tmp_path / run, "--job", "train")
    with gpu_train.Workspace.open(program.home) as workspace:
        found = workspace.jobs.find("train").id
        states = {c.name: c.state for c in workspace.checkpoints.list(found)}
    assert states == {"checkpoint-5": "verified", "checkpoint-5~2": "incomplete", "checkpoint-9": "incomplete"}
    return found


@pytest.mark.parametrize("ref", ["", "@latest", "@best", "@step:5", "@checkpoint-5", "@checkpoint-5~1"])
def test_refs_give_the_whole_one(program, job: str, ref: str, tmp_path: Path) -> None:
    shown = program("checkpoints", "show", f"{job}{ref or '@latest'}").stdout
    assert shown.startswith("checkpoint          checkpoint-5\n")
    assert "state               verified" in shown
    program("checkpoints", "restore", f"{job}{ref}", "--dest", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    loaded = gpu_train.load_tensors(f"{job}{ref}", home=program.home)
    assert [tensor[0] for tensor in loaded.values()] == [1]
    inside = f"{job}{ref or '@latest'}/trainer_state.json"
    assert json.loads(program("checkpoints", "cat", inside).stdout)
    with gpu_train.open(inside, home=program.home) as file:
        assert json.loads(file.read())


def test_the_library_and_the_mount_give_the_whole_one(program, job: str) -> None:
    path = gpu_train.latest_checkpoint(job, home=program.home)
    assert path is not None
    assert json.loads((path / "trainer_state.json").read_text())
    with gpu_train.Workspace.open(program.home) as workspace:
        shown = WorkspaceCatalogue(workspace).job(job)
        whole = workspace.checkpoints.resolve(f"{job}@checkpoint-5~1")[0]
    assert [c.name for c in shown.checkpoints] == ["checkpoint-5"]
    assert shown.latest == shown.best == whole.record


def test_the_others_are_there_by_name(program, job: str, tmp_path: Path) -> None:
    for name in ("checkpoint-9", "checkpoint-5~2"):
        shown = program("checkpoints", "show", f"{job}@{name}").stdout
        assert "state               incomplete" in shown
        assert "trainer_state.json (it is cut short)" in shown
        program("checkpoints", "restore", f"{job}@{name}", "--dest", tmp_path / name)
        assert (tmp_path / name / "model.safetensors").is_file()
    with gpu_train.Workspace.open(program.home) as workspace, pytest.raises(Incomplete, match="checkpoint-9 is"):
        workspace.checkpoints.resolve(f"{job}@step:9")
