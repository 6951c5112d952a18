from __future__ import annotations

from pathlib import Path

import pytest

from gpu_train.tables.checkpoint import Checkpoint, mode_of, sorted_by_step
from gpu_train.tables.job import Job
from gpu_train.tables.row import numbered_key, to_row
from gpu_train.workspace import Workspace
from gpu_train_cas import rebuild_registry
from gpu_train_cas.errors import Incomplete, NotFound

JOB = "train-aaaaaa"


@pytest.fixture(autouse=True)
def _job(workspace: Workspace) -> None:
    workspace.jobs.put(Job(JOB, "train", created_ns=1))


def add(workspace: Workspace, name: str, **fields: object) -> Checkpoint:
    with workspace.store.transaction() as txn:
        at = len(workspace.checkpoints.list(JOB)) + 1
        row = Checkpoint(JOB, name, committed_ns=at, **fields)  # type: ignore[arg-type]
        return workspace.checkpoints.add_in(txn, row)


def test_rows_are_numbered_and_listed_newest_first(workspace: Workspace) -> None:
    added = [add(workspace, f"c-{n}", step=n) for n in range(3)]
    assert [c.seq for c in added] == [1, 2, 3]
    assert workspace.checkpoints.list(JOB) == added[::-1]
    assert workspace.checkpoints.list() == added[::-1]
    assert workspace.checkpoints.list("train") == []


def test_jobs_whose_ids_begin_alike_are_apart(workspace: Workspace) -> None:
    with workspace.store.transaction() as txn:
        workspace.checkpoints.add_in(txn, Checkpoint(JOB + "x", "other"))
    assert workspace.checkpoints.list(JOB) == []
    assert workspace.checkpoints.latest(JOB) is None


def test_latest_is_the_newest_whole_one(workspace: Workspace) -> None:
    add(workspace, "a", step=9)
    whole = add(workspace, "b", step=3)
    add(workspace, "c", state="incomplete")
    add(workspace, "d", state="gone")
    assert workspace.checkpoints.latest(JOB) == whole
    assert workspace.checkpoints.resolve("train") == (whole, "")
    assert workspace.checkpoints.resolve("train@latest/x/y") == (whole, "x/y")
    assert workspace.checkpoints.resolve("train/x") == (whole, "x")


def test_names_and_paths(workspace: Workspace) -> None:
    run = add(workspace, "run/checkpoint-5", step=5)
    plain = add(workspace, "run", step=None)
    resolve = workspace.checkpoints.resolve
    assert resolve("train@run/checkpoint-5/model/w.bin") == (run, "model/w.bin")
    assert resolve("train@run/other.bin") == (plain, "other.bin")
    assert resolve("train@run") == (plain, "")
    with pytest.raises(NotFound, match="has no checkpoint 'checkpoint-5'; near are "):
        resolve("train@checkpoint-5")


def test_a_plain_name_is_the_newest_whole_content(workspace: Workspace) -> None:
    half = add(workspace, "checkpoint-5", state="incomplete")
    resolve = workspace.checkpoints.resolve
    assert resolve("train@checkpoint-5")[0] == half
    whole = add(workspace, "checkpoint-5~2")
    again = add(workspace, "checkpoint-5~3", state="incomplete")
    add(workspace, "checkpoint-5~4", state="gone")
    assert resolve("train@checkpoint-5/w.bin") == (whole, "w.bin")
    assert resolve("train@checkpoint-5~3")[0] == again
    assert resolve("train@checkpoint-5~1")[0] == half


def test_versions(workspace: Workspace) -> None:
    first, second = add(workspace, "ckpt.pt"), add(workspace, "ckpt.pt~2")
    add(workspace, "ckpt.pt~3", state="gone")
    resolve = workspace.checkpoints.resolve
    assert resolve("train@ckpt.pt")[0] == second
    assert resolve("train@ckpt.pt~1")[0] == first
    assert resolve("train@ckpt.pt~2")[0] == second
    assert first.ref == f"{JOB}@ckpt.pt~1" and resolve(first.ref)[0] == first
    with pytest.raises(Incomplete, match="was deleted by the training"):
        resolve("train@ckpt.pt~3")
    with pytest.raises(NotFound):
        resolve("train@ckpt.pt~4")


def test_an_incomplete_one_must_be_named(workspace: Workspace) -> None:
    row = add(workspace, "checkpoint-5", step=5, state="incomplete")
    assert workspace.checkpoints.resolve("train@checkpoint-5")[0] == row
    with pytest.raises(NotFound, match="has no checkpoint that is whole"):
        workspace.checkpoints.resolve("train@latest")
    with pytest.raises(Incomplete, match="no whole checkpoint at step 5; checkpoint-5 is incomplete"):
        workspace.checkpoints.resolve("train@step:5")


def test_steps(workspace: Workspace) -> None:
    for step in (100, 200):
        add(workspace, f"checkpoint-{step}", step=step)
    again = add(workspace, "checkpoint-200~2", step=200)
    assert workspace.checkpoints.resolve("train@step:200")[0] == again
    with pytest.raises(NotFound, match="no checkpoint at step 150; nearest are 100, 200"):
        workspace.checkpoints.resolve("train@step:150")


def test_the_best(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    best = workspace.checkpoints.best
    assert best(JOB) is None
    low = add(workspace, "a", metrics={"loss": 1.0, "eval_accuracy": 0.9})
    assert best(JOB) == low
    add(workspace, "b", metrics={"loss": 0.5, "eval_loss": float("nan")})
    assert best(JOB).name == "b"  # type: ignore[union-attr]
    c = add(workspace, "c", metrics={"loss": 3.0, "eval_loss": 2.0, "eval_accuracy": 0.1})
    add(workspace, "d", metrics={"loss": 0.1}, state="incomplete")
    assert best(JOB) == c
    assert best(JOB, "eval_accuracy") == low
    assert best(JOB, "eval_accuracy", "min") == c
    newer = add(workspace, "e", metrics={"eval_loss": 2.0})
    assert best(JOB) == newer
    assert best(JOB, "unknown") is None
    with pytest.raises(NotFound, match="has no checkpoint with a metric"):
        workspace.jobs.put(Job("bare-aaaaaa", "bare"))
        workspace.checkpoints.resolve("bare@best")


def test_the_best_by_the_configured_metric(home, tmp_path) -> None:
    (tmp_path / "gpu-train.toml").write_text('[defaults]\nbest_metric = "fid"\nbest_mode = "max"\n')
    with Workspace.open(home, cwd=tmp_path) as workspace:
        for value in (1.0, 3.0, 2.0):
            add(workspace, f"c{value}", metrics={"fid": value, "loss": value})
        assert workspace.checkpoints.best(JOB).name == "c3.0"  # type: ignore[union-attr]
        assert workspace.checkpoints.best(JOB, "loss").name == "c1.0"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("loss", "min"), ("eval_loss", "min"), ("perplexity", "min"), ("accuracy", "max"), ("eval_acc", "max"),
        ("val/f1", "max"), ("eval_rougeL", "max"), ("train-reward", "max"), ("fid", "min"), ("map", "max"),
        ("mapping_error", "min"),
    ],
)  # fmt: skip
def test_which_way_is_better(metric: str, mode: str) -> None:
    assert mode_of(metric) == mode


def test_the_order_of_steps() -> None:
    rows = [Checkpoint(JOB, n, step=s) for n, s in (("b", 1000), ("a", 200), ("last", None), ("c", 200))]
    assert [c.name for c in sorted_by_step(rows)] == ["last", "a", "c", "b"]


def test_the_newest_few_are_those_of_the_whole_list(workspace: Workspace) -> None:
    with workspace.store.transaction() as txn:
        for at in range(12):
            workspace.checkpoints.add_in(txn, Checkpoint(f"job{at % 3}", f"c-{at}", committed_ns=at))
    for job in (None, "job1"):
        whole = workspace.checkpoints.list(job)
        assert workspace.checkpoints.list(job, limit=3) == whole[:3]
        assert workspace.checkpoints.list(job, limit=99) == whole
        assert workspace.checkpoints.count(job) == len(whole)
    assert workspace.checkpoints.counts() == {"job0": 4, "job1": 4, "job2": 4}


def looked_up(workspace: Workspace) -> list[object]:
    """What is found by path and by step, when reading and when writing."""
    checkpoints, registry = workspace.checkpoints, workspace.store.registry
    found: list[object] = []
    for begin in (registry.read, registry.write):
        with begin() as txn:
            found.append(
                [
                    [c.seq for c in checkpoints.versions_in(txn, JOB, "a")],
                    [c.seq for c in checkpoints.newest_versions_in(txn, JOB, "a")],
                    [c.seq for c in checkpoints.versions_in(txn, JOB, "\udcff" * 300)],
                    [c.seq for c in checkpoints.at_step_in(txn, JOB, 5)],
                    [c.seq for c in checkpoints.at_step_in(txn, JOB, 6)],
                    [c.seq for c in checkpoints.at_step_in(txn, JOB, None)],
                ]
            )
    return found


def test_paths_and_steps_are_found_whatever_becomes_of_the_index(workspace: Workspace) -> None:
    checkpoints, registry = workspace.checkpoints, workspace.store.registry
    for name, step in (("a", 5), ("b", 5), ("a~2", 6), ("\udcff" * 300, None), ("a~3", None)):
        row = add(workspace, name, step=step)
    checkpoints.put(row._replace(step=5))
    expected = [[1, 3, 5], [5, 3, 1], [4], [1, 2, 5], [3], [4]]
    assert looked_up(workspace) == [expected, expected]
    places = registry.table("checkpoint_places")
    with registry.read() as txn:
        assert places.count(txn) == 10
    with registry.write() as txn:  # as a rebuilt registry begins
        for key in list(places.keys(txn)):
            places.delete(txn, key)
    assert looked_up(workspace) == [expected, expected]
    with registry.read() as txn:
        assert places.count(txn) == 10
    with workspace.store.transaction() as raw:  # as a program that knows of no index writes
        raw.put(checkpoints.table, numbered_key(JOB, 6), {**to_row(row), "name": "a~4", "step": 6})
    expected = [[1, 3, 5, 6], [6, 5, 3, 1], [4], [1, 2, 5], [3, 6], [4]]
    assert looked_up(workspace) == [expected, expected]


def test_a_rebuilt_registry_finds_by_path_and_step(tmp_path: Path) -> None:
    home = tmp_path / "other"
    with Workspace.open(home) as workspace:
        workspace.jobs.put(Job(JOB, "train", created_ns=1))
        for name, step in (("a", 5), ("b", 5), ("a~2", 6)):
            add(workspace, name, step=step)
    rebuild_registry(home)
    with Workspace.open(home) as workspace:
        assert workspace.checkpoints.resolve("train@a")[0].name == "a~2"
        assert workspace.checkpoints.resolve("train@step:5")[0].name == "b"
        assert add(workspace, "a~3", step=5).seq == 4
        assert [c.seq for c in workspace.checkpoints.list(JOB)] == [4, 3, 2, 1]
        assert looked_up(workspace) == [[[1, 3, 4], [4, 3, 1], [], [1, 2, 4], [3], []]] * 2
