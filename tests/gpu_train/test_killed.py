"""Kill -9 of a running job's processes at any moment: what lies whole on the disk in the end is in the store, once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import gpu_train
from gpu_train import Workspace
from gpu_train.process import job_processes
from gpu_train.tables.job import Job

TRAINER = """
    import time
    from writing import OUT, safetensors
    print("begun", flush=True)
    for step in range(1, 9):
        folder = OUT / f"checkpoint-{step}"
        folder.mkdir()
        data = safetensors(step)
        with open(folder / "model.safetensors", "wb") as file:
            file.write(data[:5000])
            file.flush()
            time.sleep(0.02)
            file.write(data[5000:])
        (folder / "training_args.bin").write_bytes(b"x")
        (folder / "trainer_state.json").write_text("{}")
        time.sleep(0.1)
"""


def kill(runner: int, job: Job, which: str, at: random.Random) -> None:
    """Kill some of a job's processes, in such a way that none can act on another's death."""
    agent = job.agent_pid or 0
    if which == "agent":
        os.kill(agent, signal.SIGKILL)
        return
    doomed = {runner, agent}
    if which == "all":
        doomed |= job_processes(job.pid, job.id)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in at.sample(sorted(doomed), len(doomed)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


def check(home: Path, job_id: str) -> None:
    """What lies there is in the store, once and bit for bit; nothing else is left to do."""
    with Workspace.open(home) as workspace:
        rows = workspace.checkpoints.list(job_id)
        names = sorted(c.name for c in rows)
        there = sorted(workspace.home.checkpoints(job_id).iterdir())
        files = {folder.name: {p.name for p in folder.iterdir()} for folder in there}
        pins = list(workspace.home.pins(job_id).glob("*"))
        job = workspace.jobs.get(job_id)
    assert names == sorted(name for name, inside in files.items() if inside)
    assert pins == []
    assert job is not None
    assert not job.is_live
    for row in rows:
        folder = there[0].parent / row.name
        whole = "trainer_state.json" in files[row.name] and (folder / "trainer_state.json").stat().st_size
        assert row.state == ("verified" if whole else "incomplete"), row
        for name in files[row.name]:
            with gpu_train.open(f"{row.ref}/{name}", home=home) as file:
                assert file.read() == (folder / name).read_bytes()
    assert gpu_train.reconcile() == []


def killed_once(launch, home: Path, which: str, seed: int) -> None:
    at = random.Random(seed)
    run = launch.script(TRAINER)
    assert run.process.stdout.readline() == b"begun\n"
    job_id = run.job_id
    time.sleep(at.uniform(0, 1.2))
    with Workspace.open(home) as workspace:
        job = workspace.jobs.find(job_id)
    if job.is_live:
        kill(run.process.pid, job, which, at)
    run.finish()
    if which != "agent":
        gpu_train.reconcile()
    check(home, job_id)


@pytest.mark.parametrize("which", ["agent", "both", "all"])
def test_killed_at_some_moment(launch, home: Path, which: str) -> None:
    killed_once(launch, home, which, 7)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("which", ["agent", "both", "all"])
def test_killed_at_many_moments(launch, home: Path, which: str) -> None:
    for seed in range(25):
        killed_once(launch, home, which, seed)
