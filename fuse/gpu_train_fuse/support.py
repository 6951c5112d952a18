"""What this machine has for mounting: the kernel's device, libfuse, and the helper that ordinary users need."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from gpu_train_cas.errors import GpuTrainError

DEVICE = Path("/dev/fuse")
LIBRARIES = ("libfuse3.so.3", "libfuse3.so.4", "libfuse.so.2")
"""In the order of preference; libfuse 3 reads in requests of 1 MiB, libfuse 2 in 128 KiB."""

IN_CONTAINERS = f"`--device {DEVICE} --cap-add SYS_ADMIN`"
INSTEAD = (
    "or use what needs no mount: `gpu-train mount JOB --webdav` serves the same to WebDAV clients, "
    "`gpu-train checkpoints restore JOB@latest --dest DIR` makes plain files"
)


class MountUnavailable(GpuTrainError):
    """This machine cannot mount, or the mount did not come up; the message says what is missing."""


def find_library() -> str:
    """The name of the libfuse to load; raises MountUnavailable when there is none."""
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    raise MountUnavailable(
        f"libfuse is not installed, so nothing can be mounted; install it (`apt-get install fuse3`) {INSTEAD}"
    )


def find_unmounter() -> str | None:
    """The program that unmounts a FUSE file system for an ordinary user, or None."""
    return shutil.which("fusermount3") or shutil.which("fusermount")


def check(device: Path = DEVICE) -> None:
    """Raise MountUnavailable with what a person can do when this machine cannot mount."""
    if not device.exists():
        raise MountUnavailable(
            f"{device} is missing, so nothing can be mounted; load it (`modprobe fuse`), start the container "
            f"with {IN_CONTAINERS}, {INSTEAD}"
        )
    # As root the device may still be refused by the container's device list: only opening it tells.
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as e:
        is_root = os.geteuid() == 0
        step = f"start the container with {IN_CONTAINERS}" if is_root else f"have root run `chmod 666 {device}`"
        raise MountUnavailable(
            f"{device} cannot be opened ({e.strerror}), so nothing can be mounted; {step}, {INSTEAD}"
        ) from e
    find_library()
    if os.geteuid() != 0 and find_unmounter() is None:
        raise MountUnavailable(
            "fusermount3 is missing, and only root can mount without it; install it (`apt-get install fuse3`) "
            f"{INSTEAD}"
        )
