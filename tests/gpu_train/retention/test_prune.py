"""What a policy drops, what nothing may drop, and that a plan is looked at again before it is carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_train import marking
from gpu_train.config import configure
from gpu_train.launch import _retention
from gpu_train.retention import removal
from gpu_train.retention.plan import Plan, plan_for, retention_of
from gpu_train.retention.pruning import prune
from gpu_train.retention.setting import Best, Count, Retention
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace

from .conftest import JOB, Run

LAST = Retention(Count(1))


def why(plan: Plan) -> dict[str, str]:
    return {f.checkpoint.name: ("goes: " if f.goes else "stays: ") + "; ".join(f.why) for f in plan.fates}


def test_a_dry_run_says_what_would_go_and_why_the_others_stay(run: Run, workspace: Workspace) -> None:
    for step, loss in ((1, 0.5), (2, 0.1), (3, 0.7), (4, 0.6)):
        run.add(f"c-{step}", step=step, metrics={"loss": loss})
    run.add("half", state="incomplete")
    run.add("lost", state="gone")
    said = Retention(Count(1), (Best("loss"),))
    plan = plan_for(workspace, run.job, said)
    assert why(plan) == {
        "half": "stays: it is incomplete; only a person can say what it is worth",
        "c-4": "stays: among the latest 1; it is the newest whole one",
        "c-3": "goes: no policy preserves it",
        "c-2": "stays: among the best 1 by loss (0.1)",
        "c-1": "goes: no policy preserves it",
    }
    assert len(run.names()) == 6
    assert [c.name for c in prune(workspace, plan)] == ["c-1", "c-3"]
    assert run.names() == ["c-2", "c-4", "half", "lost"]
    assert prune(workspace, plan) == prune(workspace, plan_for(workspace, run.job, said)) == []
    assert {c.name for c in removal.undo(workspace).checkpoints} == {"c-1", "c-3"}


def test_without_a_policy_all_stay(run: Run, workspace: Workspace) -> None:
    run.add("a"), run.add("b")
    assert why(plan_for(workspace, run.job)) == {
        "b": "stays: no policy is set; it is the newest whole one", "a": "stays: no policy is set",
    }  # fmt: skip


def test_incomplete_ones_older_than_a_whole_one_go_when_that_is_said(run: Run, workspace: Workspace) -> None:
    run.add("old half", state="incomplete"), run.add("whole"), run.add("new half", state="incomplete")
    prune(workspace, plan_for(workspace, run.job, LAST._replace(incomplete=True)))
    assert run.names() == ["whole", "new half"]


def test_what_no_policy_may_drop(make_run: Callable[..., Run], run: Run, workspace: Workspace) -> None:
    rows = {name: run.add(name) for name in ("kept", "deployed", "parent", "free", "newest")}
    marking.keep(workspace, [rows["kept"]])
    workspace.checkpoints.put(rows["deployed"]._replace(tags={"deployed": "yes"}))
    make_run("child-aaaaaa", status="queued", parent=rows["parent"].ref)
    run.add("half", state="incomplete")
    assert [c.name for c in prune(workspace, plan_for(workspace, run.job, LAST))] == ["free"]
    assert why(plan_for(workspace, run.job, LAST))["parent"] == (
        "stays: job child-aaaaaa started from it and is still running"
    )


def test_nothing_goes_before_it_is_in_the_sinks(tmp_path: Path, home: Path) -> None:
    (tmp_path / "gpu-train.toml").write_text('[sinks]\ncheckpoints = ["s3://a/b", "/nas"]\n')
    with Workspace.open(home, cwd=tmp_path) as workspace:
        job = Job(JOB, "train", created_ns=1, status="finished")
        workspace.jobs.put(job)
        run = Run(workspace, tmp_path / "sources", job)
        one, two = run.add("one"), run.add("two")
        run.add("three")
        workspace.checkpoints.put(one._replace(pushed={"s3://a/b": 1, "/nas": 2}))
        workspace.checkpoints.put(two._replace(pushed={"/nas": 2}))
        assert [c.name for c in prune(workspace, plan_for(workspace, job, LAST))] == ["one"]
        assert why(plan_for(workspace, job, LAST))["two"] == "stays: it is not yet in s3://a/b"


def test_the_most_special_setting_counts(tmp_path: Path, home: Path, make_run: Callable[..., Run]) -> None:
    (tmp_path / "gpu-train.toml").write_text("[retention]\nlatest = 5\n[projects.mine.retention]\nlatest = 4\n")
    with Workspace.open(home, cwd=tmp_path) as workspace:
        other, mine = make_run("a-aaaaaa").job, make_run("b-aaaaaa", project="mine").job
        own = make_run("c-aaaaaa", project="mine", retention={"latest": 3}).job
        nothing = make_run("d-aaaaaa", project="mine", retention={}).job
        found = [retention_of(workspace, job).latest for job in (other, mine, own, nothing)]
    assert found == [5, 4, 3, 0]


def test_a_plan_is_looked_at_again_when_it_is_carried_out(run: Run, workspace: Workspace) -> None:
    """Between the look and the deed the best one is removed by hand and another kept."""
    first, _, third = (run.add(n, metrics={"loss": v}) for n, v in (("a", 0.1), ("b", 0.2), ("c", 0.3)))
    run.add("d", metrics={"loss": 9.0})
    plan = plan_for(workspace, run.job, Retention(best=(Best("loss"),)))
    assert [c.name for c in plan.going] == ["c", "b"]
    removal.remove(workspace, [first])
    marking.keep(workspace, [third])
    assert prune(workspace, plan) == []
    assert run.names() == ["b", "c", "d"]


@pytest.fixture
def nothing_configured() -> Iterator[None]:
    yield
    configure()


@pytest.mark.usefixtures("nothing_configured")
def test_what_was_configured_for_a_project_goes_with_the_job(home: Path, tmp_path: Path) -> None:
    """The agent, a process of its own, has not heard the call."""
    configure(registry={"projects": {"p": {"retention": {"latest": 2}}}})
    with Workspace.open(home, cwd=tmp_path) as workspace:
        assert _retention(workspace.config, "p", None) == {"latest": 2}
        assert _retention(workspace.config, "q", None) is None
        assert _retention(workspace.config, "p", {"every_seconds": "2h"}) == {"every_seconds": 7200.0}
        assert _retention(workspace.config, "p", {}) == {}
