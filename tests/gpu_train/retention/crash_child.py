"""The process that test_crash.py kills while it removes and brings back; see tests/kit/kill_points.py."""

from __future__ import annotations

from pathlib import Path

from kill_points import Announce, main

from gpu_train import marking
from gpu_train.retention import removal
from gpu_train.retention.job_removal import plan_for_jobs, remove_jobs
from gpu_train.retention.plain import plan_reclaim
from gpu_train.retention.plan import plan_for
from gpu_train.retention.pruning import prune
from gpu_train.retention.purging import purge
from gpu_train.retention.reclaiming import finish_reclaim, reclaim
from gpu_train.retention.setting import Count, Retention
from gpu_train.retention.thinning import plan_thinning, thin
from gpu_train.workspace import Workspace


def removals(home: Path, sources: Path, announce: Announce) -> None:
    with Workspace.open(home, cwd=home.parent) as workspace:
        removal.remove(workspace, removal.find(workspace, ["train@c-1", "train@c-2"]))
        announce("removed c-1 c-2")
        removal.undo(workspace, ["train@c-1"])
        announce("back c-1")
        marking.keep(workspace, removal.find(workspace, ["train@c-1"]))
        announce("kept c-1")
        prune(workspace, plan_for(workspace, workspace.jobs.find("train"), Retention(Count(2))))
        announce("pruned c-3")


def thinning(home: Path, sources: Path, announce: Announce) -> None:
    with Workspace.open(home, cwd=home.parent) as workspace:
        thin(workspace, plan_thinning(workspace, removal.find(workspace, ["train@c-1", "train@c-2"])))
        announce("thinned c-1 c-2")
        removal.undo(workspace, ["train@c-1"])
        announce("whole c-1")


def jobs(home: Path, sources: Path, announce: Announce) -> None:
    with Workspace.open(home, cwd=home.parent) as workspace:
        remove_jobs(workspace, plan_for_jobs(workspace, [workspace.jobs.find("train")]))
        announce("removed")
        purge(workspace, trash_days=0)
        announce("purged")


def plain(home: Path, sources: Path, announce: Announce) -> None:
    with Workspace.open(home, cwd=home.parent) as workspace:
        for job in workspace.jobs.list():
            finish_reclaim(workspace, job)
            reclaim(workspace, plan_reclaim(workspace, job))
        announce("gone")


main({f.__name__: f for f in (removals, thinning, jobs, plain)})
