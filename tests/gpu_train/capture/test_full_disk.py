"""A home on a disk that is full for a while: nothing is lost, and the training never notices."""

from __future__ import annotations

import os

from gpu_train import Workspace


def test_the_last_capture_waits_for_room(launch, small_disk, fill) -> None:
    disk = small_disk(24)
    launch.env |= {"GPU_TRAIN_HOME": str(disk / "home"), "GPU_TRAIN_CAPTURE_RETRY_S": "0.2"}
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
    fill(disk / "ballast")
    (launch.cwd / "filled").touch()
    assert run.process.stdout.readline() == b"ended\n"
    assert b"NOTICE storing is paused: the disk with %s" % os.fsencode(disk / "home") in run.process.stderr.readline()
    said = run.process.stderr.readline()
    assert b"the last capture is still running: the disk with %s is full" % os.fsencode(disk / "home") in said
    assert run.process.poll() is None
    (disk / "ballast").unlink()
    assert run.finish()[0] == 0
    with Workspace.open(disk / "home") as workspace:
        assert [(c.name, c.state) for c in workspace.checkpoints.list()] == [("w-0001.safetensors", "verified")]
        (job,) = workspace.jobs.list()
    assert (job.status, job.exit_code) == ("finished", 0)
