"""Folders that are saved again: a version is lost when its sign stood and something was written over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_train.capture.candidate import Candidate
from gpu_train.capture.finder import Found, find_one
from gpu_train.capture.frameworks import KNOWN
from gpu_train.capture.resaved import Resaved
from gpu_train.capture.watch import sighting
from gpu_train.capture.watch.sighting import Sighting, version_of
from gpu_train.capture.watch.view import View


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    return folder


@pytest.fixture
def resaved(folder: Path) -> Resaved:
    def at(path: str, *, again: bool) -> tuple[str, Candidate]:
        found = find_one(str(folder))
        assert isinstance(found, Found)
        candidate = Candidate(found, folder.with_name("pin"), 0.0, 0, View(folder.parent))
        candidate.members = dict(found.members or {})
        return str(folder), candidate

    return Resaved(KNOWN, at)


def write(path: Path) -> None:
    path.write_bytes(b"x" * 100)


def closed(resaved: Resaved, path: Path, at: float) -> None:
    seen = Sighting(sighting.CLOSED, at=at, name=path.name, version=version_of(path.stat()))
    resaved.hear(seen, str(path))


def lies_there(resaved: Resaved, path: Path, at: float) -> None:
    resaved.hear(Sighting(sighting.FILE, at=at, name=path.name, hold=str(path)), str(path))


def test_a_save_over_another_is_told(resaved: Resaved, folder: Path) -> None:
    model, state = folder / "model.safetensors", folder / "trainer_state.json"
    for at in (1.0, 2.0, 3.0):
        for path in (model, state):
            write(path)
            closed(resaved, path, at)
    assert [(lost.name, lost.lifetime_s) for lost in resaved.lost()] == [("checkpoint-1", 1.0)] * 2
    assert resaved.lost() == []


def test_events_of_what_lay_there_already_are_no_second_save(resaved: Resaved, folder: Path) -> None:
    model, state = folder / "model.safetensors", folder / "trainer_state.json"
    write(model)
    write(state)
    lies_there(resaved, model, 1.0)  # the folder is come upon when both are there; their closings follow
    lies_there(resaved, state, 1.0)
    closed(resaved, model, 1.0)
    closed(resaved, state, 1.0)
    assert resaved.lost() == []
    write(model)
    closed(resaved, model, 2.0)
    write(state)
    closed(resaved, state, 2.0)
    assert [lost.name for lost in resaved.lost()] == ["checkpoint-1"]


def test_what_lay_there_and_was_saved_again_is_told(resaved: Resaved, folder: Path) -> None:
    model, state = folder / "model.safetensors", folder / "trainer_state.json"
    write(model)
    write(state)
    lies_there(resaved, model, 1.0)
    lies_there(resaved, state, 1.0)
    for path in (model, state):
        write(path)
        closed(resaved, path, 2.0)
    assert [lost.name for lost in resaved.lost()] == ["checkpoint-1"]
