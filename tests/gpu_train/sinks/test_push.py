"""Checkpoints go to a sink and come back, in both layouts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_train.sinks.journal import Entry, SentRecord
from gpu_train.sinks.key import pack_key
from gpu_train.sinks.pull import pull
from gpu_train.sinks.push import push
from gpu_train.workspace import Workspace
from gpu_train_cas import EntryKind
from gpu_train_cas.errors import Damaged, NotFound
from gpu_train_cas.reader import Reader


def same(one: Path, other: Path) -> None:
    """Two folders are the same: names, bytes, links, modes and times."""
    done = subprocess.run(["rsync", "-aicn", "--delete", f"{one}/", f"{other}/"], capture_output=True, check=True)
    assert done.stdout == b""


def restored(workspace, checkpoint, dest: Path) -> Path:
    workspace.store.restore(workspace.store.record(checkpoint.record).root, dest)
    return dest


def test_rows_say_where_they_are(run, sink) -> None:
    to = sink(run.workspace)
    pushed = push(run.workspace, to, run.checkpoints)
    assert [c.name for c in pushed.checkpoints] == ["checkpoint-100", "checkpoint-200", "checkpoint-300"]
    assert not pushed.skipped
    assert pushed.plain_bytes == sum(c.size_bytes for c in run.checkpoints)
    assert all(list(c.pushed) == [to.setting.address] for c in run.again())
    assert [(r.name, r.step) for r in to.records()] == [(f"checkpoint-{s}", s) for s in (100, 200, 300)]


def test_another_home_gets_them_back(run, other, sink, tmp_path: Path) -> None:
    push(run.workspace, sink(run.workspace), run.checkpoints)
    there = sink(other)
    there.sync()
    pulled = pull(other, there, there.records())
    assert [c.name for c in pulled.new] == ["checkpoint-100", "checkpoint-200", "checkpoint-300"]
    for checkpoint, folder in zip(pulled.checkpoints, run.folders, strict=True):
        same(restored(other, checkpoint, tmp_path / "back" / checkpoint.name), folder)
    assert not other.store.verify().damaged
    (job,) = other.jobs.list()
    assert (job.id, job.name) == (run.checkpoints[0].job_id, "run")
    latest = other.checkpoints.latest(job.id)
    assert latest is not None
    assert (latest.name, latest.step, latest.proof) == ("checkpoint-300", 300, run.checkpoints[-1].proof)


def test_pulling_again_brings_nothing(run, other, sink) -> None:
    push(run.workspace, sink(run.workspace), run.checkpoints)
    there = sink(other)
    there.sync()
    pull(other, there, there.records())
    again = pull(other, there, there.records())
    assert not again.new
    assert len(other.checkpoints.list()) == 3


def test_the_sink_alone_is_enough_to_read(run, other, sink) -> None:
    push(run.workspace, sink(run.workspace), run.checkpoints)
    there = sink(other)
    there.sync()
    reader = there.reader()
    for sent, folder in zip(there.records(), run.folders, strict=True):
        root = reader.record(sent.record).root
        entry = reader.lookup(root, b"model.safetensors")
        assert reader.open(entry).pread(entry.size_bytes, 0) == (folder / "model.safetensors").read_bytes()


def test_a_home_reads_on_when_its_packs_are_gone(run, sink, tmp_path: Path) -> None:
    to = sink(run.workspace)
    push(run.workspace, to, run.checkpoints)
    shutil.rmtree(run.workspace.home.packs)
    run.workspace.store.packs.close()
    reader = Reader([run.workspace.store.packs, to.blocks])
    for checkpoint, folder in zip(run.checkpoints, run.folders, strict=True):
        root = reader.record(checkpoint.record).root
        for path, entry in reader.walk(root):
            if entry.kind is EntryKind.FILE:
                assert reader.open(entry).pread(entry.size_bytes, 0) == (folder / os.fsdecode(path)).read_bytes()


def test_the_second_push_sends_what_is_new(run, sink, layout: str) -> None:
    to = sink(run.workspace)
    first = push(run.workspace, to, run.checkpoints[:1])
    second = push(run.workspace, to, run.checkpoints[1:2])
    third = push(run.workspace, to, run.checkpoints[1:2])
    if layout == "packs":
        assert second.sent_bytes < 0.9 * first.sent_bytes
        assert third.sent_bytes < 5_000
    else:
        assert second.sent_bytes >= run.checkpoints[1].size_bytes
    assert third.checkpoints


def test_plain_files_are_what_they_were(run, sink, layout: str, objects) -> None:
    if layout != "files":
        pytest.skip("this layout has none")
    push(run.workspace, sink(run.workspace), run.checkpoints)
    job = run.checkpoints[0].job_id
    for folder in run.folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and path.parent.name != "sub":
                key = f"{job}/checkpoints/{folder.name}/{path.relative_to(folder)}"
                assert objects.read(key, 1 << 30) == path.read_bytes()
        assert objects.read(f"{job}/checkpoints/{folder.name}/sub/no %FF utf-8 %2541 %01", 100) == b"strange"


def test_two_homes_share_what_both_have(run, other, sink, layout: str) -> None:
    if layout != "packs":
        pytest.skip("plain files are sent by each")
    push(run.workspace, sink(run.workspace), run.checkpoints)
    there = sink(other)
    there.sync()
    pull(other, there, there.records())
    with other.store.transaction() as txn:
        for row in other.checkpoints.list():
            other.checkpoints.put_in(txn, row._replace(pushed={}))
    again = push(other, there, other.checkpoints.list())
    assert len(again.checkpoints) == 3
    assert again.sent_bytes < 10_000
    mine = sink(run.workspace)
    mine.sync()
    assert len(mine.records()) == 3


def test_a_copy_of_a_home_that_writes_at_the_same_time_gets_a_name_of_its_own(run, sink, objects, tmp_path) -> None:
    push(run.workspace, sink(run.workspace), run.checkpoints[:1])
    shutil.copytree(run.workspace.home.root, tmp_path / "copy")
    with Workspace.open(tmp_path / "copy", cwd=tmp_path) as copy:
        late = sink(copy)
        late.sync()
        push(run.workspace, sink(run.workspace), run.checkpoints[1:2])
        late.tell(Entry(), {})
        assert len(list(objects.list("store/homes/"))) == 2
        push(copy, late, run.checkpoints[2:])
    mine = sink(run.workspace)
    mine.sync()
    assert {r.name for r in mine.records()} == {"checkpoint-100", "checkpoint-200", "checkpoint-300"}


def test_what_changed_meanwhile_is_not_noted(run, sink) -> None:
    to = sink(run.workspace)
    old = run.checkpoints[0]
    with run.workspace.store.transaction() as txn:
        run.workspace.checkpoints.remove_in(txn, run.checkpoints[1], 1, "test")
        run.workspace.checkpoints.put_in(txn, old._replace(record=run.checkpoints[2].record))
    pushed = push(run.workspace, to, run.checkpoints)
    assert [c.name for c in pushed.skipped] == ["checkpoint-100", "checkpoint-200"]
    assert [c.pushed != {} for c in run.again()] == [False, True]


def test_records_go_over_the_wire_as_they_are(run, sink) -> None:
    to = sink(run.workspace)
    push(run.workspace, to, run.checkpoints)
    for record in to.records():
        assert SentRecord.from_wire(record.to_wire()) == record


def test_what_is_damaged_in_a_sink_does_not_hide_the_rest(run, other, sink, objects) -> None:
    to = sink(run.workspace)
    for checkpoint in run.checkpoints:
        push(run.workspace, to, [checkpoint])
    (first, *_) = [pack for entry in to.history() for pack in entry.packs]
    objects.delete([pack_key(first.name)])
    there = sink(other)
    there.sync()
    assert len(there.records()) == 3
    good = 0
    for record in there.records():
        try:
            pulled = pull(other, there, [record])
        except (Damaged, NotFound):
            continue
        assert not other.store.verify(records=[pulled.checkpoints[0].record]).damaged
        good += 1
    assert good < 3
    push(run.workspace, to, run.checkpoints)
