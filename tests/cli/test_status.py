"""`status`: what of the running jobs is safe, in words, as JSON, and as an exit code for monitoring."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest

import gpu_train
from gpu_train.process import identity_of

KEYS = [
    "job_id", "name", "project", "status", "started_at", "ended_at", "agent", "checkpoint_id", "ref", "step",
    "total_steps", "finished_at", "stored_at", "age_s", "at_risk_s", "checkpoints", "plain_checkpoints", "in_hand",
    "pins", "paused", "reserve_bytes", "saves", "disks", "sinks", "warnings",
]  # fmt: skip


def test_an_empty_home_says_what_to_do_next(program) -> None:
    done = program("status")
    assert (done.stdout, done.stderr) == ("", "no jobs yet: start one with `gpu-train run -- python train.py`\n")
    assert json.loads(program("status", "-o", "json").stdout) == {"schema_version": 1, "running": 0, "jobs": []}
    program("status", "nobody", code=3)


def test_without_a_running_job_the_last_one_is_shown(trained) -> None:
    done = trained.program("status")
    assert done.stderr == "no job is running; this is the last one\n"
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert lines["job"].strip() == "demo-abcdef (finished)"
    assert lines["newest"].strip().startswith("checkpoint-500, step 500, finished ")
    assert lines["checkpoints"].strip() == "3 verified, 0 incomplete, 0 gone; 0 still as plain files"
    assert lines["sinks"].strip() == "none configured"
    assert "at risk" not in lines
    trained.program("status", "--max-age", "1s")
    trained.program("status", "demo", "--max-age", "36500d")
    late = trained.program("status", "demo", "--max-age", "1s", code=4)
    assert "of training are in no whole checkpoint (checkpoint-500 is the newest), the limit is 1 s" in late.stderr


@pytest.fixture
def running(trained):
    """Two jobs whose runner is this process; one has an agent that tells of itself, one has none any more."""
    me = identity_of(os.getpid())
    now = time.time_ns()
    with gpu_train.Workspace.open(trained.program.home) as workspace:
        for name in ("left", "right"):
            job = gpu_train.Job(
                f"{name}-aaaaaa", name, status="running", created_ns=now, started_ns=now, cwd="/", **me
            )  # fmt: skip
            workspace.jobs.put(job)
            control = workspace.home.control(job.id)
            control.mkdir(parents=True)
            if name == "left":
                notice = {
                    "pid": os.getpid(), "pid_start": me["runner_start"], "boot_id": me["boot_id"], "time_ns": now,
                    "in_hand": [{"name": "checkpoint-7", "state": "storing", "seen_ns": now, "since_ns": now}],
                    "paused": {"since_ns": now, "path": "/data", "free_bytes": 3 << 20, "kept_bytes": 5 << 20},
                    "reserve_bytes": 5 << 20, "max_pin_bytes": "7 MiB",
                }  # fmt: skip
                (control / "in-hand.json").write_text(json.dumps(notice))
    return trained.program


def test_running_jobs_for_programs(running) -> None:
    done = running("status", "-o", "json", code=4)
    read = json.loads(done.stdout)
    assert read["running"] == 2
    right, left = sorted(read["jobs"], key=lambda row: row["job_id"], reverse=True)
    assert list(left) == KEYS
    assert (left["agent"], right["agent"]) == ("alive", "dead")
    assert (left["checkpoint_id"], left["saves"], left["sinks"]) == (None, None, [])
    assert [(item["checkpoint_id"], item["state"]) for item in left["in_hand"]] == [("checkpoint-7", "storing")]
    assert (left["paused"]["free_bytes"], left["paused"]["kept_bytes"]) == (3 << 20, 5 << 20)
    assert (left["reserve_bytes"], left["pins"]["max_bytes"]) == (5 << 20, 7 << 20)
    assert (right["reserve_bytes"], right["pins"]["max_bytes"], right["paused"]) == (0, None, None)
    assert left["disks"][0]["holds"] == ["store"]
    assert left["disks"][0]["free_bytes"] > 0
    assert right["warnings"] == ["right-aaaaaa: its capture agent is dead, nothing is being captured"]
    assert done.stderr == (
        "gpu-train: error: right-aaaaaa: its capture agent is dead; see the log "
        f"{running.home}/artifacts/right-aaaaaa/logs/agent.log\n"
    )
    lines = running("status", "-o", "jsonl", code=4).stdout.splitlines()
    assert [json.loads(line)["schema_version"] for line in lines] == [1, 1]


def test_running_jobs_for_people(running) -> None:
    table = running("status", code=4)
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["JOB", "right-aaaaaa", "left-aaaaaa"]
    assert "checkpoint-7 (storing)" in table.stdout
    assert "gpu-train: warning: right-aaaaaa: its capture agent is dead, nothing is being captured\n" in table.stderr
    one = running("status", "left")
    assert one.stdout.startswith("job          left-aaaaaa (running, capture agent alive)\n")
    assert "in hand      checkpoint-7: being stored for " in one.stdout
    assert "paused       storing waits for room for " in one.stdout
    assert ": /data had 3.00 MiB free, 5.00 MiB are kept for the trainer's next save\n" in one.stdout
    assert "warning: left-aaaaaa: storing is paused: the disk with /data has 3.0 MiB free" in one.stderr
    running("status", "left", "--max-age", "1h")
    late = running("status", "left", "--max-age", "0s", code=4)
    assert "there is no whole checkpoint yet" in late.stderr
    running("status", "left", "--max-age", "soon", code=2)


def test_jobs_that_nobody_looks_after_are_put_right_first(program) -> None:
    with subprocess.Popen(["true"]) as child:
        gone = identity_of(child.pid)
    with gpu_train.Workspace.open(program.home) as workspace:
        workspace.jobs.put(gpu_train.Job("left-aaaaaa", "left", status="running", created_ns=1, cwd="/", **gone))
    found: list[str] = []
    deadline = time.monotonic() + 60
    while found != ["lost"] and time.monotonic() < deadline:
        found = [row["status"] for row in json.loads(program("status", "-o", "json").stdout)["jobs"]]
    assert found == ["lost"]


def test_reconcile_says_what_was_saved_and_what_was_not(program) -> None:
    with subprocess.Popen(["true"]) as child:
        gone = identity_of(child.pid)
    with gpu_train.Workspace.open(program.home) as workspace:
        workspace.jobs.put(gpu_train.Job("left-aaaaaa", "left", status="running", created_ns=1, cwd="/", **gone))
        root = workspace.home.checkpoints("left-aaaaaa")
    for step, files in ((1, ("training_args.bin", "trainer_state.json")), (2, ("training_args.bin",))):
        for name in files:
            (root / f"checkpoint-{step}").mkdir(parents=True, exist_ok=True)
            (root / f"checkpoint-{step}" / name).write_text("{}")
    done = program("reconcile")
    assert done.stdout.splitlines()[1].split()[:6] == ["left-aaaaaa", "lost", "2", "1", "1", "0"]
    assert "left-aaaaaa@checkpoint-2~1 is incomplete: missing is trainer_state.json (hf-trainer)\n" in done.stderr
    assert program("reconcile").stderr == "nothing to put right: every job has ended or is being looked after\n"
