"""Removing and bringing back: nothing is lost before its time, whoever else is at work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_train import marking
from gpu_train.errors import Protected
from gpu_train.importer import import_checkpoints
from gpu_train.retention import removal
from gpu_train.retention.trash import POLICY, Moved, Trash
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.workspace import Workspace
from gpu_train_cas import rebuild_registry
from gpu_train_cas.errors import NotFound, UsageError

from .conftest import BYTES, JOB, Run


def steps(run: Run, *numbers: int) -> list[Checkpoint]:
    return [run.add(f"checkpoint-{n}", step=n) for n in numbers]


def test_what_was_removed_is_nowhere_and_comes_back_as_it_was(run: Run, workspace: Workspace) -> None:
    one, two, _three = steps(run, 1, 2, 3)
    assert removal.remove(workspace, [two, one]) == [two, one]
    assert run.names() == ["checkpoint-3"]
    assert (workspace.checkpoints.count(JOB), workspace.checkpoints.counts()) == (1, {JOB: 1})
    for ref in ("checkpoint-2", "checkpoint-2~1", "step:2"):
        with pytest.raises(NotFound, match=r"was removed on .* by `checkpoints rm`; .* undo train-aaaaaa@checkpoint-2"):
            workspace.checkpoints.resolve(f"train@{ref}")
    trashed = Trash(workspace).list()
    assert {c.name for c in trashed} == {"checkpoint-1", "checkpoint-2"}
    assert len({c.removed_ns for c in trashed}) == 1
    assert [c.name for c in workspace.checkpoints.history(JOB)] == ["checkpoint-3", "checkpoint-2", "checkpoint-1"]

    workspace.store.gc()  # their days are not over
    done = removal.undo(workspace)
    assert {c.name: c for c in done.checkpoints} == {"checkpoint-1": one, "checkpoint-2": two}
    assert run.names() == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert workspace.checkpoints.resolve("train@step:2")[0] == two
    run.check()
    with pytest.raises(NotFound, match="nothing was removed"):
        removal.undo(workspace)


def test_gc_takes_what_is_over_and_nothing_else(run: Run, workspace: Workspace) -> None:
    one, two, _three = steps(run, 1, 2, 3)
    told = workspace.store.forecast([one.record, two.record])
    assert told.freed_bytes > 2 * BYTES and told.shared_bytes > 100 and told.held_bytes == 0
    removal.remove(workspace, [one, two])
    report = workspace.store.gc(trash_days=0)
    assert set(report.records) == {one.record, two.record}
    assert abs(report.block_bytes - told.freed_bytes) < 3000  # frames have headers; rows' frames go too
    run.check()
    assert Trash(workspace).list() == []
    with pytest.raises(NotFound, match="nothing was removed"):
        removal.undo(workspace)
    done = removal.undo(workspace, ["train@checkpoint-1"])
    assert ([c.name for c in done.lost], done.checkpoints) == (["checkpoint-1"], [])


def test_names_and_numbers_are_not_given_again(run: Run, workspace: Workspace, tmp_path: Path) -> None:
    steps(run, 1, 2)
    source = tmp_path / "checkpoint-9"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"one")
    (first,) = import_checkpoints(workspace, source, JOB, name="checkpoint-9")
    removal.remove(workspace, [first.checkpoint])
    workspace.store.gc(trash_days=0)
    (source / "model.safetensors").write_bytes(b"other")
    (second,) = import_checkpoints(workspace, source, JOB, name="checkpoint-9")
    assert (first.checkpoint.seq, second.checkpoint.seq) == (3, 4)
    assert second.checkpoint.name == "checkpoint-9~2"
    assert workspace.checkpoints.resolve("train@checkpoint-9")[0] == second.checkpoint


def test_the_same_content_comes_back_out_of_the_trash(run: Run, workspace: Workspace, tmp_path: Path) -> None:
    source = tmp_path / "checkpoint-9"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"one")
    (first,) = import_checkpoints(workspace, source, JOB, name="checkpoint-9")
    removal.remove(workspace, [first.checkpoint])
    (again,) = import_checkpoints(workspace, source, JOB, name="checkpoint-9")
    assert (again.is_new, again.brought_back, again.checkpoint.seq) == (False, True, 1)
    assert run.names() == ["checkpoint-9"] and Trash(workspace).list() == []
    removal.remove(workspace, [again.checkpoint])
    workspace.store.gc(trash_days=0)
    (anew,) = import_checkpoints(workspace, source, JOB, name="checkpoint-9")
    assert (anew.is_new, anew.checkpoint.name) == (True, "checkpoint-9~2")
    assert workspace.store.verify(records=[anew.checkpoint.record]).damaged is False


def test_some_must_stay(make_run: Callable[..., Run], run: Run, workspace: Workspace) -> None:
    kept, deployed, parent, loaded, free = steps(run, 1, 2, 3, 4, 5)
    marking.keep(workspace, [kept])
    workspace.checkpoints.put(deployed._replace(tags={"deployed": "v1"}))
    make_run("child-aaaaaa", status="running", parent=parent.ref, loads=(parent.ref, loaded.ref))
    for checkpoint, why in ((kept, "is kept"), (deployed, "deployed"), (parent, "child-aaaaaa"), (loaded, "running")):
        with pytest.raises(Protected, match=f"{checkpoint.ref} cannot be removed: .*{why}"):
            removal.remove(workspace, [free, checkpoint])
    assert len(run.names()) == 5, "all or none"
    marking.keep(workspace, [kept], kept=False)
    workspace.checkpoints.put(deployed._replace(tags={"deployed": "no"}))
    workspace.jobs.update("child-aaaaaa", status="finished")
    everything = workspace.checkpoints.list(JOB)
    assert len(removal.remove(workspace, everything)) == 5  # also the newest one: a person said so
    assert run.names() == []


def test_the_newest_whole_one_of_a_running_job_stays(make_run: Callable[..., Run], workspace: Workspace) -> None:
    run = make_run(status="running")
    one, two = steps(run, 1, 2)
    run.add("half", state="incomplete")
    with pytest.raises(Protected, match="the newest whole one of a job that is still running"):
        removal.remove(workspace, [two])
    assert removal.remove(workspace, [one]) == [one]


def test_undo_takes_the_last_command_back_and_what_is_named(run: Run, workspace: Workspace) -> None:
    one, two, three, _four = steps(run, 1, 2, 3, 4)
    removal.remove(workspace, [one])
    removal.remove(workspace, [two])
    removal.remove(workspace, [three], by=POLICY)
    assert [c.name for c in removal.undo(workspace).checkpoints] == ["checkpoint-2"]
    assert [c.name for c in removal.undo(workspace, ["train@step:3"]).checkpoints] == ["checkpoint-3"]
    with pytest.raises(NotFound, match="names nothing that was removed"):
        removal.undo(workspace, ["train@step:3"])
    removal.remove(workspace, [three], by=POLICY)
    assert {c.name for c in removal.undo(workspace, ["train"]).checkpoints} == {"checkpoint-1", "checkpoint-3"}
    run.check()


def test_two_names_of_one_record(run: Run, workspace: Workspace) -> None:
    one = run.add("one")
    with workspace.store.transaction() as txn:
        two = workspace.checkpoints.add_in(txn, one._replace(name="two"))
    run.contents["two"] = run.contents["one"]
    removal.remove(workspace, [one])
    workspace.store.gc(trash_days=0)
    run.check()
    removal.remove(workspace, [two])
    assert len(workspace.store.gc(trash_days=0).records) == 1


def test_a_rebuilt_registry_knows_what_was_removed(home: Path, run: Run, workspace: Workspace) -> None:
    one, two, three = steps(run, 1, 2, 3)
    marking.keep(workspace, [three])
    removal.remove(workspace, [one, two])
    removal.undo(workspace, ["train@step:2"])
    workspace.close()
    rebuild_registry(home)
    with Workspace.open(home) as rebuilt:
        run.workspace = rebuilt
        assert run.names() == ["checkpoint-2", "checkpoint-3"]
        assert rebuilt.checkpoints.resolve("train@step:3")[0].kept
        assert [c.name for c in Trash(rebuilt).list()] == ["checkpoint-1"]
        assert [c.name for c in removal.undo(rebuilt).checkpoints] == ["checkpoint-1"]
        run.check()


def test_a_ref_with_a_path_is_refused(run: Run, workspace: Workspace) -> None:
    steps(run, 1)
    with pytest.raises(UsageError, match="names a path inside a checkpoint"):
        removal.find(workspace, ["train@step:1/own.bin"])
    assert removal.find(workspace, ["train@step:1", "train@latest"]) == workspace.checkpoints.list(JOB)


def test_many_at_once_remove_and_bring_back(home: Path, run: Run, workspace: Workspace) -> None:
    """Whatever the order, each is in one place, and the record agrees with the row."""
    all_of_them = steps(run, *range(12))
    failed: list[BaseException] = []

    def work(mine: list[Checkpoint], back: bool) -> None:
        try:
            for _ in range(6):
                removal.remove(workspace, mine)
                if back:
                    Trash(workspace).undo(Moved(Trash(workspace).list(JOB)))
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(all_of_them[n : n + 6], n % 2 == 0)) for n in range(0, 8, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    here, trashed = run.names(), [c.name for c in Trash(workspace).list()]
    assert sorted(here + trashed) == sorted(c.name for c in all_of_them)
    assert {r.name for _, r in workspace.store.records()} == set(here)
    assert {r.name for _, r in workspace.store.records(trashed=True)} == set(trashed)
    run.check()
