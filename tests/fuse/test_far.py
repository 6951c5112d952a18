"""A real mount of blocks that lie in a place that is slow to answer, or does not answer at all."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import gpu_train_fuse
from gpu_train_cas.errors import GpuTrainError
from gpu_train_fuse.unmount import unmount

CHILD = Path(__file__).with_name("far_child.py")


class FarMount(NamedTuple):
    """A mount whose packs are in `folder`, what is stored, and how to set the weather there."""

    path: Path
    stored: Path
    weather: Callable[[str], object]


@pytest.fixture
def far(lab, tmp_path) -> Iterator[FarMount]:
    try:
        gpu_train_fuse.check()
    except gpu_train_fuse.MountUnavailable as e:
        pytest.skip(str(e))
    stored = lab.folder("c", {f"{i}.bin": os.urandom(3_000_000) for i in range(4)})
    job = lab.job("far")
    lab.checkpoint(job, "checkpoint-1", stored)
    folder, point = tmp_path / "far", tmp_path / "m"
    folder.mkdir()
    point.mkdir()
    for pack in lab.workspace.store.folders.packs.glob("??/*.pack"):
        pack.rename(folder / pack.name)
    weather = (folder / "weather").write_text
    weather("fine")
    process = subprocess.Popen(
        [sys.executable, CHILD, lab.workspace.home.root, job.id, folder, point], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield FarMount(point / "checkpoints" / "checkpoint-1", stored, weather)
    finally:
        weather("fine")
        with suppress(GpuTrainError):
            unmount(point, lazy=True)
        process.kill()
        process.communicate()


def test_files_come_from_far_away(far, same_tree):
    same_tree(far.path, far.stored)


def test_what_does_not_answer_is_eio_for_every_reader_and_passes(far):
    first = (far.path / "0.bin").read_bytes()
    assert first == (far.stored / "0.bin").read_bytes()
    for weather in ("silent", "broken"):
        far.weather(weather)
        assert (far.path / "0.bin").read_bytes() == first, "what is in the cache can be read"

        def fails(name):
            with pytest.raises(OSError) as caught:
                (far.path / name).read_bytes()
            return caught.value.errno

        name = {"silent": "1.bin", "broken": "2.bin"}[weather]
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(fails, [name] * 4, timeout=100)) == {errno.EIO}
    far.weather("fine")
    for name in ("1.bin", "2.bin", "3.bin"):
        assert read_soon(far.path / name) == (far.stored / name).read_bytes()


def read_soon(path):
    """What a file holds, once the place has had its rest."""
    for _ in range(400):
        try:
            return path.read_bytes()
        except OSError as e:
            assert e.errno == errno.EIO
            time.sleep(0.05)
    return pytest.fail(f"{path} cannot be read")
