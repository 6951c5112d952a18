"""What pins cost: only what no other name holds, whichever of our folders it is in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_train.capture.candidate import ABOUT, FILES
from gpu_train.capture.pins import Holdings, bound_bytes
from gpu_train.capture.watch.hold import CAUGHT
from gpu_train.size import AUTO, Size

BLOCK = 1 << 16


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the pins of two checkpoints, whose files `a` and `b` the trainer has, each of one block."""
    place = tmp_path / "pins"
    for pin, name in (("1", "a"), ("2", "b")):
        (tmp_path / name).write_bytes(os.urandom(BLOCK))
        (place / pin / FILES).mkdir(parents=True)
        (place / pin / ABOUT).write_text("{}")
        os.link(tmp_path / name, place / pin / FILES / name)
    (place / CAUGHT).mkdir()
    return place


def test_what_the_trainer_has_costs_nothing(place: Path) -> None:
    holdings = Holdings([place, place.with_name("not there")])
    assert (holdings.use.files, holdings.use.held_bytes) == (2, 0)


def test_what_the_trainer_deleted_costs_its_size_once(place: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "a", place / CAUGHT / "1-1~a")
    (tmp_path / "a").unlink()
    holdings = Holdings([place])
    assert (holdings.use.files, holdings.use.held_bytes) == (2, BLOCK)
    assert (holdings.held_by(place / "1"), holdings.held_by(place / "2")) == (BLOCK, 0)
    device = place.stat().st_dev
    assert (holdings.held_bytes(device), holdings.held_by(place / "1", device + 1)) == (BLOCK, 0)


def test_a_copy_costs_its_size_while_the_file_is_there(place: Path) -> None:
    (place / "2" / FILES / "copy").write_bytes(os.urandom(BLOCK))
    assert Holdings([place]).held_by(place / "2") == BLOCK


def test_the_bound(place: Path, tmp_path: Path) -> None:
    (tmp_path / "a").unlink()
    holdings = Holdings([place])
    assert bound_bytes(Size("3 MB"), holdings, [place], 10**18) == 3_000_000
    disk = os.statvfs(place)
    free = disk.f_bavail * disk.f_frsize
    assert bound_bytes(AUTO, holdings, [place], 0) == pytest.approx((free + BLOCK) / 2, rel=0.2)
    assert bound_bytes(AUTO, holdings, [place], 10**18) == 10**18
