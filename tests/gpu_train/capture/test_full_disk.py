"""A home on a disk that is full for a while: nothing is lost, and the training never notices."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_train import Workspace


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", point], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield point
    subprocess.run(["umount", "-l", point], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(os.urandom(size))
            except OSError:
                continue


def test_the_last_capture_waits_for_room(launch, small_disk: Path) -> None:
    launch.env |= {"GPU_TRAIN_HOME": str(small_disk / "home"), "GPU_TRAIN_CAPTURE_RETRY_S": "0.2"}
    run = launch.script("""
        import gpu_train
        from writing import safetensors, wait_for_file
        path = gpu_train.checkpoint_dir() / "w-0001.tmp"
        path.write_bytes(safetensors(1, 1 << 20))
        print("written")
        wait_for_file("filled")
        path.rename(path.with_suffix(".safetensors"))
        print("ended")
    """)
    assert run.process.stdout.readline() == b"written\n"
    fill(small_disk / "ballast")
    (launch.cwd / "filled").touch()
    assert run.process.stdout.readline() == b"ended\n"
    said = run.process.stderr.readline()
    assert b"the last capture is still running: the disk with %s is full" % os.fsencode(small_disk / "home") in said
    assert run.process.poll() is None
    (small_disk / "ballast").unlink()
    assert run.finish()[0] == 0
    with Workspace.open(small_disk / "home") as workspace:
        assert [(c.name, c.state) for c in workspace.checkpoints.list()] == [("w-0001.safetensors", "verified")]
        (job,) = workspace.jobs.list()
    assert (job.status, job.exit_code) == ("finished", 0)
