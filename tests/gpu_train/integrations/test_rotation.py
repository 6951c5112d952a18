"""When removals happen, for saves that end late, out of order, badly or never."""

from __future__ import annotations

import pickle

import pytest

from gpu_train.integrations.rotation import Rotation


@pytest.fixture
def removed() -> list[str]:
    return []


def ask(rotation: Rotation, removed: list[str], path: str) -> None:
    rotation.remove(path, lambda: removed.append(path))


def test_without_a_save_under_way_it_is_removed_at_once(removed: list[str]) -> None:
    rotation = Rotation()
    ask(rotation, removed, "of an earlier run")
    rotation.begin("a")
    rotation.end("a", saved=True)
    ask(rotation, removed, "a")
    assert removed == ["of an earlier run", "a"]


def test_it_waits_for_the_last_save_asked_for(removed: list[str]) -> None:
    rotation = Rotation()
    for path in ("a", "b", "c"):
        rotation.begin(path)
    ask(rotation, removed, "old")
    rotation.end("a", saved=True)
    rotation.end("b", saved=True)
    assert removed == []
    rotation.end("c", saved=True)
    assert removed == ["old"]


def test_a_failed_save_costs_no_older_checkpoint(removed: list[str]) -> None:
    rotation = Rotation()
    rotation.begin("a")
    ask(rotation, removed, "old")
    rotation.end("a", saved=False)
    assert removed == []
    rotation.begin("b")
    ask(rotation, removed, "a")
    rotation.end("b", saved=True)
    assert removed == ["old", "a"]


def test_a_save_that_never_begins_holds_nothing_up_for_long(removed: list[str]) -> None:
    rotation = Rotation()
    rotation.begin("lost in a queue")
    ask(rotation, removed, "old")
    rotation.begin("b")
    rotation.end("b", saved=True)
    assert removed == ["old"]


def test_a_save_of_the_same_path_voids_a_removal(removed: list[str]) -> None:
    rotation = Rotation()
    rotation.begin("a")
    ask(rotation, removed, "last")
    rotation.begin("last")
    rotation.end("a", saved=True)
    rotation.end("last", saved=True)
    assert removed == []


def test_a_checkpoint_that_is_removed_while_it_is_saved_goes_when_it_is_there(removed: list[str]) -> None:
    rotation = Rotation()
    rotation.begin("a")
    ask(rotation, removed, "a")
    assert removed == []
    rotation.end("a", saved=True)
    assert removed == ["a"]


def test_a_copy_begins_anew(removed: list[str]) -> None:
    rotation = Rotation()
    rotation.begin("a")
    copy = pickle.loads(pickle.dumps(rotation))
    ask(copy, removed, "old")
    assert removed == ["old"]
