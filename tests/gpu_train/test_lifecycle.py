"""Ending jobs from outside, and putting right what died."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import gpu_train
from gpu_train import Workspace
from gpu_train.process import start_time
from gpu_train.tables.job import Job
from gpu_train_cas.errors import Busy, NotFound

SLEEPS = "echo ready; sleep 600 & wait"


def started(launch, shell: str = SLEEPS):
    run = launch("sh", "-c", shell)
    assert run.process.stdout.readline() == b"ready\n"
    return run


def test_kill_ends_all_processes_at_once(launch, home) -> None:
    run = started(launch, "trap '' TERM INT; " + SLEEPS)
    job = gpu_train.kill(run.job_id)
    assert (job.status, job.exit_code, job.signal) == ("killed", 137, 9)
    assert run.finish()[0] == 137
    assert gpu_train.kill(run.job_id) == job


def test_stop_lets_the_job_end_itself(launch, home) -> None:
    run = started(launch, "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    job = gpu_train.stop(run.job_id)
    assert (job.status, job.exit_code) == ("stopped", 3)
    assert run.finish()[:2] == (3, b"bye\n")


def test_stop_says_when_it_takes_too_long(launch, home) -> None:
    run = started(launch, "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    with pytest.raises(Busy, match=f"gpu-train kill {run.job_id}"):
        gpu_train.stop(run.job_id, timeout_s=0.2)
    gpu_train.kill(run.job_id)


def test_kill_all_kills_what_runs(launch, home) -> None:
    runs = [started(launch) for _ in range(2)]
    killed = gpu_train.kill_all()
    assert {j.id for j in killed} == {r.job_id for r in runs}
    assert {j.status for j in killed} == {"killed"}
    assert gpu_train.kill_all() == []


def test_no_such_job(workspace: Workspace) -> None:
    for call in (gpu_train.kill, gpu_train.stop):
        with pytest.raises(NotFound, match="no job 'nobody'"):
            call("nobody")


def test_reconcile_leaves_living_jobs_alone(launch, home) -> None:
    run = started(launch)
    assert gpu_train.reconcile() == []
    with Workspace.open(home) as workspace:
        assert workspace.jobs.find(run.job_id).status == "running"
    gpu_train.kill(run.job_id)


def test_reconcile_after_runner_and_agent_were_killed(launch, home) -> None:
    run = launch.script("""
        import time
        from writing import OUT, safetensors
        (OUT / "step-0007.safetensors").write_bytes(safetensors(1))
        print("ready")
        time.sleep(600)
    """)
    assert run.process.stdout.readline() == b"ready\n"
    with Workspace.open(home) as workspace:
        job = workspace.jobs.find(run.job_id)
    os.kill(job.agent_pid, signal.SIGSTOP)  # it must not notice the runner's death before it dies itself
    run.process.kill()
    run.process.wait()
    os.kill(job.agent_pid, signal.SIGKILL)
    assert start_time(job.pid) is not None
    (after,) = gpu_train.reconcile()
    assert (after.id, after.status, after.reason) == (job.id, "lost", "its runner is gone")
    assert start_time(job.pid) is None
    with Workspace.open(home) as workspace:
        (checkpoint,) = workspace.checkpoints.list(job.id)
        assert (checkpoint.name, checkpoint.step, checkpoint.state) == ("step-0007.safetensors", 7, "verified")
    assert gpu_train.reconcile() == []


def test_kill_ends_a_job_whose_runner_is_gone(launch, home) -> None:
    run = started(launch)
    with Workspace.open(home) as workspace:
        job = workspace.jobs.find(run.job_id)
    os.kill(job.agent_pid, signal.SIGSTOP)
    run.process.kill()
    run.process.wait()
    os.kill(job.agent_pid, signal.SIGKILL)
    assert gpu_train.kill(job.id).status == "killed"
    assert start_time(job.pid) is None


def test_a_process_that_has_the_number_now_is_not_killed(workspace: Workspace) -> None:
    """The row of a job from before a reboot names this very process."""
    job = Job(
        "old-aaaaaa", "old", status="running", created_ns=1, pid=os.getpid(), pid_start=12345, runner_pid=os.getpid(),
        runner_start=12345, boot_id="another boot", cwd=str(Path.cwd()),
    )  # fmt: skip
    workspace.jobs.put(job)
    (after,) = gpu_train.reconcile()
    assert after.status == "lost"


def test_a_job_just_queued_is_not_lost(workspace: Workspace) -> None:
    job = Job("new-aaaaaa", "new", created_ns=time.time_ns())
    workspace.jobs.put(job)
    assert gpu_train.reconcile() == []
    workspace.jobs.put(job._replace(created_ns=1))
    assert [j.status for j in gpu_train.reconcile()] == ["lost"]
