"""Removing on a full disk: there is room for it, and gc then frees what was removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_train.retention import removal
from gpu_train.retention.plain import plan_reclaim
from gpu_train.retention.plan import plan_for
from gpu_train.retention.pruning import prune
from gpu_train.retention.reclaiming import reclaim
from gpu_train.retention.setting import Count, Retention
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import StorageFull
from gpu_train_cas.reserve import KEPT_BYTES, RESERVE_BYTES

from .conftest import JOB, Run, noise

MIB = 1 << 20


Fill = Callable[[Path], None]


@pytest.fixture
def full(tmp_path: Path, small_disk: Callable[[int], Path], fill: Fill) -> Iterator[tuple[Run, Path]]:
    """A job of forty checkpoints on a disk that is then filled to the last byte."""
    point = small_disk(48)
    with Workspace.open(point / "home", cwd=tmp_path) as workspace:
        job = Job(JOB, "train", created_ns=1, status="finished")
        workspace.jobs.put(job)
        run = Run(workspace, tmp_path / "sources", job)
        for number in range(40):
            run.add(f"c-{number}", {"w.bin": os.urandom(200_000)}, step=number)
        fill(point / "ballast")
        yield run, point


def free_bytes(point: Path) -> int:
    disk = os.statvfs(point)
    return disk.f_bavail * disk.f_frsize


def test_what_is_removed_on_a_full_disk_can_be_freed_there(full: tuple[Run, Path]) -> None:
    run, point = full
    workspace, reserve = run.workspace, point / "home" / "store" / "reserve"
    assert free_bytes(point) == 0 and reserve.stat().st_size == RESERVE_BYTES
    removal.remove(workspace, removal.find(workspace, ["train@c-0"]))
    assert len(prune(workspace, plan_for(workspace, run.job, Retention(Count(10))))) == 29
    assert len(removal.undo(workspace, ["train@c-0", "train@c-1"]).checkpoints) == 2
    assert KEPT_BYTES <= reserve.stat().st_size < RESERVE_BYTES
    report = workspace.store.gc(trash_days=0)
    assert report.freed_bytes > 4 * MIB and len(report.records) == 28
    assert free_bytes(point) > 4 * MIB
    run.check()
    assert len(run.names()) == 12


def test_gc_keeps_its_room_however_often_the_disk_is_filled_again(full: tuple[Run, Path], fill: Fill) -> None:
    run, point = full
    workspace, removed = run.workspace, 0
    with suppress(StorageFull):
        for number in range(40):
            removal.remove(workspace, removal.find(workspace, [f"train@c-{number}"]))
            fill(point / f"more-{number}")
            removed += 1
    assert 0 < removed < 40
    assert (point / "home" / "store" / "reserve").stat().st_size == KEPT_BYTES
    assert len(workspace.store.gc(trash_days=0).records) == removed
    assert free_bytes(point) > removed * 100_000
    run.check()


def test_plain_files_go_where_no_byte_is_free(tmp_path: Path, small_disk: Callable[[int], Path], fill: Fill) -> None:
    point = small_disk(32)
    with Workspace.open(point / "home", cwd=tmp_path) as workspace:
        run = Run(workspace, tmp_path / "sources", Job(JOB, "train", created_ns=1, status="finished"))
        workspace.jobs.put(run.job)
        for step in (1, 2):
            run.write(f"checkpoint-{step}", {"model.bin": noise(str(step), 2 * MIB)})
        run.capture()
        fill(point / "ballast")
        assert free_bytes(point) == 0
        gone = reclaim(workspace, plan_reclaim(workspace, run.job))
        assert len(gone) == 2
        assert free_bytes(point) >= sum(one.size_bytes for one in gone) >= 4 * MIB
        assert not workspace.store.verify().damaged
