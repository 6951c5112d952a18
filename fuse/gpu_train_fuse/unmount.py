"""Taking a mount away, and waiting until the process behind it has let go of the home."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from gpu_train_cas.errors import Busy, GpuTrainError, NotFound
from gpu_train_fuse import table
from gpu_train_fuse.support import MountUnavailable, find_unmounter
from gpu_train_fuse.table import Mount, State

GONE_WITHIN_S = 10.0
PASSING_S = 1.0
"""For so long a use by nobody in sight may last before it counts."""

POLL_S = 0.02


def unmount(path: Path, *, lazy: bool = False) -> None:
    """Unmount what is mounted at `path`; `lazy` takes the name away at once, whoever still reads.

    Raises:
        Busy: when it is in use, naming processes that use it.
        MountUnavailable: when the program for it is missing.
        GpuTrainError: when it may not be unmounted.
    """
    deadline = time.monotonic() + PASSING_S
    while True:
        done = subprocess.run(_command(path, lazy), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        said = done.stderr.strip() or f"exit {done.returncode}"
        if "busy" not in said.lower():
            raise GpuTrainError(f"{path} could not be unmounted: {said}")
        users = users_of(path)
        if users or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)  # somebody just looked at it: df, another `gpu-train mount`, an indexer
    by = ", ".join(users) or "a process of another user, or another mount in it"
    raise Busy(f"{path} is in use by {by}; close it, or use `gpu-train umount --lazy {path}`")


def _command(path: Path, lazy: bool) -> list[str]:
    program = find_unmounter()
    if program is not None:
        return [program, "-u", *(["-z"] if lazy else []), "--", os.fspath(path)]
    plain = shutil.which("umount")
    if plain is None or os.geteuid() != 0:
        raise MountUnavailable("fusermount3 is missing; install it (`apt-get install fuse3`) or unmount as root")
    return [plain, *(["-l"] if lazy else []), "--", os.fspath(path)]


def umount(mount: Mount, mounts_dir: Path | None = None, *, lazy: bool = False) -> None:
    """Unmount one of our mounts and wait until its process has ended, unless `lazy` leaves it to its readers.

    The folder itself is removed when it is a default mount point, one in `mounts_dir`.

    Raises:
        Busy, MountUnavailable, GpuTrainError: as `unmount`.
    """
    process = _watch(mount.pid)
    try:
        # Nobody reads from a mount whose process is gone or does not answer: waiting for users is in vain.
        unmount(mount.path, lazy=lazy or mount.state is not State.LIVE)
        if process is not None and not lazy and not select.select([process], [], [], GONE_WITHIN_S)[0]:
            raise Busy(f"{mount.path} is unmounted, but its process {mount.pid} has not ended yet; look at its log")
    finally:
        if process is not None:
            os.close(process)
    if mounts_dir is not None and mounts_dir.resolve() in mount.path.parents:
        with suppress(OSError):  # not empty, or used again already
            mount.path.rmdir()


def umount_stale(mounts_dir: Path | None = None, *, within: Path | None = None) -> tuple[list[Mount], list[str]]:
    """Take all mounts away whose process is gone: which ones, and a message for each that could not be.

    `within` leaves those outside of a folder alone.
    """
    done, failed = [], []
    for path, target in reversed(table.paths()):
        if within is not None and within.resolve() not in path.parents:
            continue
        mount = table.look(path, target)
        if mount.state is State.STALE:
            try:
                umount(mount, mounts_dir, lazy=True)
                done.append(mount)
            except GpuTrainError as e:
                failed.append(str(e))
    return done, failed


def find(text: str, home: Path) -> list[Mount]:
    """The mounts that a person means by a folder, a job's id or "all"; of a job those of this home.

    Raises:
        NotFound: when there is none.
    """
    where = Path(text).expanduser().absolute()
    where = where.parent.resolve() / where.name
    known = table.lines()
    here = [line for line in known if line.path == where][-1:]
    if here:
        return [table.look(here[0].path, here[0].target)]
    mark = table.home_mark(home.resolve())
    mine = [table.look(line.path, line.target) for line in known if (line.target, line.home_mark) == (text, mark)]
    if not mine:
        shown = ", ".join(str(line.path) for line in known) or "nothing is mounted"
        raise NotFound(f"{text!r} is no mount of gpu-train here; mounted: {shown}")
    return mine


def users_of(path: Path, most: int = 3) -> list[str]:
    """Processes with an open file or their working directory below `path`, as "name (pid n)"."""
    prefix, found = os.fspath(path), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            links = [process / "cwd", *(process / "fd").iterdir()]
            if any(_is_below(link, prefix) for link in links):
                found.append(f"{(process / 'comm').read_text().strip()} (pid {process.name})")
        if len(found) == most:
            break
    return found


def _is_below(link: Path, prefix: str) -> bool:
    with suppress(OSError):
        target = os.readlink(link)
        return target == prefix or target.startswith(prefix + "/")
    return False


def _watch(pid: int | None) -> int | None:
    """A descriptor that becomes readable when the process ends; None when it cannot be seen from here."""
    if pid is None:
        return None
    with suppress(OSError):
        return os.pidfd_open(pid)
    return None
