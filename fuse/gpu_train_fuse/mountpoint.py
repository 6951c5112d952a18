"""Where one may mount: the checks, in one place, that keep a mount from hiding or damaging something."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_train_cas.errors import Busy, DestinationExists, UsageError, mapped_os_errors
from gpu_train_fuse import table
from gpu_train_fuse.table import State
from gpu_train_fuse.unmount import unmount

POLL_S = 0.02


def prepare(path: Path, home: Path, mounts_dir: Path, *, nonempty: bool = False) -> Path:
    """Make `path` a directory that can be mounted on, and return it without links in it.

    A stale mount that lies there is cleaned away first.

    Raises:
        UsageError: for a link, a file, the home, a folder above it, or one in it outside of `mounts_dir`.
        DestinationExists: for a directory with something in it, unless `nonempty`.
        Busy: when something live is mounted there already.
    """
    path = _resolved(path)
    _check_place(path, home.resolve(), mounts_dir.resolve())
    _clean(path)
    if path.is_symlink():
        raise UsageError(f"{path} is a symbolic link; give the folder that it points to, or another one")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is not a folder; give a folder to mount on, it is made when it is not there")
    with mapped_os_errors(f"making the mount point {path}"):
        path.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(path):
        raise Busy(f"{path} has something mounted on it; give another folder, or unmount it first")
    if not nonempty and any(path.iterdir()):
        raise DestinationExists(
            f"{path} is not empty, and a mount would hide what is in it; give another folder or `--nonempty`"
        )
    return path


@contextmanager
def alone(path: Path, timeout_s: float) -> Iterator[None]:
    """Be the only one, of all homes, that mounts in the folder that holds `path`: two at one point would stack.

    The lock is on that folder itself, so that it needs no file; where it cannot be locked there is none.

    Raises:
        Busy: when another mount there is not through after `timeout_s` seconds.
    """
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + timeout_s
        while not _locked(fd):
            if time.monotonic() > deadline:
                raise Busy(f"another mount in {path.parent} has been on its way for {timeout_s:.0f} s; try again")
            time.sleep(POLL_S)
        yield
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    """Whether it is ours now, or cannot be anybody's."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        return e.errno != errno.EWOULDBLOCK
    return True


def _resolved(path: Path) -> Path:
    """Without links in its parents. Never looks at the last part: that may be a stale mount, or a link."""
    path = path.expanduser().absolute()
    return path.parent.resolve() / path.name if path.name not in ("", "..") else path.resolve()


def _check_place(path: Path, home: Path, mounts_dir: Path) -> None:
    if path == home or path in home.parents:
        raise UsageError(f"{path} holds the home {home}, which a mount there would hide; give another folder")
    if home in path.parents and mounts_dir not in path.parents:
        raise UsageError(f"{path} lies in the home {home}, where only {mounts_dir} takes mounts; give another folder")


def _clean(path: Path) -> None:
    """Take stale mounts of ours away; several may lie on top of each other."""
    for at, target in reversed(table.paths()):
        if at == path:
            found = table.look(at, target)
            if found.state is State.STALE:
                unmount(at, lazy=True)
            elif found.state is State.SILENT:
                raise Busy(f"{path} is mounted but does not answer; `gpu-train umount --lazy {path}` takes it away")
            else:
                raise Busy(f"{path} already shows {target}; `gpu-train umount {path}` takes it away")
