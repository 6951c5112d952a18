"""Seeing to jobs that nobody looks after: told from those that somebody does, safe to do twice, all that is left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import gpu_train
from gpu_train import Workspace
from gpu_train.capture.board import IN_HAND, WRITING, InHand, Notice
from gpu_train.capture.tracker import Tracker
from gpu_train.control import END_FILE
from gpu_train.delay import SLOW_S
from gpu_train.environment import JOB_ID
from gpu_train.process import boot_id, identity_of, start_time
from gpu_train.tables.job import Job


@pytest.fixture
def dead() -> dict[str, object]:
    """The identity of a runner that has died."""
    child = subprocess.Popen(["sleep", "600"])
    found = identity_of(child.pid)
    child.kill()
    child.wait()
    return found


@pytest.fixture
def job(workspace: Workspace, dead) -> Job:
    """A job that runs as its row says, whose runner is dead."""
    job = Job("train-aaaaaa", "train", status="running", created_ns=1, started_ns=2, cwd="/", **dead)
    workspace.jobs.put(job)
    return job


def names(workspace: Workspace, job: Job) -> list[tuple[str, str]]:
    return sorted((c.name, c.state) for c in workspace.checkpoints.list(job.id))


def test_a_queued_job_whose_runner_is_dead_is_lost_at_once(workspace: Workspace, dead) -> None:
    workspace.jobs.put(Job("new-aaaaaa", "new", created_ns=time.time_ns(), **dead))
    assert [(j.id, j.status, j.reason) for j in gpu_train.reconcile()] == [("new-aaaaaa", "lost", "its runner is gone")]


def test_a_queued_job_whose_runner_lives_is_left_alone(workspace: Workspace) -> None:
    workspace.jobs.put(Job("new-aaaaaa", "new", created_ns=1, **identity_of(os.getpid())))
    assert gpu_train.reconcile() == []


def test_a_command_that_nobody_could_note_is_ended(workspace: Workspace, dead) -> None:
    """Its runner died between starting it and writing that down."""
    workspace.jobs.put(Job("new-aaaaaa", "new", created_ns=1, **dead))
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, JOB_ID: "new-aaaaaa"}, start_new_session=True)
    try:
        (after,) = gpu_train.reconcile()
        assert after.status == "lost"
        assert start_time(child.pid) is None
    finally:
        child.kill()
        child.wait()


def test_how_a_job_ended_is_known_although_its_runner_died(workspace: Workspace, job: Job) -> None:
    control = workspace.home.control(job.id)
    control.mkdir(parents=True)
    (control / END_FILE).write_text(json.dumps({"status": "failed", "exit_code": 3, "ended_ns": 5}))
    (after,) = gpu_train.reconcile()
    assert (after.status, after.exit_code, after.ended_ns) == ("failed", 3, 5)


def test_what_is_still_pinned_of_a_job_that_has_ended_is_stored(workspace: Workspace, job: Job, safetensors) -> None:

    workspace.jobs.put(job._replace(status="finished", exit_code=0))
    root = workspace.home.checkpoints(job.id)
    safetensors(root / "step-0001.safetensors", {"w": np.zeros(9, np.float32)})
    Tracker(root, workspace.home.pins(job.id), settle_s=1000).look()
    (root / "step-0001.safetensors").unlink()
    (after,) = gpu_train.reconcile()
    assert (after.status, after.reason) == ("finished", "")
    assert names(workspace, job) == [("step-0001.safetensors", "verified")]
    assert os.listdir(workspace.home.pins(job.id)) == []
    assert gpu_train.reconcile() == []


def test_two_at_once(workspace: Workspace, job: Job, safetensors) -> None:

    for number in range(1, 4):
        path = workspace.home.checkpoints(job.id) / f"step-000{number}.safetensors"
        safetensors(path, {"w": np.full(9, number, np.float32)})
    code = "import gpu_train; print([j.status for j in gpu_train.reconcile()])"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    said = [one.communicate(timeout=120)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert said.count(b"['lost']\n") >= 1
    assert set(said) <= {b"['lost']\n", b"[]\n"}
    assert names(workspace, job) == [(f"step-000{n}.safetensors", "verified") for n in (1, 2, 3)]


def test_a_home_that_was_moved(workspace: Workspace, job: Job, safetensors, tmp_path) -> None:

    root = workspace.home.checkpoints(job.id)
    safetensors(root / "sub" / "step-0001.safetensors", {"w": np.zeros(9, np.float32)})
    safetensors(root / "step-0002.safetensors", {"w": np.ones(9, np.float32)})
    Tracker(root, workspace.home.pins(job.id), settle_s=1000).look()
    (root / "step-0002.safetensors").unlink()
    workspace.close()
    moved = tmp_path / "elsewhere"
    shutil.move(workspace.home.root, moved)
    (after,) = gpu_train.reconcile(home=moved)
    assert after.status == "lost"
    with Workspace.open(moved) as there:
        assert names(there, job) == [("step-0002.safetensors", "verified"), ("sub/step-0001.safetensors", "verified")]


def test_a_new_run_has_lost_jobs_seen_to(launch, workspace: Workspace, job: Job, eventually) -> None:
    code, _, err = launch("true").finish()
    assert code == 0
    assert b"NOTICE job train-aaaaaa was lost" in err

    def is_closed() -> bool:
        row = workspace.jobs.get(job.id)
        return row is not None and row.status == "lost"

    eventually(is_closed, "the lost job's end")


def test_another_boot_is_no_life(workspace: Workspace, job: Job) -> None:
    workspace.jobs.put(job._replace(**identity_of(os.getpid()) | {"boot_id": "another"}))
    assert boot_id() != "another"
    assert [j.status for j in gpu_train.reconcile()] == ["lost"]


def test_a_full_disk_holds_a_rescue_up_and_is_named(small_disk, fill, safetensors, dead, tmp_path, eventually) -> None:
    disk = small_disk(24)
    with Workspace.open(disk / "home", cwd=tmp_path) as workspace:
        workspace.jobs.put(Job("train-aaaaaa", "train", status="running", created_ns=1, cwd="/", **dead))
        path = workspace.home.checkpoints("train-aaaaaa") / "step-0001.safetensors"
        safetensors(path, {"w": np.zeros(1 << 18, np.float32)})
        fill(disk / "ballast")
        said: list[str] = []
        assert gpu_train.reconcile(home=disk / "home", timeout_s=SLOW_S + 1, notify=said.append) == []
        assert said == [
            "the last capture of train-aaaaaa is still running: "
            f"the disk with {disk}/home is full, free some and it goes on"
        ]
        (disk / "ballast").unlink()
        eventually(lambda: not workspace.jobs.find("train-aaaaaa").is_live, "the end of the capture")
        assert [(c.name, c.state) for c in workspace.checkpoints.list()] == [("step-0001.safetensors", "verified")]


def test_what_was_renamed_meanwhile_is_not_lost(workspace: Workspace, job: Job, safetensors) -> None:
    root, control = workspace.home.checkpoints(job.id), workspace.home.control(job.id)
    safetensors(root / "checkpoint-1" / "model.safetensors", {"w": np.zeros(9, np.float32)})
    control.mkdir(parents=True)
    found = os.stat(root / "checkpoint-1")
    seen = [
        InHand(name, WRITING, 5, path=str(root / name), inode=inode)
        for name, inode in (("saving-1", (found.st_dev, found.st_ino)), ("saving-2", (1, 2)))
    ]
    (control / IN_HAND).write_bytes(Notice(1, 2, "another boot", 7, tuple(seen)).as_json())
    gpu_train.reconcile()
    assert [name for name, state in names(workspace, job) if state == "gone"] == ["saving-2"]
