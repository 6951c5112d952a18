"""What the engine must know about the filesystem under a path: its type, and durable directory changes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from gpu_train_cas.errors import UnsupportedHome

MOUNTINFO = Path("/proc/self/mountinfo")

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a directory is opened by name in another one: itself, not what a link of that name leads to."""

_REMOTE = {"nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre",
           "beegfs", "gpfs", "ocfs2", "davfs", "virtiofs"}  # fmt: skip
"""Types on which LMDB's shared memory or locks are known not to hold between machines."""


class Mount(NamedTuple):
    """The mount that a path lies on: where it is mounted and the filesystem's type."""

    point: Path
    type: str

    @property
    def fit_for_registry(self) -> bool:
        """Whether shared memory maps and locks work here as LMDB needs them."""
        return self.type not in _REMOTE and not self.type.startswith("fuse")


def mount_of(path: Path, mountinfo: Path = MOUNTINFO) -> Mount | None:
    """The mount that holds `path` (which need not exist yet); None where the system does not say."""
    target = os.path.realpath(path)
    best: Mount | None = None
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind:
            continue
        point = fields[4].encode(errors="surrogateescape").decode("unicode_escape")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        # The later of two mounts on one point hides the earlier.
        if inside and (best is None or len(point) >= len(str(best.point))):
            best = Mount(Path(point), kind[0])
    return best


def check_fit(path: Path, mountinfo: Path = MOUNTINFO) -> None:
    """Refuse a home where the registry cannot be kept safely.

    Raises:
        UnsupportedHome: on network and FUSE filesystems, naming the type and the way out.
    """
    mount = mount_of(path, mountinfo)
    if mount is not None and not mount.fit_for_registry:
        raise UnsupportedHome(
            f"{path} is on {mount.type} (mounted at {mount.point}), where the registry's locks and memory "
            "maps are not safe; set GPU_TRAIN_HOME to a local disk and use a sink to copy to this place"
        )


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def replacing(target: Path, *, mode: int = 0o644, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file to write that becomes `target`, whole and durable, when the block ends; on an exception nothing changes.

    The folder is made when it is not there. What was at `target` is replaced. What is not `durable` is not
    pushed to the disk: after a crash of the machine the file may be the old one, empty or gone.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as out:
            yield out
            out.flush()
            os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
        temporary.replace(target)
    except BaseException:
        remove_if_there(temporary)
        raise
    if durable:
        sync_directory(target.parent)


def remove_if_there(path: Path) -> None:
    """Unlink a file; not being there is fine."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def remove_tree(folder: int, name: bytes) -> None:
    """Remove a directory by its name in an open one, with all below it; not being there is fine."""
    try:
        fd = os.open(name, FOLDER_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder)
        fd = os.open(name, FOLDER_FLAGS, dir_fd=folder)
    try:
        os.fchmod(fd, 0o700)
        with os.scandir(fd) as listing:
            found = [(os.fsencode(e.name), e.is_dir(follow_symlinks=False)) for e in listing]
        for child, is_dir in found:
            if is_dir:
                remove_tree(fd, child)
            else:
                os.unlink(child, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=folder)


def size_if_there(path: Path) -> int:
    """A file's length in bytes; 0 when another process has just removed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
