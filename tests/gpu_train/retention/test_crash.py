"""Kill -9 while things are removed and brought back: each is in one place, rows and records agree, nothing is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_train.retention import removal
from gpu_train.retention.purging import purge
from gpu_train.retention.reclaiming import finish_reclaim
from gpu_train.retention.trash import Trash
from gpu_train.workspace import Workspace

from .conftest import JOB, Run

CHILD = Path(__file__).with_name("crash_child.py")


def check_removals(workspace: Workspace, announced: list[str], run: Run) -> None:
    here = {c.name: c for c in workspace.checkpoints.list(JOB)}
    trashed = {c.name: c for c in Trash(workspace).list(JOB)}
    assert sorted([*here, *trashed]) == NAMES
    for rows, in_trash in ((here, False), (trashed, True)):
        records = {digest for digest, _ in workspace.store.records(trashed=in_trash)}
        assert {c.record for c in rows.values()} == records
    assert len({"c-1", "c-2"} & set(trashed)) != 1 or "removed c-1 c-2" in announced, "both or none"
    if "removed c-1 c-2" in announced:
        assert "c-2" in trashed
    if "back c-1" in announced:
        assert "c-1" in here
    if "kept c-1" in announced:
        assert here["c-1"].kept
    if "pruned c-3" in announced:
        assert list(here) == ["c-5", "c-4", "c-1"]
    run.check()
    if trashed:
        removal.undo(workspace, [JOB])


def check_thinning(workspace: Workspace, announced: list[str], run: Run) -> None:
    rows = {c.name: c for c in workspace.checkpoints.list(JOB)}
    records = {digest for digest, _ in workspace.store.records()}
    assert {c.record for c in rows.values()} == records
    thin = {name for name, c in rows.items() if c.thin}
    assert thin <= {"c-1", "c-2"}
    if "thinned c-1 c-2" in announced:
        assert "c-2" in thin
    if "whole c-1" in announced:
        assert thin == {"c-2"}
    for name, row in rows.items():
        whole = run.contents[name]
        assert run.read(row) == ({k: v for k, v in whole.items() if k != "optimizer.pt"} if name in thin else whole)
    if thin:
        assert {c.name for c in removal.undo(workspace, [JOB]).whole} == thin


def check_jobs(workspace: Workspace, announced: list[str], run: Run) -> None:
    jobs, rows = workspace.jobs.list(), workspace.checkpoints.list(JOB)
    assert (len(jobs), len(rows)) in ((1, 5), (0, 0)), "a job goes with all that it has"
    if "removed" in announced:
        assert jobs == []
    if "purged" in announced:
        assert workspace.jobs.all() == [] and not workspace.home.artifacts(JOB).exists()
    purged = bool(workspace.jobs.all()) and workspace.jobs.all()[0].purged
    if not workspace.jobs.all() or purged:
        purge(workspace, trash_days=0)
        assert workspace.jobs.all() == [] and not workspace.home.artifacts(JOB).exists()
        run.contents = {}
    elif jobs == [] and len(Trash(workspace).list(JOB)) == 5:
        removal.undo(workspace, [JOB])
        assert (workspace.home.artifacts(JOB) / "logs" / "stdout.log").exists()


def check_plain(workspace: Workspace, announced: list[str], run: Run) -> None:
    def there() -> dict[str, dict[str, bytes]]:
        return {p.name: {f.name: f.read_bytes() for f in p.iterdir()} for p in run.plain.glob("c-*")}

    contents = {name: run.contents[name] for name in NAMES}
    assert there().items() <= contents.items(), "a checkpoint that can be seen is whole"
    for job in workspace.jobs.list():
        finish_reclaim(workspace, job)
    assert there().items() <= contents.items() and not list(run.plain.rglob(".*"))
    loose = list(workspace.home.checkpoints(LOOSE).iterdir())
    assert len(loose) in (0, 2), "files that lie loose go together"
    if "gone" in announced:
        assert not there() and not loose


CHECKS = {"removals": check_removals, "thinning": check_thinning, "jobs": check_jobs, "plain": check_plain}
LOOSE = "loose-aaaaaa"
NAMES = [f"c-{number}" for number in range(1, 6)]


@pytest.mark.parametrize("scenario", CHECKS)
@pytest.mark.parametrize("step", [60, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(3600)], id="each")])
def test_killed_at_any_call_of_a_function(
    run: Run, make_run: Callable[..., Run], workspace: Workspace, sweep, tmp_path: Path, scenario: str, step: int
) -> None:
    for name in NAMES:
        run.add(name, {"model.bin": os.urandom(2000), "optimizer.pt": os.urandom(2000)})
        run.write(name, run.contents[name])
    if scenario == "plain":
        other = make_run(LOOSE)
        other.write("", {"model.safetensors": os.urandom(2000), "config.json": b"{}"})
        other.capture()
    logs = workspace.home.logs(JOB)
    logs.mkdir(parents=True)
    (logs / "stdout.log").write_text("log")
    workspace.close()
    work = tmp_path / "work"
    shutil.copytree(workspace.home.root, work / "template" / "home")
    contents = run.contents
    killed = 0
    for point in sweep(CHILD, work, scenario, step):
        announced = (work / str(point) / "announced").read_text().splitlines()
        with Workspace.open(work / str(point) / "home", cwd=work) as opened:
            run.workspace, run.contents = opened, contents
            CHECKS[scenario](opened, announced, run)
            if run.contents and opened.jobs.list():
                assert run.names() == NAMES
            opened.store.gc(trash_days=0)
            run.check()
        shutil.rmtree(work / str(point))
        killed += 1
    assert killed >= 5
