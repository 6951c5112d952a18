"""Removing whole jobs and projects, bringing them back, and taking them for good."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_train import marking
from gpu_train.retention import removal
from gpu_train.retention.job_removal import jobs_of_project, plan_for_jobs, remove_jobs
from gpu_train.retention.purging import purge
from gpu_train.retention.trash import Trash
from gpu_train.tables import Event, Metric
from gpu_train.workspace import Workspace
from gpu_train_cas import rebuild_registry
from gpu_train_cas.errors import Busy, NotFound

from .conftest import JOB, Run

OTHER = "other-bbbbbb"


def remove(workspace: Workspace, *jobs: str):
    return remove_jobs(workspace, plan_for_jobs(workspace, [workspace.jobs.find(job) for job in jobs]))


def files_of(workspace: Workspace, job_id: str) -> Path:
    """A plain file and a log of a job."""
    folder = workspace.home.artifacts(job_id)
    for path in (folder / "checkpoints" / "checkpoint-1" / "w.bin", folder / "logs" / "stdout.log"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 5000)
    return folder


def test_a_job_goes_with_all_it_has_and_comes_back(run: Run, workspace: Workspace) -> None:
    for name, state in (("one", "verified"), ("two", "verified"), ("half", "incomplete")):
        run.add(name, state=state)
    with workspace.store.transaction() as txn:
        workspace.checkpoints.add_in(txn, workspace.checkpoints.list(JOB)[0]._replace(name="lost", state="gone",
                                                  record=None))  # fmt: skip
    before = workspace.checkpoints.list(JOB)
    moved = remove(workspace, "train")
    assert [job.id for job in moved.jobs] == [JOB] and len(moved.checkpoints) == 4
    assert (workspace.jobs.list(), workspace.checkpoints.list(), workspace.checkpoints.counts()) == ([], [], {})
    for text in ("train", JOB, "train-a"):
        with pytest.raises(NotFound, match=f"job {JOB} was removed; `gpu-train checkpoints undo {JOB}` brings it back"):
            workspace.jobs.find(text)
    done = removal.undo(workspace)
    assert ([job.id for job in done.jobs], len(done.checkpoints)) == ([JOB], 4)
    assert workspace.checkpoints.list(JOB) == before
    assert workspace.jobs.list() == [run.job]


def test_what_must_stay_keeps_its_job(make_run: Callable[..., Run], run: Run, workspace: Workspace) -> None:
    kept, deployed, parent = run.add("kept"), run.add("deployed"), run.add("parent")
    run.add("free")
    marking.keep(workspace, [kept])
    workspace.checkpoints.put(deployed._replace(tags={"deployed": "yes"}))
    make_run("child-aaaaaa", status="running", parent=parent.ref)
    plan = plan_for_jobs(workspace, [run.job])
    assert {f.checkpoint.name: (f.goes, f.why[:1]) for f in plan.fates} == {
        "free": (True, ()), "kept": (False, ("it is kept (`gpu-train checkpoints unkeep`)",)),
        "deployed": (False, ("it is tagged as deployed",)),
        "parent": (False, ("job child-aaaaaa started from it and is still running",)),
    }  # fmt: skip
    assert plan.staying == [run.job]
    moved = remove_jobs(workspace, plan)
    assert ([c.name for c in moved.checkpoints], moved.jobs) == (["free"], [])
    assert run.names() == ["kept", "deployed", "parent"]
    assert workspace.jobs.find(JOB) == run.job


def test_running_jobs_are_refused_as_a_whole(make_run: Callable[..., Run], run: Run, workspace: Workspace) -> None:
    run.add("one")
    make_run(OTHER, status="running")
    with pytest.raises(Busy, match=f"{OTHER} is running and cannot be removed; `gpu-train stop {OTHER}`"):
        remove(workspace, JOB, OTHER)
    plan = plan_for_jobs(workspace, [run.job])
    workspace.jobs.update(JOB, status="running")
    with pytest.raises(Busy):
        remove_jobs(workspace, plan)
    assert run.names() == ["one"]
    empty = make_run("empty-aaaaaa")
    plan = plan_for_jobs(workspace, [empty.job])
    workspace.jobs.update("empty-aaaaaa", status="queued")
    with pytest.raises(Busy, match="empty-aaaaaa is running"):
        remove_jobs(workspace, plan)


def test_a_project(make_run: Callable[..., Run], workspace: Workspace) -> None:
    for number in range(3):
        make_run(f"p{number}-aaaaaa", project="p" if number else "q", created_ns=number).add("one")
    jobs = jobs_of_project(workspace, "p")
    assert [job.id for job in jobs] == ["p2-aaaaaa", "p1-aaaaaa"]
    remove_jobs(workspace, plan_for_jobs(workspace, jobs))
    assert [job.id for job in workspace.jobs.list()] == ["p0-aaaaaa"]
    with pytest.raises(NotFound, match="no project 'p'"):
        jobs_of_project(workspace, "p")
    assert {job.id for job in removal.undo(workspace, ["p1", "p2-aaaaaa"]).jobs} == {"p1-aaaaaa", "p2-aaaaaa"}


def test_a_checkpoint_that_comes_back_brings_its_job(run: Run, workspace: Workspace) -> None:
    run.add("one"), run.add("two")
    remove(workspace, JOB)
    done = removal.undo(workspace, [f"{JOB}@one"])
    assert ([job.id for job in done.jobs], run.names()) == ([JOB], ["one"])
    assert [c.name for c in Trash(workspace).list()] == ["two"]
    run.check()


def test_a_job_without_checkpoints(make_run: Callable[..., Run], workspace: Workspace) -> None:
    make_run("empty-aaaaaa")
    remove(workspace, "empty")
    assert workspace.jobs.list() == []
    assert [job.id for job in removal.undo(workspace).jobs] == ["empty-aaaaaa"]


def test_purging_takes_files_rows_and_bytes_when_the_days_are_over(
    make_run: Callable[..., Run], run: Run, workspace: Workspace
) -> None:
    run.add("one"), make_run(OTHER).add("one")
    folder, other_folder = files_of(workspace, JOB), files_of(workspace, OTHER)
    workspace.metrics.add(JOB, [Metric(1, 1, {"loss": 1.0})] * 7)
    workspace.events.add(JOB, [Event(1, "text")])
    remove(workspace, JOB)
    early = purge(workspace)
    assert (early.jobs, early.file_bytes, early.store.records, folder.is_dir()) == ([], 0, [], True)
    would = purge(workspace, trash_days=0, dry_run=True)
    assert (would.jobs, len(would.store.records), folder.is_dir()) == ([JOB], 1, True)
    done = purge(workspace, trash_days=0)
    assert (done.jobs, done.file_bytes) == ([JOB], would.file_bytes) and done.file_bytes >= 10_000
    assert not folder.exists() and other_folder.is_dir()
    assert workspace.jobs.all() == [workspace.jobs.get(OTHER)]
    assert workspace.metrics.list(JOB) == workspace.events.list(JOB) == []
    with workspace.store.registry.read() as txn:
        assert list(workspace.checkpoints.scan_removed(txn)) == []
    with pytest.raises(NotFound, match=f"no job {JOB!r}"):
        removal.undo(workspace, [JOB])
    assert purge(workspace, trash_days=0).jobs == []
    assert workspace.store.verify().damaged is False


def test_a_purge_that_was_killed_is_finished_and_nothing_of_it_comes_back(run: Run, workspace: Workspace) -> None:
    run.add("one")
    folder = files_of(workspace, JOB)
    remove(workspace, JOB)
    workspace.jobs.update(JOB, purged=True)  # as far as it had come
    with pytest.raises(NotFound):
        removal.undo(workspace)
    with pytest.raises(NotFound):
        removal.undo(workspace, [JOB])
    assert purge(workspace).jobs == [JOB]
    assert not folder.exists() and workspace.jobs.all() == []
    assert len(Trash(workspace).list()) == 0


def test_what_a_link_in_its_folder_leads_to_stays(run: Run, workspace: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    folder = files_of(workspace, JOB)
    (folder / "checkpoints" / "link").symlink_to(outside)
    remove(workspace, JOB)
    purge(workspace, trash_days=0)
    assert not folder.exists() and (outside / "precious").read_text() == "x"


def test_a_removed_job_survives_a_rebuild(home: Path, run: Run, workspace: Workspace) -> None:
    run.add("one")
    remove(workspace, JOB)
    workspace.close()
    rebuild_registry(home)
    with Workspace.open(home) as rebuilt:
        assert rebuilt.jobs.list() == []
        assert [job.id for job in removal.undo(rebuilt).jobs] == [JOB]
        run.workspace = rebuilt
        assert run.names() == ["one"]
        remove(rebuilt, JOB)
        purge(rebuilt, trash_days=0)
    time.sleep(0)
    rebuild_registry(home)
    with Workspace.open(home) as rebuilt:
        assert rebuilt.jobs.all() == [] and list(rebuilt.store.records()) == []
