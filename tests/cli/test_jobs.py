"""Jobs and projects."""

import json

import pytest

import gpu_train

NEXT_STEP = "no jobs yet: start one with `gpu-train run -- python train.py`\n"


@pytest.mark.parametrize("arguments", [["jobs"], ["jobs", "list"], ["job"], ["projects"]], ids=" ".join)
def test_an_empty_home_says_what_to_do_next(program, arguments: list[str]) -> None:
    done = program(*arguments)
    assert (done.stdout, done.stderr) == ("", NEXT_STEP)


@pytest.fixture
def more(trained):
    """Another job, newer and of another project."""
    job = gpu_train.Job(
        id="next-ghijkl", name="next", project="other", status="failed", exit_code=3, created_ns=1_700_000_100 * 10**9,
        command=("python", "a b.py"), reason="the disk was full",
    )  # fmt: skip
    with gpu_train.Workspace.open(trained.program.home) as workspace:
        workspace.jobs.put(job)
    return trained


def test_jobs_newest_first_and_filtered(more) -> None:
    program = more.program
    assert program("jobs", "-q").stdout.split() == ["next-ghijkl", "demo-abcdef"]
    assert program("jobs", "-q", "--limit", "1").stdout.split() == ["next-ghijkl"]
    assert program("jobs", "-q", "--project", "default").stdout.split() == ["demo-abcdef"]
    assert program("jobs", "-q", "--status", "failed").stdout.split() == ["next-ghijkl"]
    assert program("jobs", "--status", "lost").stderr == "no job is like that; `gpu-train jobs` lists all\n"
    read = json.loads(program("jobs", "-o", "json").stdout)
    assert read["total_jobs"] == 2
    demo = read["jobs"][1]
    assert demo["job_id"] == "demo-abcdef"
    assert demo["checkpoints"] == 3
    assert demo["command"] == ["python", "train.py"]
    assert demo["duration_s"] == 60.0
    assert demo["ended_at"] == "2023-11-14T22:14:21Z"
    table = program("jobs").stdout.splitlines()
    assert table[0].split() == ["JOB", "PROJECT", "STATUS", "CHECKPOINTS", "RAN", "CREATED", "COMMAND"]
    assert table[1].endswith("python 'a b.py'")


def test_show(more) -> None:
    program = more.program
    shown = program("jobs", "show", "next").stdout
    assert "status       failed (exit code 3): the disk was full\n" in shown
    read = json.loads(program("jobs", "show", "demo-a", "-o", "json").stdout)
    assert (read["job_id"], read["status"], read["checkpoints"]) == ("demo-abcdef", "finished", 3)
    assert program("jobs", "show", "demo", "-q").stdout == "demo-abcdef\n"
    assert "did you mean" in program("jobs", "show", "dmo", code=3).stderr


def test_projects(more) -> None:
    read = json.loads(more.program("projects", "-o", "json").stdout)["projects"]
    assert [(row["project"], row["jobs"], row["last_job"]) for row in read] == [
        ("other", 1, "next-ghijkl"),
        ("default", 1, "demo-abcdef"),
    ]
