"""Kill -9 of the agent at any point of a last capture, after everything else has died: the next one finishes it.

What lies there was left by a machine that went down: checkpoints on the disk, whole, half written and deleted ones that
are pinned, one that was replaced, one that was committed, one that was seen and is not anywhere. And the home has
been moved.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gpu_train
from gpu_train.active import append_line
from gpu_train.capture.board import IN_HAND, SETTLED, InHand, Notice
from gpu_train.capture.pin import link_tree
from gpu_train.capture.tracker import Tracker
from gpu_train.workspace import Workspace

CHILD = Path(__file__).with_name("crash_child.py")
JOB = gpu_train.Job(
    "train-aaaaaa", "train", status="running", created_ns=1, started_ns=2, pid=os.getpid(), pid_start=3,
    runner_pid=os.getpid(), runner_start=3, boot_id="another boot", cwd="/",
)  # fmt: skip
EXPECTED = {
    "checkpoint-1": ("verified", "hf-trainer"), "checkpoint-2": ("verified", "hf-trainer"),
    "checkpoint-3": ("incomplete", "trainer_state.json (hf-trainer)"), "last.safetensors": ("verified", "files"),
    "last.safetensors~2": ("verified", "files"), "given": ("verified", "explicit"), "lost": ("gone", "its bytes"),
}  # fmt: skip


def write(folder: Path, fill: int, *, whole: bool = True) -> None:
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(bytes([fill]) * 1000)
    (folder / "training_args.bin").write_bytes(b"x")
    if whole:
        (folder / "trainer_state.json").write_text("{}")


def leave_behind(home: Path, safetensors: Callable[..., None], arrays: list[dict[str, object]]) -> None:
    """A home as the machine's crash left it."""
    with Workspace.open(home, cwd=home.parent) as workspace:
        workspace.jobs.put(JOB)
        paths = workspace.home
        root, pins, control = paths.checkpoints(JOB.id), paths.pins(JOB.id), paths.control(JOB.id)
    write(root / "checkpoint-1", 1)
    safetensors(root / "last.safetensors", arrays[0])
    tracker = Tracker(root, pins, settle_s=1000)
    tracker.look()
    shutil.rmtree(root / "checkpoint-1")
    safetensors(root / "last.tmp", arrays[1])
    (root / "last.tmp").rename(root / "last.safetensors")
    write(root / "checkpoint-2", 2)
    write(root / "checkpoint-3", 3, whole=False)
    tracker.look()
    given = home.parent / "given"
    given.mkdir()
    (given / "w.bin").write_bytes(b"given")
    assert link_tree(given, pins / "c1" / "given")
    append_line(control / "commits.jsonl", {"id": "c1", "path": str(given), "pin": str(pins / "c1"), "step": 9})
    shutil.rmtree(given)
    seen = InHand("lost", SETTLED, 5, 6, str(root / "lost"), 100, fingerprint="of what was there")
    (control / IN_HAND).write_bytes(Notice(1, 2, "another boot", 7, (seen,)).as_json())


def check(home: Path) -> None:
    with Workspace.open(home, cwd=home.parent) as workspace:
        was_closed = not workspace.jobs.find(JOB.id).is_live
    changed = gpu_train.reconcile(home=home)
    assert [job.status for job in changed] == ([] if was_closed else ["lost"])
    with Workspace.open(home, cwd=home.parent) as workspace:
        rows = workspace.checkpoints.list(JOB.id)
        assert {c.name: (c.state, c.proof) for c in rows} == EXPECTED
        assert len(rows) == len(EXPECTED)
        for number in (1, 2, 3):
            with gpu_train.open(f"{JOB.id}@checkpoint-{number}/model.bin", home=home) as file:
                assert file.read() == bytes([number]) * 1000
        with gpu_train.open(f"{JOB.id}@given/w.bin", home=home) as file:
            assert file.read() == b"given"
        job = workspace.jobs.get(JOB.id)
        assert job is not None
        assert (job.status, job.reason) == ("lost", "its runner is gone")
        assert os.listdir(workspace.home.pins(JOB.id)) == []
    assert gpu_train.reconcile(home=home) == []


@pytest.mark.parametrize("step", [147, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(3600)], id="each")])
def test_killed_at_any_call_of_a_function(home: Path, safetensors, sweep, tmp_path: Path, step: int) -> None:
    work = tmp_path / "work"
    leave_behind(work / "template" / "home", safetensors, [{"w": np.full(9, fill, np.float32)} for fill in (1, 2)])
    killed = 0
    for point in sweep(CHILD, work, "last_capture", step):
        check(work / str(point) / "home")
        shutil.rmtree(work / str(point))
        killed += 1
    assert killed > 2
