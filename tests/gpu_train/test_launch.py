"""What a job is made of before it runs. (Whole jobs: provider/test_local.py and capture/test_agent.py.)"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

import gpu_train
from gpu_train import Workspace, import_checkpoints
from gpu_train.provider.request import Request, check_runnable, command_of, gpu_environment, job_environment
from gpu_train.tables.job import Job
from gpu_train_cas.errors import GpuTrainError, NotFound, UsageError


def test_what_a_task_runs() -> None:
    assert command_of({"command": ["python", Path("x.py"), 3]}) == ("python", "x.py", "3")
    assert command_of({"entrypoint": "train.py", "args": ["-n", 3]}) == (sys.executable, "train.py", "-n", "3")
    assert command_of({"entrypoint": Path("go.sh")}) == ("bash", "go.sh")
    assert command_of({"entrypoint": "./prog"}) == ("./prog",)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({}, "give either command"),
        ({"command": ["a"], "entrypoint": "b"}, "give either command"),
        ({"command": []}, "command is empty"),
        ({"command": "python x.py"}, "lists of words, not 'python x.py'"),
        ({"entrypoint": "x.py", "args": "-n 3"}, "lists of words"),
        ({"comand": ["a"]}, "unknown key 'comand'"),
    ],
)
def test_tasks_that_make_no_sense(task: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        command_of(task)


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [("cpu", ""), (0, ""), (2, "0,1"), ("3", "0,1,2"), ("0,2", "0,2"), ("1,", "1"), ("GPU-ab,1", "GPU-ab,1")],
)
def test_gpus(gpus: str | int, devices: str) -> None:
    assert gpu_environment(gpus) == {"CUDA_VISIBLE_DEVICES": devices}


def test_gpus_left_alone_or_wrong() -> None:
    assert gpu_environment(None) == gpu_environment("all") == {}
    for wrong in ("h100", "a,b", ","):
        with pytest.raises(UsageError, match="write cpu, all, a number of GPUs"):
            gpu_environment(wrong)


def test_an_outer_jobs_variables_do_not_reach_an_inner_one(workspace: Workspace) -> None:
    base = {"GPU_TRAIN_RESUME_FROM": "/old", "GPU_TRAIN_JOB_ID": "outer", "BT_CHECKPOINT_DIR": "/old", "X": "1"}
    env = job_environment(workspace.home, Job("in-aaaaaa", "in"), Request({"X": "2"}), base)
    assert env["GPU_TRAIN_JOB_ID"] == "in-aaaaaa"
    assert env["X"] == "2"
    assert not {"GPU_TRAIN_RESUME_FROM", "BT_CHECKPOINT_DIR"} & env.keys()


def test_a_request_is_read_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    request = Request({"TOKEN": "s\udcff"}, "/resume", "/load", True)
    request.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Request.take(path) == request
    assert not path.exists()


def test_programs_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "plain.sh").write_text("echo")
    for word, says in (("pyhton", "'pyhton' is not on PATH"), ("./plain.sh", "not there, or not executable")):
        with pytest.raises(UsageError, match=says):
            check_runnable((word,), tmp_path, None)
    with pytest.raises(UsageError, match=r"working directory .* is not there"):
        check_runnable(("true",), tmp_path / "none", None)


def test_nothing_is_made_of_a_run_that_cannot_be(workspace: Workspace, tmp_path: Path) -> None:
    task = {"command": ["true"], "cwd": tmp_path}
    with pytest.raises(UsageError, match="is not on PATH"):
        gpu_train.run({"command": ["pyhton"]})
    with pytest.raises(UsageError, match="provider 'moon' is not known; known are local"):
        gpu_train.run(task, "moon")
    with pytest.raises(NotFound, match="no job 'nobody'"):
        gpu_train.run(task, resume_from="nobody@latest")
    with pytest.raises(NotFound):
        gpu_train.run(task, data=["nothing"])
    assert workspace.jobs.list() == []


def test_a_job_starts_from_whole_checkpoints(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(b"x")
    import_checkpoints(workspace, tmp_path / "a.pkl", "old")
    with pytest.raises(UsageError, match="names a path inside a checkpoint"):
        gpu_train.run({"command": ["true"], "cwd": tmp_path}, resume_from="old@latest/a.pkl")


def test_code_that_cannot_be_recorded_stops_the_run(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "gpu-train.toml").write_text('[defaults]\ncode_root = "nowhere"\n')
    with pytest.raises(GpuTrainError, match=r"could not be recorded: .*snapshot_code = false"):
        gpu_train.run({"command": ["true"], "cwd": tmp_path})
    assert workspace.jobs.list() == []


def test_data_is_checked_and_noted(workspace: Workspace, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "x.txt").write_text("x")
    version = workspace.data.register(data, "words")
    project = tmp_path / "project"
    project.mkdir()
    job = gpu_train.run({"command": ["true"], "cwd": project}, data=["words"], name="reads")
    assert (job.data, job.name, job.status) == ((version.ref,), "reads", "finished")


def test_called_outside_of_the_main_thread(workspace: Workspace, tmp_path: Path) -> None:
    jobs: list[gpu_train.Job] = []
    thread = threading.Thread(target=lambda: jobs.append(gpu_train.run({"command": ["false"], "cwd": tmp_path})))
    thread.start()
    thread.join()
    assert [(j.status, j.exit_code) for j in jobs] == [("failed", 1)]
