from __future__ import annotations

import re

import pytest

from gpu_train.tables.job import Job, clean_name, new_id
from gpu_train.tables.row import to_row
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import NotFound, UsageError


def add(workspace: Workspace, job_id: str, name: str, created_ns: int, **fields: object) -> Job:
    job = Job(job_id, name, created_ns=created_ns, **fields)  # type: ignore[arg-type]
    workspace.jobs.put(job)
    return job


@pytest.mark.parametrize(
    ("text", "name"),
    [("Train", "train"), ("My Run!", "my-run"), ("ü", "job"), ("", "job"), ("--", "job"), ("a" * 99, "a" * 48)],
)
def test_names_become_ids(text: str, name: str) -> None:
    assert clean_name(text) == name
    assert re.fullmatch(re.escape(name) + "-[a-z2-7]{6}", new_id(text))


def test_a_job_comes_back_as_it_was_put(workspace: Workspace) -> None:
    job = add(workspace, "a-aaaaaa", "a", 1, command=("python", "x\udcff.py"), host={"cpu": "x"}, data=("d@1",))
    assert workspace.jobs.get("a-aaaaaa") == job
    assert workspace.jobs.get("nobody") is None


def test_finding_jobs(workspace: Workspace) -> None:
    old = add(workspace, "train-aaaaaa", "train", 1)
    new = add(workspace, "train-bbbbbb", "train", 2)
    other = add(workspace, "tune-cccccc", "tune", 3)
    find = workspace.jobs.find
    assert find("train-aaaaaa") == old
    assert find("train") == new
    assert find("train-a") == old
    assert find("tu") == other
    with pytest.raises(UsageError, match="job 'tr' could be 2 jobs: train-bbbbbb, train-aaaaaa; write more"):
        find("tr")
    with pytest.raises(NotFound, match="no job 'trian'; did you mean train"):
        find("trian")
    with pytest.raises(NotFound, match="`gpu-train jobs` lists what there is"):
        find("zzz")
    for nothing in ("", "\udcff", "train-aaaaaab"):
        assert workspace.jobs.look_up(nothing) is None
        with pytest.raises(NotFound):
            find(nothing)
    assert workspace.jobs.look_up("tune") == other


def test_lists_are_newest_first(workspace: Workspace) -> None:
    for at, (project, status) in enumerate([("p", "failed"), ("q", "running"), ("p", "running")]):
        add(workspace, f"j{at}-aaaaaa", "j", at, project=project, status=status)
    assert [j.id for j in workspace.jobs.list()] == ["j2-aaaaaa", "j1-aaaaaa", "j0-aaaaaa"]
    assert [j.id for j in workspace.jobs.list(project="p", status=["running"])] == ["j2-aaaaaa"]


def test_update_leaves_what_others_set(workspace: Workspace) -> None:
    add(workspace, "a-aaaaaa", "a", 1)
    workspace.jobs.update("a-aaaaaa", data=("d@1",))
    job = workspace.jobs.update("a-aaaaaa", status="running")
    assert (job.status, job.data) == ("running", ("d@1",))
    with pytest.raises(NotFound, match="no job 'nobody'"):
        workspace.jobs.update("nobody", status="x")


def test_fields_of_a_newer_version_survive(workspace: Workspace) -> None:
    job = Job("a-aaaaaa", "a")
    with workspace.store.transaction() as txn:
        txn.put(workspace.jobs.table, b"a-aaaaaa", {**to_row(job), "later": 1})
    workspace.jobs.put(job._replace(status="running"))
    with workspace.store.registry.read() as read:
        row = workspace.jobs.table.get(read, b"a-aaaaaa")
    assert row is not None
    assert (row["later"], row["status"]) == (1, "running")
