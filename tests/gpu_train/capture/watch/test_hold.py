"""Holding files: by links on their own mount, by keeping them open where there are none."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_train.capture.watch import sighting
from gpu_train.capture.watch.hold import CAUGHT, HIDDEN, caught_in


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """Another file system, mounted below what will be a post's checkpoint folder."""
    point = tmp_path / "other"
    point.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", point], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield point
    subprocess.run(["umount", "-l", point], check=True)


def bind(point: Path, at: Path) -> None:
    at.mkdir()
    subprocess.run(["mount", "--bind", point, at], check=True)


def test_a_folder_on_another_file_system_has_its_pins_there(post, mounted: Path) -> None:
    at = post.root / "scratch"
    bind(mounted, at)
    try:
        post.look()
        (at / "ckpt-1.pt").write_bytes(b"weights")
        told = post.look()
        (at / "ckpt-1.pt").unlink()
        hold = Path(next(seen.hold for seen in told if seen.kind == sighting.FILE))
        assert hold.read_bytes() == b"weights"
        assert hold.parent == at / f"{HIDDEN}job-1" / CAUGHT
        assert post.look()[0].kind == sighting.DELETED
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def test_where_no_link_can_be_made_files_are_kept_open_and_copied(new_post, tmp_path: Path) -> None:
    """The home's own folder for pins is there, but the checkpoints lie on a read-only look at another mount."""
    source = tmp_path / "source"
    source.mkdir()
    post = new_post(tmp_path / "home")
    at = post.root / "scratch"
    try:
        bind(source, at)
        subprocess.run(["mount", "-o", "remount,ro,bind", at], check=True)
    except (subprocess.CalledProcessError, OSError):
        pytest.skip("needs the right to mount")
    try:
        post.look()
        (source / "step-1.ckpt").write_bytes(b"weights")
        told = post.look()
        (source / "step-1.ckpt").unlink()
        (file,) = [seen for seen in told if seen.kind == sighting.FILE]
        assert file.hold == f"/proc/{os.getpid()}/fd/{file.hold.rpartition('/')[2]}"
        assert Path(file.hold).read_bytes() == b"weights"
        kept = post.copies()[-1]
        assert Path(kept.hold).parent == post.pins / CAUGHT
        assert Path(kept.hold).read_bytes() == b"weights"
        post.sentry.holder.let_go(file.hold.replace(str(os.getpid()), "1"))  # of one that is dead
        assert Path(file.hold).read_bytes() == b"weights"
        post.sentry.holder.let_go(file.hold)
        assert not os.path.exists(file.hold)
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def test_what_a_dead_sentry_has_left_is_found_by_the_name_that_it_had(post) -> None:
    odd = os.fsdecode(b"a%2F\xfe~")
    (post.root / odd).mkdir()
    for name in ("gone.pt", "here.pt"):
        (post.root / odd / name).write_bytes(b"weights")
    post.look()
    (post.root / odd / "gone.pt").unlink()
    ((name, hold),) = caught_in(post.pins / CAUGHT, time.time_ns())
    assert (name, hold.read_bytes()) == (f"{odd}/gone.pt", b"weights")
    assert list((post.pins / CAUGHT).iterdir()) == [hold]
    assert list(caught_in(post.pins / CAUGHT, 0)) == []  # of a sentry that began later and lives
    assert list(caught_in(post.pins / CAUGHT, time.time_ns(), {str(hold)})) == []


def test_the_draft_of_a_copy_is_nothing_to_take_over(post) -> None:
    (post.pins / CAUGHT / f".{os.fsdecode(post.sentry.holder.next_name(b'ckpt.pt'))}").write_bytes(b"half of the we")
    assert list(caught_in(post.pins / CAUGHT, time.time_ns())) == []
    assert list((post.pins / CAUGHT).iterdir()) == []
