"""Bringing existing runs in."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from gpu_train import Workspace, import_checkpoints
from gpu_train.capture.storing import Stored
from gpu_train.importer import checkpoints_in
from gpu_train_cas.errors import NotFound, StorageFull, UsageError


def safetensors(fill: int, size: int = 200_000) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes([fill]) * size


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A Hugging Face run: three checkpoints, the final model, logs."""
    root = tmp_path / "my-run"
    for step in (200, 1000, 50):
        folder = root / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(safetensors(step % 256))
        history = [{"step": s, "loss": 1 / s} for s in (50, 200, 1000) if s <= step]
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))
    (root / "model.safetensors").write_bytes(safetensors(1000 % 256))
    (root / "config.json").write_text("{}")
    (root / "train.log").write_text("log")
    return root


def names(workspace: Workspace, job: str) -> list[str]:
    return [c.name for c in workspace.checkpoints.list(workspace.jobs.find(job).id)[::-1]]


def test_a_run_folder_gives_all_its_checkpoints_oldest_first(workspace: Workspace, run: Path) -> None:
    for path in run.rglob("*"):
        os.utime(path, ns=(10**18, 10**18))
    os.utime(run / "model.safetensors", ns=(2 * 10**18, 2 * 10**18))
    for step in (50, 200, 1000):
        os.utime(run / f"checkpoint-{step}" / "trainer_state.json", ns=(10**18 + step, 10**18 + step))
    told: list[str] = []
    stored = import_checkpoints(workspace, run, "old", on_stored=lambda s: told.append(s.checkpoint.name))
    assert told == names(workspace, "old") == ["checkpoint-50", "checkpoint-200", "checkpoint-1000", "final"]
    assert all(s.is_new for s in stored)
    assert [(c.step, c.state, c.proof) for c in (s.checkpoint for s in stored)] == [
        (50, "verified", "hf-trainer"), (200, "verified", "hf-trainer"), (1000, "verified", "hf-trainer"),
        (None, "verified", "files"),
    ]  # fmt: skip
    assert stored[-1].new_bytes < 1000  # the final model is the last checkpoint's
    assert stored[1].checkpoint.metrics == {"loss": 1 / 200}
    job = workspace.jobs.find("old")
    assert (job.status, job.provider, job.name) == ("finished", "import", "old")
    assert [m.step for m in workspace.metrics.list(job.id)] == [50, 200, 1000]


def test_importing_again_changes_nothing(workspace: Workspace, run: Path) -> None:
    first = import_checkpoints(workspace, run, "old")
    rows = workspace.checkpoints.list()
    for path in run.rglob("*"):
        os.utime(path)
    again = import_checkpoints(workspace, run, "old")
    assert [s.is_new for s in again] == [False] * 4
    assert {s.checkpoint.ref for s in again} == {s.checkpoint.ref for s in first}
    assert [(c.ref, c.record) for c in workspace.checkpoints.list()] == [(c.ref, c.record) for c in rows]
    assert len(workspace.jobs.list()) == 1
    assert len(workspace.metrics.list(workspace.jobs.find("old").id)) == 3


def test_importing_again_gives_a_base_model_no_metrics_of_later_steps(workspace: Workspace, run: Path) -> None:
    (run / "base").mkdir()
    (run / "base" / "model.safetensors").write_bytes(safetensors(3))
    os.utime(run / "base" / "model.safetensors", ns=(10**18, 10**18))
    import_checkpoints(workspace, run, "old")
    rows = workspace.checkpoints.list()
    assert [c.metrics for c in rows if c.name == "base"] == [{}]
    import_checkpoints(workspace, run, "old")
    assert workspace.checkpoints.list() == rows


def test_other_content_under_the_same_name_is_a_new_version(workspace: Workspace, run: Path) -> None:
    import_checkpoints(workspace, run / "checkpoint-50", "old")
    (run / "checkpoint-50" / "model.safetensors").write_bytes(safetensors(7))
    (stored,) = import_checkpoints(workspace, run / "checkpoint-50", "old")
    assert (stored.is_new, stored.checkpoint.name) == (True, "checkpoint-50~2")


def test_a_single_folder_or_file(workspace: Workspace, run: Path) -> None:
    import_checkpoints(workspace, run / "checkpoint-50", "old")
    import_checkpoints(workspace, run / "checkpoint-50", "old", name="first")
    import_checkpoints(workspace, run / "model.safetensors", "old")
    assert names(workspace, "old") == ["checkpoint-50", "first", "model.safetensors"]
    row, path = workspace.checkpoints.resolve("old@model.safetensors/model.safetensors")
    assert (row.files, path) == (1, "model.safetensors")


def test_a_model_folder_is_one_checkpoint(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    (folder / "onnx").mkdir(parents=True)
    for name in ("model.safetensors", "config.json", "vocab.txt", "notes.md"):
        (folder / name).write_bytes(safetensors(1, 10) if name.startswith("model") else b"{}")
    (folder / "onnx" / "model.onnx").write_bytes(b"x")
    (stored,) = import_checkpoints(workspace, folder, "models")
    assert (stored.checkpoint.name, stored.checkpoint.files) == ("bert", 5)


def test_an_existing_job_gets_them(workspace: Workspace, run: Path) -> None:
    import_checkpoints(workspace, run / "checkpoint-50", "old")
    job = workspace.jobs.find("old")
    import_checkpoints(workspace, run / "checkpoint-200", job.id)
    assert names(workspace, job.id) == ["checkpoint-50", "checkpoint-200"]


def test_what_is_visibly_broken_is_incomplete(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "ckpt-5.safetensors").write_bytes(safetensors(1)[:-9])
    (stored,) = import_checkpoints(workspace, tmp_path / "ckpt-5.safetensors", "x")
    assert stored.checkpoint.state == "incomplete"
    assert "cut short" in stored.checkpoint.proof


def test_opaque_files_are_what_the_person_says(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "state.xyz").write_bytes(b"opaque")
    (stored,) = import_checkpoints(workspace, tmp_path / "state.xyz", "x")
    assert (stored.checkpoint.state, stored.checkpoint.proof) == ("verified", "imported")


def test_a_name_makes_one_checkpoint_of_any_folder(workspace: Workspace, tmp_path: Path) -> None:
    for name in ("000/a.txt", "000/b.txt", "001/c.txt", "notes"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(name)
    (stored,) = import_checkpoints(workspace, tmp_path / "tree", "x", name="all of it")
    assert (stored.checkpoint.name, stored.checkpoint.files) == ("all of it", 4)
    assert (stored.checkpoint.state, stored.checkpoint.proof) == ("verified", "imported")
    assert [s.checkpoint.name for s in import_checkpoints(workspace, tmp_path / "tree", "y")] == ["000", "001"]


def test_odd_names(workspace: Workspace, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/run/checkpoint-\xff-7"
    os.makedirs(folder)  # noqa: PTH103
    with open(folder + b"/w\n.safetensors", "wb") as file:
        file.write(safetensors(1, 10))
    (stored,) = import_checkpoints(workspace, tmp_path / "run", "odd")
    assert stored.checkpoint.name == os.fsdecode(b"checkpoint-\xff-7")
    assert workspace.checkpoints.resolve(f"odd@{stored.checkpoint.name}")[0].step == 7


def test_what_cannot_be_imported(workspace: Workspace, run: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is not there"):
        import_checkpoints(workspace, tmp_path / "nowhere", "x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="holds nothing that looks like a checkpoint"):
        import_checkpoints(workspace, tmp_path / "empty", "x")
    with pytest.raises(UsageError, match="holds 4 checkpoints; --name is for a single one"):
        import_checkpoints(workspace, run, "x", name="one")
    with pytest.raises(UsageError, match="cannot be used"):
        import_checkpoints(workspace, run / "checkpoint-50", "x", name="a~2")
    assert workspace.jobs.list() == []


def test_a_fifo_is_named_for_what_it_is(workspace: Workspace, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"model\.pt is neither a file nor a folder; give"):
        import_checkpoints(workspace, tmp_path / "model.pt", "imported")
    assert workspace.jobs.list() == []


def test_a_link_to_a_run_is_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(run)
    assert len(checkpoints_in(tmp_path / "alias")) == 4


def test_an_import_that_fails_at_its_first_checkpoint_makes_no_job(workspace: Workspace, run: Path) -> None:
    def stop(progress: object) -> None:
        raise StorageFull("no space left on the disk")

    with pytest.raises(StorageFull):
        import_checkpoints(workspace, run, "old", progress=stop)
    assert workspace.jobs.list() == []
    calls: list[str] = []

    def stop_later(stored: Stored) -> None:
        calls.append(stored.checkpoint.name)
        raise StorageFull("no space left on the disk")

    with pytest.raises(StorageFull):
        import_checkpoints(workspace, run, "old", on_stored=stop_later)
    assert [job.name for job in workspace.jobs.list()] == ["old"]
    assert names(workspace, "old") == calls
    assert len(calls) == 1
