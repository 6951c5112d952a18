"""Freeing room in a sink, with others that push meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpu_train import import_checkpoints
from gpu_train.sinks.push import push
from gpu_train.sinks.sweep import sweep, take_out


def readable(sink, run, names: set[str]) -> None:
    """All of these, and no others, can be read from the sink alone."""
    reader = sink.reader()
    assert {record.name for record in sink.records()} == names
    for record in sink.records():
        folder = next(folder for folder in run.folders if folder.name == record.name)
        root = reader.record(record.record).root
        entry = reader.lookup(root, b"model.safetensors")
        assert reader.open(entry).pread(entry.size_bytes, 0) == (folder / "model.safetensors").read_bytes()


def total(objects) -> int:
    return sum(found.size_bytes for found in objects.list())


def test_nothing_is_dead_while_all_is_needed(run, sink, objects) -> None:
    to = sink(run.workspace)
    push(run.workspace, to, run.checkpoints)
    before = total(objects)
    swept = sweep(run.workspace, to, grace_s=0)
    assert (swept.dead, swept.deleted, swept.alive) == (0, 0, 0)
    assert total(objects) == before
    readable(sink(run.workspace), run, {"checkpoint-100", "checkpoint-200", "checkpoint-300"})


def test_what_is_taken_out_goes_in_two_steps(run, sink, objects, layout: str) -> None:
    to = sink(run.workspace)
    for checkpoint in run.checkpoints:
        push(run.workspace, to, [checkpoint])
    full = total(objects)
    gone = [record for record in to.records() if record.name != "checkpoint-100"]
    files = take_out(run.workspace, to, gone)
    assert (files > 0) == (layout == "files")
    assert [bool(c.pushed) for c in run.again()] == [True, False, False]
    readable(to, run, {"checkpoint-100"})
    assert sweep(run.workspace, to, dry_run=True).dead > 0
    first = sweep(run.workspace, to)
    assert first.dead > 0
    assert first.deleted == 0
    waiting = sweep(run.workspace, to)
    assert waiting.waiting_bytes > 0
    assert waiting.deleted == 0
    second = sweep(run.workspace, to, grace_s=0)
    assert second.deleted >= first.dead
    assert total(objects) < 0.8 * full
    readable(to, run, {"checkpoint-100"})
    push(run.workspace, to, run.again())
    readable(to, run, {"checkpoint-100", "checkpoint-200", "checkpoint-300"})


def test_a_delta_keeps_what_it_is_taken_against(run, sink, layout: str) -> None:
    to = sink(run.workspace)
    for checkpoint in run.checkpoints:
        push(run.workspace, to, [checkpoint])
    take_out(run.workspace, to, [record for record in to.records() if record.name != "checkpoint-300"])
    sweep(run.workspace, to, grace_s=0)
    sweep(run.workspace, to, grace_s=0)
    readable(to, run, {"checkpoint-300"})


def test_a_push_that_relied_on_a_dead_pack_keeps_it_alive(run, other, sink, objects, layout, tmp_path: Path) -> None:
    if layout != "packs":
        pytest.skip("plain files rely on no pack")
    to = sink(run.workspace)
    push(run.workspace, to, run.checkpoints)
    there = sink(other)
    there.sync()
    for folder in run.folders:
        import_checkpoints(other, folder, "mine")
    # The other home knows what the sink holds; while it pushes, this one takes all out and tells it dead.
    real = there.sync
    there.sync = lambda: None  # type: ignore[method-assign]
    take_out(run.workspace, to, to.records())
    assert sweep(run.workspace, to).dead > 0
    push(other, there, other.checkpoints.list())
    there.sync = real  # type: ignore[method-assign]
    saved = sweep(run.workspace, to, grace_s=0)
    assert saved.alive > 0
    readable(to, run, {"checkpoint-100", "checkpoint-200", "checkpoint-300"})


def test_a_pack_of_which_little_is_needed_is_replaced(run, sink, objects, layout: str) -> None:
    if layout != "packs":
        pytest.skip("there is little in the packs of this layout")
    to = sink(run.workspace)
    push(run.workspace, to, run.checkpoints)  # all in one pack
    take_out(run.workspace, to, [record for record in to.records() if record.name != "checkpoint-100"])
    before = total(objects)
    swept = sweep(run.workspace, to, grace_s=0)
    if swept.moved_bytes:
        sweep(run.workspace, to, grace_s=0)
        assert total(objects) < before
    readable(to, run, {"checkpoint-100"})
    shutil.rmtree(run.workspace.home.cache, ignore_errors=True)
