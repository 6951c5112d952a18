"""How running jobs are doing: what is safe, what is in hand, what would be lost, and when to raise the alarm."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import gpu_train
from gpu_train import JobStatus, Workspace
from gpu_train.errors import AtRisk


def one(job_id: str) -> JobStatus:
    (found,) = gpu_train.status(job_id)
    return found


def test_a_job_from_its_start_to_its_end(launch, home: Path, eventually) -> None:
    run = launch.script("""
        import json
        from writing import OUT, is_pinned, safetensors, torch_zip, wait_for, wait_for_file
        print("begun")
        with open(OUT / "step-0001.pt", "wb") as file:
            file.write(torch_zip(1)[:100])
            file.flush()
            wait_for_file("one")
            file.seek(0)
            file.write(torch_zip(1))
        wait_for_file("two")
        for step in (2, 3):
            folder = OUT / f"checkpoint-{step}"
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(safetensors(step))
            (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 7}))
        wait_for_file("end")
    """)
    assert run.process.stdout.readline() == b"begun\n"
    job_id = run.job_id
    eventually(lambda: [c.size_bytes for c in one(job_id).in_hand] == [100], "the first file")
    early = one(job_id)
    assert (early.agent, early.newest, early.saves) == ("alive", None, None)
    assert [(c.name, c.state, c.is_pinned, c.size_bytes) for c in early.in_hand] == [
        ("step-0001.pt", "writing", True, 100)
    ]
    assert early.pins.files == 1
    assert early.at_risk_s == early.age_s > 0
    assert [s.job.id for s in gpu_train.status()] == [job_id]

    (launch.cwd / "one").touch()
    eventually(lambda: (now := one(job_id)).newest and not now.in_hand, "the first checkpoint")
    first = one(job_id)
    assert first.newest is not None
    assert (first.newest.name, first.in_hand, first.counts["verified"], first.plain) == ("step-0001.pt", (), 1, 1)
    assert first.finished_ns is not None
    assert first.newest.seen_ns < first.newest.settled_ns < first.newest.committed_ns
    assert first.at_risk_s is not None
    assert first.at_risk_s < early.age_s + (first.at_ns - early.at_ns) / 1e9

    (launch.cwd / "two").touch()
    eventually(lambda: one(job_id).counts["verified"] == 3, "the others")
    later = one(job_id)
    assert later.saves is not None
    assert (later.newest and later.newest.name, later.saves.step, later.saves.total_steps) == ("checkpoint-3", 3, 7)
    assert (later.saves.interval_steps, later.saves.left, later.saves.plain_share) == (1, 4, 1.0)
    assert all(disk.lasts for disk in later.disks)
    gpu_train.check_status([later], max_age_s=3600)
    with pytest.raises(AtRisk, match=f"{job_id}: .* s of training are in no whole checkpoint .checkpoint-3 is the"):
        gpu_train.check_status([later], max_age_s=0)

    (launch.cwd / "end").touch()
    assert run.finish()[0] == 0
    ended = one(job_id)
    assert (ended.job.status, ended.agent, ended.at_risk_s, ended.in_hand, ended.pins.files) == (
        "finished", "none", None, (), 0,
    )  # fmt: skip
    assert gpu_train.status() == []


def test_a_dead_agent_is_told_of(launch, home: Path, eventually) -> None:
    run = launch("sh", "-c", "echo ready; sleep 600 & wait")
    assert run.process.stdout.readline() == b"ready\n"
    with Workspace.open(home) as workspace:
        job = workspace.jobs.find(run.job_id)
    assert job.agent_pid is not None
    os.kill(run.process.pid, signal.SIGSTOP)  # it cannot start another one now
    try:
        os.kill(job.agent_pid, signal.SIGKILL)
        eventually(lambda: one(job.id).agent == "dead", "the agent's end")
        found = one(job.id)
        assert found.warnings == [f"{job.id}: its capture agent is dead, nothing is being captured"]
        with pytest.raises(AtRisk, match=f"{job.id}: its capture agent is dead"):
            gpu_train.check_status([found])
    finally:
        os.kill(run.process.pid, signal.SIGCONT)
        gpu_train.kill(job.id)


def test_an_agent_that_is_started_again_is_alive(launch, home: Path, eventually) -> None:
    run = launch("sh", "-c", "echo ready; sleep 600 & wait")
    assert run.process.stdout.readline() == b"ready\n"
    with Workspace.open(home) as workspace:
        job = workspace.jobs.find(run.job_id)
    assert job.agent_pid is not None
    os.kill(job.agent_pid, signal.SIGKILL)
    eventually(lambda: one(job.id).agent == "alive", "another agent")
    gpu_train.kill(job.id)


def test_a_lost_job_is_put_right_first(launch, home: Path, eventually) -> None:
    run = launch("sh", "-c", "echo ready; sleep 600 & wait")
    assert run.process.stdout.readline() == b"ready\n"
    run.process.kill()
    eventually(lambda: one(run.job_id).job.status == "lost", "the end of the lost job")


def test_sinks_that_are_behind(launch, home: Path) -> None:
    (launch.cwd / "gpu-train.toml").write_text('[sinks]\ncheckpoints = ["/not/mounted/a", "/not/mounted/b"]\n')
    run = launch.script("""
        import gpu_train
        for step in (1, 2):
            with gpu_train.checkpoint(step=step) as path:
                (path / "w.bin").write_bytes(b"w" * 10)
    """)
    assert run.finish()[0] == 0
    with Workspace.open(home) as workspace:
        newest, oldest = workspace.checkpoints.list(run.job_id)
        workspace.checkpoints.put(newest._replace(pushed={"/not/mounted/a": 5}))
    assert [(s.address, s.behind, s.behind_bytes, s.since_ns) for s in one(run.job_id).sinks] == [
        ("/not/mounted/a", 1, 10, oldest.committed_ns), ("/not/mounted/b", 2, 20, oldest.committed_ns),
    ]  # fmt: skip


def test_a_disk_that_will_not_last_is_told_of_after_the_first_save(launch, small_disk) -> None:
    home = small_disk(48) / "home"
    launch.env["GPU_TRAIN_HOME"] = str(home)
    run = launch.script("""
        import json, random
        from writing import OUT, safetensors, wait_for_file
        for step in (10, 20):
            folder = OUT / f"checkpoint-{step}"
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(safetensors(step, (1 << 20) - 10000))
            total = {10: 1000, 20: 30}[step]
            (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": total}))
            wait_for_file(f"go-on-{step}")
    """)
    first = run.process.stderr.readline()
    assert b"NOTICE the disk with" in first
    assert b"but 99 are to come until step 1000" in first
    with Workspace.open(home) as workspace:
        (found,) = gpu_train.status(run.job_id, home=home)
        assert found.warnings[0].startswith(f"{run.job_id}: the disk with")
    (launch.cwd / "go-on-10").touch()
    assert b"NOTICE the disks last after all" in run.process.stderr.readline()
    (launch.cwd / "go-on-20").touch()
    assert run.finish()[0] == 0
    with Workspace.open(home) as workspace:
        told = [e.fields["is_short"] for e in workspace.events.list(run.job_id, kind="storage")]
    assert told == [True, False]
