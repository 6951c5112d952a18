"""In what two jobs differ."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpu_train
from gpu_train import Job, Metric, Workspace
from gpu_train.job_difference import SECTIONS, JobChange, arguments_of, job_difference


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("python train.py", {"word 0": "python", "word 1": "train.py"}),
        ("t --lr 1e-4 --bf16 --seed=1", {"word 0": "t", "--lr": "1e-4", "--bf16": True, "--seed": "1"}),
        ("t --shift -1 -.5", {"word 0": "t", "--shift": "-1", "word 1": "-.5"}),
        ("t lr=0.1 ++model.size=2", {"word 0": "t", "lr": "0.1", "++model.size": "2"}),
        ("t --tag a --tag b --tag c", {"word 0": "t", "--tag": ["a", "b", "c"]}),
        ("t -", {"word 0": "t", "word 1": "-"}),
        ("t --name=", {"word 0": "t", "--name": ""}),
        ("", {}),
    ],
)
def test_arguments_by_name(command: str, wanted: dict[str, object]) -> None:
    assert arguments_of(command.split()) == wanted


@pytest.fixture
def workspace(tmp_path: Path):
    with Workspace.open(tmp_path / "home") as workspace:
        yield workspace


def test_two_jobs(workspace: Workspace, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("1")
    (project / "old.py").write_text("1")
    first = workspace.code.snapshot(project).id
    (project / "train.py").write_text("2")
    (project / "old.py").rename(project / "new.py")
    second = workspace.code.snapshot(project).id
    old = Job(
        "a-aaaaaa", "a", command=("python", "train.py", "--lr", "1", "--wd=0"), code=first, data=("imdb@1", "qa@1"),
        environment={"python": "3.11.1", "packages": {"torch": "2.1", "numpy": "2.0"}}, host={"cpus": 8},
        git={"commit": "c1"}, gpus="1",
    )  # fmt: skip
    new = old._replace(
        id="b-bbbbbb", name="b", command=("python", "train.py", "--wd=0", "--lr", "2"), code=second,
        data=("imdb@2",), git={"commit": "c2"}, gpus=None,
        environment={"python": "3.11.1", "packages": {"torch": "2.2", "numpy": "2.0", "peft": "1"}}, host={"cpus": 4},
    )  # fmt: skip
    workspace.jobs.put(old)
    workspace.jobs.put(new)
    for job, last in ((old, 3.0), (new, 2.5)):
        workspace.metrics.add(job.id, [
            Metric(1, 1, {"loss": 2.0, "accuracy": 0.5}), Metric(2, 2, {"loss": last, "accuracy": 0.25}),
            Metric(3, 3, {"accuracy": float("nan") if job is old else 0.75}),
        ])  # fmt: skip
    found = job_difference(workspace, old, new)
    assert [change.section for change in found] == sorted((c.section for c in found), key=SECTIONS.index)
    without_nan = [change for change in found if change[:2] != ("last metrics", "accuracy")]
    assert len(found) == len(without_nan) + 1
    assert without_nan == [
        JobChange("code", "version", first, second),
        JobChange("code", "commit", "c1", "c2"),
        JobChange("code", "new.py", None, "there"),
        JobChange("code", "train.py", "there", "changed"),
        JobChange("code", "old.py", "there", None),
        JobChange("data", "imdb", "1", "2"),
        JobChange("data", "qa", "1", None),
        JobChange("arguments", "--lr", "1", "2"),
        JobChange("environment", "cpus", 8, 4),
        JobChange("packages", "torch", "2.1", "2.2"),
        JobChange("packages", "peft", None, "1"),
        JobChange("settings", "gpus", "1", None),
        JobChange("last metrics", "loss", 3.0, 2.5),
        JobChange("best metrics", "accuracy", 0.5, 0.75),
    ]
    assert job_difference(workspace, old, old._replace(id="a-aaaaaa")) == []


def test_code_that_is_not_there_any_more_is_named_without_its_files(workspace: Workspace) -> None:
    old, new = gpu_train.Job("a-aaaaaa", "a", code="0" * 16), gpu_train.Job("b-bbbbbb", "b", code="1" * 16)
    assert job_difference(workspace, old, new) == [JobChange("code", "version", "0" * 16, "1" * 16)]
