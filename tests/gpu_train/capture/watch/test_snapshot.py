"""Exact copies, or none: by copying here, by cloning on loop-mounted file systems where they can be made."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_train.capture.watch.sighting import Version, version_of
from gpu_train.capture.watch.snapshot import Changed, begins, can_clone, has_writers, is_still, take


def opened(path: Path) -> tuple[int, Version]:
    fd = os.open(path, os.O_RDONLY)
    return fd, version_of(os.fstat(fd))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(params=["xfs", "btrfs"])
def cloning(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small file system that can clone files."""
    make = shutil.which(f"mkfs.{request.param}")
    if make is None:
        pytest.skip(f"needs mkfs.{request.param}")
    image, point = tmp_path / "image", tmp_path / "point"
    point.mkdir()
    with open(image, "wb") as file:
        file.truncate(320 << 20)
    subprocess.run([make, "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, point], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a loop device")
    yield point
    subprocess.run(["umount", point], check=True)


def test_a_copy_has_the_bytes_mode_and_time(tmp_path: Path, folder: int) -> None:
    path = tmp_path / "ckpt.pt"
    path.write_bytes(os.urandom(20 << 20))
    path.chmod(0o640)
    os.utime(path, ns=(10**18, 10**18))
    fd, version = opened(path)
    take(fd, version[2], folder, b"copy")
    os.close(fd)
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    found = (tmp_path / "copy").stat()
    assert (found.st_mode & 0o777, found.st_mtime_ns) == (0o640, 10**18)


def test_a_file_that_changed_since_is_not_copied(tmp_path: Path, folder: int) -> None:
    path = tmp_path / "ckpt.pt"
    path.write_bytes(b"one")
    fd, version = opened(path)
    path.write_bytes(b"another")
    with pytest.raises(Changed):
        take(fd, version[2], folder, b"copy")
    assert is_still(fd, version) is False
    os.close(fd)
    assert not (tmp_path / "copy").exists()


def test_a_file_is_still_the_same_only_while_nobody_can_be_writing(tmp_path: Path, new_post: object) -> None:
    path = tmp_path / "ckpt.pt"
    path.write_bytes(b"one")
    fd, version = opened(path)
    assert (has_writers(fd), is_still(fd, version)) == (False, True)
    with open(path, "r+b"):
        assert has_writers(fd) is True
        assert is_still(fd, version) is None  # written just now: times tell nothing yet
    os.utime(path, ns=(10**18, 10**18))
    version = version_of(os.fstat(fd))
    with open(path, "r+b"):
        assert is_still(fd, version) is True  # a writer is there, but has not written since
    os.close(fd)


def test_a_time_that_is_set_later_changes_no_content(tmp_path: Path, new_post: object) -> None:
    path = tmp_path / "ckpt.pt"
    path.write_bytes(b"one")
    fd, version = opened(path)
    os.utime(path, ns=(10**18, 10**18))
    assert is_still(fd, version) is True
    with open(path, "r+b"):
        assert is_still(fd, version) is False
    os.close(fd)


def test_whether_a_file_goes_on_from_an_earlier_copy(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    start = bytes(200_000)
    old.write_bytes(start)
    for content, expected in ((start + b"more", True), (start, True), (start[:-1], False), (b"x" + start[1:], False)):
        new.write_bytes(content)
        assert begins(str(old), str(new)) is expected
    assert not begins(str(old), str(tmp_path / "nothing"))


def test_a_file_system_that_clones(cloning: Path) -> None:
    folder = os.open(cloning, os.O_RDONLY)
    assert can_clone(folder)
    path = cloning / "ckpt.pt"
    data = os.urandom(40 << 20)
    path.write_bytes(data)
    os.sync()
    before = os.statvfs(cloning).f_bfree
    fd, version = opened(path)
    take(fd, version[2], folder, b"clone")
    os.close(fd)
    os.sync()
    statvfs = os.statvfs(cloning)
    assert (before - statvfs.f_bfree) * statvfs.f_bsize < 4 << 20  # the bytes are shared
    path.write_bytes(b"next")
    assert (cloning / "clone").read_bytes() == data
    assert not list(cloning.glob(".probe*"))
    os.close(folder)
