"""Retention: what goes of a job's checkpoints and what stays, and getting back what went.

    with gpu_train.Workspace.open() as workspace:
        plan = retention.plan_for(workspace, workspace.jobs.find("my-job"), retention.Retention(latest=3))
        retention.prune(workspace, plan)
        retention.undo(workspace)

`setting` is what a person sets, `policy` what it means (pure functions over rows), `guard` what no policy may drop,
`plan` puts the two together, `pruning` carries it out, `upkeep` is the part of the agent. `trash` moves checkpoints
and jobs to the trash and back: `removal` those that refs name, `job_removal` whole jobs. `purging` takes them from
there for good.

What leaves goes to the trash first: its record is marked (cas/spec/gc.md), its row moves to the table of removed
checkpoints, both in one transaction. `thinning` gives a checkpoint a record without its optimizer's state, which
`optimizer` finds; the old record goes to the trash. gc takes the bytes when `defaults.trash_days` are over.

`plain` finds which of the trainer's own files are stored byte for byte (`comparison`) and wanted by nobody (`needed`),
`reclaiming` deletes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_train_cas.lazy import lazy_names

if TYPE_CHECKING:
    from gpu_train.marking import keep
    from gpu_train.retention.job_removal import JobsPlan, jobs_of_project, plan_for_jobs, remove_jobs
    from gpu_train.retention.plain import PlainFiles, plan_loaded, plan_reclaim, read_back
    from gpu_train.retention.plan import Fate, Plan, plan_for
    from gpu_train.retention.pruning import prune
    from gpu_train.retention.purging import Purged, purge
    from gpu_train.retention.reclaiming import finish_reclaim, reclaim
    from gpu_train.retention.removal import find, remove, undo
    from gpu_train.retention.setting import Best, Retention
    from gpu_train.retention.thinning import Thinning, old_ones, plan_thinning, thin
    from gpu_train.retention.trash import Trash

__all__ = [
    "Best",
    "Fate",
    "JobsPlan",
    "PlainFiles",
    "Plan",
    "Purged",
    "Retention",
    "Thinning",
    "Trash",
    "find",
    "finish_reclaim",
    "jobs_of_project",
    "keep",
    "old_ones",
    "plan_for",
    "plan_for_jobs",
    "plan_loaded",
    "plan_reclaim",
    "plan_thinning",
    "prune",
    "purge",
    "read_back",
    "reclaim",
    "remove",
    "remove_jobs",
    "thin",
    "undo",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gpu_train.marking": ("keep",),
        "gpu_train.retention.job_removal": ("JobsPlan", "jobs_of_project", "plan_for_jobs", "remove_jobs"),
        "gpu_train.retention.plain": ("PlainFiles", "plan_loaded", "plan_reclaim", "read_back"),
        "gpu_train.retention.plan": ("Fate", "Plan", "plan_for"),
        "gpu_train.retention.pruning": ("prune",),
        "gpu_train.retention.purging": ("Purged", "purge"),
        "gpu_train.retention.reclaiming": ("finish_reclaim", "reclaim"),
        "gpu_train.retention.removal": ("find", "remove", "undo"),
        "gpu_train.retention.setting": ("Best", "Retention"),
        "gpu_train.retention.thinning": ("Thinning", "old_ones", "plan_thinning", "thin"),
        "gpu_train.retention.trash": ("Trash",),
    },
)
