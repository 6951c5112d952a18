"""What a later content under a name does to the checkpoint that is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_train.capture.finder import find_one
from gpu_train.capture.storing import Finished, History, Stored, store_checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.digest import Digest

JOB = "train-aaaaaa"


@pytest.fixture(autouse=True)
def _job(workspace: Workspace) -> None:
    workspace.jobs.put(Job(JOB, "train", created_ns=1))


def finished(folder: Path, **fields: object) -> Finished:
    found = find_one(folder)
    assert found is not None and found.members is not None
    made = Finished(JOB, folder.name, Path(found.base), found.shape, found.members, "hf-trainer")
    return made._replace(**fields)  # type: ignore[arg-type]


def store(workspace: Workspace, what: Finished) -> Stored:
    return store_checkpoint(workspace, what, History(workspace, JOB))


def write(folder: Path, name: str, data: bytes = b"data", at_ns: int = 10**18) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    os.utime(folder / name, ns=(at_ns, at_ns))
    return folder / name


def is_trashed(workspace: Workspace, record: Digest | None) -> bool:
    assert record is not None
    with workspace.store.registry.read() as txn:
        row = workspace.store.registry.table("records").get(txn, record)
    return row is not None and row["trashed_ns"] is not None


def names(workspace: Workspace, record: Digest | None) -> set[str]:
    assert record is not None
    root = workspace.store.record(record).root
    return {os.fsdecode(path) for path, _ in workspace.store.reader.walk(root) if path}


def test_late_files_complete_it(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    write(folder, "rng_state_0.pth", b"0" * 5000)
    before = finished(folder)
    first = store(workspace, before).checkpoint
    other = store(workspace, finished(write(tmp_path / "checkpoint-6", "w").parent)).checkpoint
    write(folder, "rng_state_1.pth", b"1", at_ns=10**17)  # its time tells nothing
    stored = store(workspace, finished(folder, earlier=before.members))
    assert (stored.is_new, stored.late_files) == (False, 1)
    (row,) = [c for c in workspace.checkpoints.list(JOB) if c.base_name == "checkpoint-5"]
    assert row == stored.checkpoint
    assert (row.seq, row.name, row.committed_ns) == (first.seq, first.name, first.committed_ns)
    assert (row.files, row.size_bytes) == (2, 5001)
    assert names(workspace, row.record) == {"rng_state_0.pth", "rng_state_1.pth"}
    assert is_trashed(workspace, first.record)
    assert not is_trashed(workspace, row.record)
    assert workspace.checkpoints.latest(JOB) == other
    again = store(workspace, finished(folder))
    assert (again.is_new, again.late_files) == (False, 0)


def test_after_a_restart_the_times_tell(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    write(folder, "trainer_state.json", b"{}", at_ns=2 * 10**18)
    write(folder, "w.bin", at_ns=10**18)
    store(workspace, finished(folder))
    write(folder, "late.bin", at_ns=3 * 10**18)
    assert store(workspace, finished(folder)).late_files == 1
    assert [c.name for c in workspace.checkpoints.list(JOB)] == ["checkpoint-5"]


def test_what_was_incomplete_becomes_whole(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    write(folder, "w.bin")
    before = finished(folder, state="incomplete", proof="trainer_state.json (hf-trainer)")
    store(workspace, before)
    write(folder, "trainer_state.json", b"{}")
    row = store(workspace, finished(folder, earlier=before.members)).checkpoint
    assert (row.name, row.state, row.proof) == ("checkpoint-5", "verified", "hf-trainer")


@pytest.mark.parametrize("case", ["changed", "incomplete", "other step", "said twice", "removed"])
def test_what_makes_a_version_of_its_own(workspace: Workspace, tmp_path: Path, case: str) -> None:
    folder = tmp_path / "state"
    write(folder, "w.bin")
    proof = "explicit" if case == "said twice" else "files"
    before = finished(folder, step=5, proof=proof)
    first = store(workspace, before).checkpoint
    write(folder, "more.bin", at_ns=3 * 10**18)
    after = finished(folder, step=5, proof=proof, earlier=before.members)
    if case == "changed":
        write(folder, "w.bin", b"other")
        after = finished(folder, step=5, proof=proof)
    elif case == "incomplete":
        after = after._replace(state="incomplete", proof="the rest of more.bin")
    elif case == "other step":
        after = after._replace(step=6)
    elif case == "removed":
        with workspace.store.transaction() as txn:
            workspace.checkpoints.remove_in(txn, first, 7, "a test", "")
    stored = store(workspace, after)
    assert (stored.is_new, stored.checkpoint.name, stored.late_files) == (True, "state~2", 0)
    assert names(workspace, first.record) == {"w.bin"}
