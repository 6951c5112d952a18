"""How a job saves and how long the disks last, from the rows of its checkpoints and the files that are still there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_train import Workspace
from gpu_train.capture.board import Board
from gpu_train.capture.finder import find_one, fingerprint_of
from gpu_train.capture.headroom import Headroom, kept_for_jobs
from gpu_train.room import Room, room_for, shortage
from gpu_train.saves import NS, RECENT, Saves, finished_ns, largest_save_bytes, saves_of
from gpu_train.size import Size
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.tables.job import Job

START_S = 1000


@pytest.fixture
def job(workspace: Workspace) -> Job:
    job = Job("train-aaaaaa", "train", status="running", created_ns=START_S * NS, started_ns=START_S * NS, cwd="/")
    workspace.jobs.put(job)
    return job


class Rows:
    """Enters checkpoints as a run leaves them; `keep` of the last are still there as plain files."""

    def __init__(self, workspace: Workspace, job: Job) -> None:
        self.workspace, self.job = workspace, job
        self.root = workspace.home.checkpoints(job.id)

    def add(self, name: str, at_s: float, step: int | None, size: int = 1000, **fields: object) -> Checkpoint:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        found = find_one(path)
        assert found is not None
        ns = round((START_S + at_s) * NS)
        row = Checkpoint(
            self.job.id, name, step=step, created_ns=ns, committed_ns=ns + NS, size_bytes=size, source=str(path),
            fingerprint=fingerprint_of(found.members or {}), record=b"r" * 32, **{"stored_bytes": 400, **fields},
        )  # fmt: skip
        with self.workspace.store.transaction() as txn:
            return self.workspace.checkpoints.add_in(txn, row)

    def run(self, count: int, keep: int, **fields: object) -> None:
        """A run that saves every 100 steps and 60 s."""
        for number in range(1, count + 1):
            self.add(f"step-{100 * number}.pt", 60 * number, 100 * number, **fields)
            if number > keep:
                (self.root / f"step-{100 * (number - keep)}.pt").unlink()


@pytest.fixture
def rows(workspace: Workspace, job: Job) -> Rows:
    return Rows(workspace, job)


def test_before_the_first(workspace: Workspace, job: Job) -> None:
    assert saves_of(workspace, job) is None
    room = room_for(workspace, job)
    assert room.saves is None
    assert shortage(room) == []
    assert [(d.holds, d.lasts, d.is_short) for d in room.disks] == [(("store",), None, False)]


def test_the_first_counts_from_the_start(workspace: Workspace, job: Job, rows: Rows) -> None:
    rows.add("step-100.pt", 90, 100, total_steps=1000)
    assert saves_of(workspace, job) == Saves(90.0, 100, 400, 1000, 1.0, 100, 1000)
    workspace.jobs.put(job._replace(parent="train-aaaaaa@step-100.pt"))
    rows.add("step-150.pt", 190, 150)
    assert saves_of(workspace, job) == Saves(100.0, 50, 400, 1000, 1.0, 150, 1000)


@pytest.mark.parametrize(("count", "keep", "share"), [(12, 100, 1.0), (12, 2, 0.0), (2, 1, 0.0), (40, 2, 0.0)])
def test_a_trainer_that_rotates_leaves_nothing_for_good(
    workspace: Workspace, job: Job, rows: Rows, count: int, keep: int, share: float
) -> None:
    rows.run(count, keep, total_steps=100 * count + 250)
    saves = saves_of(workspace, job)
    assert saves == Saves(60.0, 100, 400, 1000, share, 100 * count, 100 * count + 250)
    assert saves.left == 3


def test_what_is_written_at_one_step_is_one_save(workspace: Workspace, job: Job, rows: Rows) -> None:
    for number in range(1, 6):
        rows.add(f"epoch={number}-step={number * 10}.ckpt", 60 * number, number * 10)
        rows.add("last.ckpt", 60 * number + 1, None, stored_bytes=0)
    saves = saves_of(workspace, job)
    assert saves is not None
    assert (saves.interval_s, saves.interval_steps, saves.stored_bytes, saves.plain_bytes) == (60.0, 10, 400, 2000)


def test_a_file_that_is_written_over_takes_no_more_room(workspace: Workspace, job: Job, rows: Rows) -> None:
    for number in range(1, 9):
        rows.add("ckpt.pt", 30 * number, None, size=1000 + number)
    saves = saves_of(workspace, job)
    assert saves is not None
    assert (saves.interval_s, saves.plain_share, saves.left) == (30.0, 0.0, None)


def test_the_largest_save(workspace: Workspace, job: Job, rows: Rows) -> None:
    assert largest_save_bytes(workspace, job) == 0
    rows.add("step-100.pt", 60, 100, size=3000)
    rows.add("best.pt", 60, 100, size=2000)
    rows.add("ckpt.pt", 61, None, size=4000)
    rows.add("ckpt.pt~2", 62, None, size=4500)
    assert largest_save_bytes(workspace, job) == 5000
    resumed = Job("train-bbbbbb", "train", created_ns=1, parent=f"{job.id}@ckpt.pt~2")
    assert largest_save_bytes(workspace, resumed) == 4500
    for step in range(200, 200 + RECENT):
        rows.add(f"step-{step}.pt", step, step)
    assert largest_save_bytes(workspace, job) == 1000


def test_what_other_jobs_keep_is_kept(workspace: Workspace, job: Job, tmp_path: Path) -> None:
    other = job._replace(id="train-bbbbbb")
    workspace.jobs.put(other)
    for one in (job, other):
        workspace.home.checkpoints(one.id).mkdir(parents=True)
    Board(workspace.home.control(other.id)).show([], reserve_bytes=5000)
    device = tmp_path.stat().st_dev
    assert kept_for_jobs(workspace) == kept_for_jobs(workspace, besides=job.id) == {device: 5000}
    assert kept_for_jobs(workspace, besides=other.id) == {}
    headroom = Headroom(workspace, job, Size("300"))
    headroom.watch([], [])
    lacking = headroom.shortage(1 << 60)
    assert lacking is not None
    assert (headroom.save_bytes, lacking.kept_bytes) == (300, 5300)
    headroom.is_ended = True
    lacking = headroom.shortage(1 << 60)
    assert lacking is not None
    assert lacking.kept_bytes == 5300  # 300 B are less than what is kept for rows
    assert headroom.squeeze(tmp_path) is None


def test_files_that_were_copied_in_with_their_times_are_no_older_than_the_run(job: Job) -> None:
    assert finished_ns(Checkpoint("j", "c", created_ns=5, committed_ns=2000 * NS), job) == START_S * NS
    assert finished_ns(Checkpoint("j", "c", created_ns=9000 * NS, committed_ns=2000 * NS), job) == 2000 * NS


def test_a_disk_that_does_not_last(small_disk, home: Path, tmp_path: Path) -> None:
    with Workspace.open(small_disk(24) / "home", cwd=tmp_path) as workspace:
        job = Job("train-aaaaaa", "train", status="running", created_ns=START_S * NS, started_ns=START_S * NS, cwd="/")
        workspace.jobs.put(job)
        rows = Rows(workspace, job)
        rows.run(3, 100, stored_bytes=4 << 20, total_steps=2000)
        room = room_for(workspace, job)
        (disk,) = room.disks
        assert disk.holds == ("store", "checkpoints")
        assert disk.save_bytes == (4 << 20) + 1000
        assert disk.saves_left is not None
        assert 3 <= disk.saves_left <= 5
        assert disk.full_in_s == 60 * disk.saves_left
        assert (disk.lasts, disk.is_short) == (False, True)
        (text,) = shortage(room)
        assert f"room for {disk.saves_left} more saves of 4.0 MiB, but 17 are to come until step 2000" in text
        other = job._replace(id="other-aaaaaa")
        workspace.jobs.put(other)
        Rows(workspace, other).run(3, 1, stored_bytes=8 << 20)
        assert room_for(workspace, job).disks[0].saves_left == disk.saves_left // 3


def test_two_disks_last_differently(small_disk, workspace: Workspace, job: Job) -> None:
    plain = small_disk(8)
    root = workspace.home.checkpoints(job.id)
    root.parent.mkdir(parents=True)
    root.symlink_to(plain)
    Rows(workspace, job).run(2, 100, size=1 << 20, total_steps=2000)
    room = room_for(workspace, job)
    store, checkpoints = room.disks
    assert (store.holds, store.save_bytes, store.lasts) == (("store",), 400, True)
    assert (checkpoints.holds, checkpoints.save_bytes) == (("checkpoints",), 1 << 20)
    assert checkpoints.saves_left in (5, 6)
    assert checkpoints.lasts is False
    assert isinstance(room, Room)
    assert len(shortage(room)) == 1
