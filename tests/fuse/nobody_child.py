"""What a user without any rights does with a mount, from importing to cleaning up; run by test_users.py."""

import os
import signal
import sys
import time
from pathlib import Path

import gpu_train
import gpu_train_fuse
from gpu_train.importer import import_checkpoints
from gpu_train_fuse import MountUnavailable, State


def kill(path, workspace):
    pid = int(os.getxattr(path, "user.gpu_train.pid"))
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (found := gpu_train_fuse.find(str(path), workspace.home.root)[0]).state is not State.STALE:
        assert time.monotonic() < deadline, f"{found} did not become stale"
        time.sleep(0.01)


def main(own):
    assert os.getuid() != 0
    data = os.urandom(3_000_000)
    source = own / "run" / "checkpoint-1"
    source.mkdir(parents=True)
    (source / "model.bin").write_bytes(data)
    (source / "model.bin").chmod(0o640)
    with gpu_train.Workspace.open(own / "home") as workspace:
        import_checkpoints(workspace, own / "run", "run")
        mounts = workspace.home.mounts
        path = gpu_train_fuse.mount(workspace, "run").path
        file = path / "latest" / "model.bin"
        assert file.read_bytes() == data
        status = file.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (os.getuid(), os.getgid(), 0o640)

        kill(path, workspace)
        assert gpu_train_fuse.mount(workspace, "run").path == path
        assert file.read_bytes() == data
        gpu_train_fuse.umount(gpu_train_fuse.find(str(path), workspace.home.root)[0], mounts)
        assert not path.exists()

        kill(gpu_train_fuse.mount(workspace, "run", own / "there").path, workspace)
        done, failed = gpu_train_fuse.umount_stale(mounts, within=own)
        assert ([m.path for m in done], failed) == ([own / "there"], [])
        if "user_allow_other" not in Path("/etc/fuse.conf").read_text().split():
            try:
                gpu_train_fuse.mount(workspace, "run", own / "there", allow_other=True)
            except MountUnavailable as e:
                assert "user_allow_other" in str(e), e
            else:
                raise AssertionError("others were let in although /etc/fuse.conf does not allow it")


if __name__ == "__main__":
    here = Path(sys.argv[1])
    try:
        main(here)
    finally:
        for mounted in gpu_train_fuse.mounts():
            if here in mounted.path.parents:
                gpu_train_fuse.umount(mounted, lazy=True)
