"""Where a restore goes: a work folder first, then into place by rename, and never through a link on the way."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from gpu_train_cas.errors import DestinationExists
from gpu_train_cas.filesystem import FOLDER_FLAGS, remove_tree


class Destination:
    """The path that something is to appear at, and the open folder in which the work for it is done.

    That folder is the parent of a new path, or the destination itself when it is a directory already (which
    may be a mount point or somebody's working directory, so it is filled, not replaced). A context manager.
    """

    def __init__(self, path: bytes, overwrite: bool, *, inside: bool) -> None:
        self.path = path
        self._overwrite = overwrite
        self._inside = inside
        self._look: os.stat_result | None = None
        parent, self.name = (path, b"") if inside else os.path.split(path)
        if not inside:
            Path(os.fsdecode(parent)).mkdir(parents=True, exist_ok=True)
        self.fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @classmethod
    def of_folder(cls, path: bytes, overwrite: bool) -> Self:
        """Where a directory goes; an absolute path.

        Raises:
            DestinationExists: when a file, or without `overwrite` a directory that is not empty, is there.
        """
        if os.path.isdir(path):
            if os.listdir(path) and not overwrite:
                raise DestinationExists(f"{os.fsdecode(path)} is not empty; choose another destination or overwrite")
            return cls(path, overwrite, inside=True)
        if os.path.lexists(path):
            raise DestinationExists(f"{os.fsdecode(path)} exists and is no directory; choose another destination")
        return cls(path, overwrite, inside=False)

    @classmethod
    def of_file(cls, path: bytes, name: bytes, overwrite: bool) -> Self:
        """Where a file goes: to an absolute path, or under `name` into the directory that is there.

        Raises:
            DestinationExists: when there is something already; a file gives way with `overwrite`.
        """
        if os.path.isdir(path):
            path = os.path.join(path, name)
        if os.path.lexists(path) and not overwrite:
            raise DestinationExists(f"{os.fsdecode(path)} exists; choose another destination or overwrite")
        return cls(path, overwrite, inside=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    @contextmanager
    def work_folder(self) -> Iterator[tuple[bytes, int]]:
        """A new folder on the same filesystem, its name and descriptor; what is left of it at the end is removed."""
        name = b"%s.partial-%s" % (self.name[:200], os.urandom(6).hex().encode())
        os.mkdir(name, 0o700, dir_fd=self.fd)
        fd = os.open(name, FOLDER_FLAGS, dir_fd=self.fd)
        try:
            yield name, fd
        finally:
            os.close(fd)
            remove_tree(self.fd, name)
        if self._look is not None:  # only now, since removing the work folder is a change too
            with contextlib.suppress(PermissionError):  # the folder was there before and may be another user's
                _dress(self.fd, self._look)

    def land_folder(self, work: bytes, fd: int) -> None:
        """Make the work folder, with its own mode and times, the destination.

        Raises:
            DestinationExists: when something that may not be replaced is in the way; nothing was then moved.
        """
        if self._inside:
            found = os.fstat(fd)
            self.land_content(fd)
            self._look = found
            return
        try:
            os.rename(work, self.name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as e:
            if _is_folder(self.fd, self.name) is None:
                raise
            raise DestinationExists(f"{os.fsdecode(self.path)} appeared meanwhile; it was left as it is") from e

    def land_content(self, fd: int) -> None:
        """Move all that is in the work folder into the open folder.

        Raises:
            DestinationExists: as for `land_folder`.
        """
        os.fchmod(fd, 0o700)
        where = self.path if self._inside else os.path.split(self.path)[0]
        self._merge(fd, self.fd, where, apply=False)
        self._merge(fd, self.fd, where, apply=True)

    def _merge(self, source: int, dest: int, path: bytes, *, apply: bool) -> None:
        """Move names from one folder to another; without `apply` only look whether something is in the way."""
        for name in map(os.fsencode, os.listdir(source)):
            below = os.path.join(path, name)
            is_folder, there = bool(_is_folder(source, name)), _is_folder(dest, name)
            if there is not None and (not self._overwrite or (there and not is_folder)):
                raise DestinationExists(f"{os.fsdecode(below)} is in the way; choose another destination")
            if is_folder and there:
                self._merge_folder(source, dest, name, below, apply=apply)
            elif apply:
                if is_folder and there is False:
                    os.unlink(name, dir_fd=dest)
                _rename(name, source, dest)

    def _merge_folder(self, source: int, dest: int, name: bytes, path: bytes, *, apply: bool) -> None:
        with _opened(source, name) as (inner, found), _opened(dest, name) as (outer, old):
            os.fchmod(inner, 0o700)
            if apply and not old.st_mode & stat.S_IWUSR:
                os.fchmod(outer, 0o700)  # read-only like the one from an earlier restore
            self._merge(inner, outer, path, apply=apply)
            _dress(outer if apply else inner, found)


@contextmanager
def _opened(folder: int, name: bytes) -> Iterator[tuple[int, os.stat_result]]:
    """A folder by name, and what it was like before; one of ours without permissions is lent them."""
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    try:
        fd = os.open(name, FOLDER_FLAGS, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder)
        fd = os.open(name, FOLDER_FLAGS, dir_fd=folder)
    try:
        yield fd, found
    finally:
        os.close(fd)


def _rename(name: bytes, source: int, dest: int) -> None:
    try:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=dest)
    except PermissionError:
        if not _is_folder(source, name):
            raise
        # A folder without write permission cannot change its parent: lend it the permission for the move.
        with _opened(source, name) as (fd, found):
            os.fchmod(fd, 0o700)
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=dest)
            _dress(fd, found)


def _dress(fd: int, found: os.stat_result) -> None:
    os.fchmod(fd, stat.S_IMODE(found.st_mode))
    os.utime(fd, ns=(found.st_mtime_ns, found.st_mtime_ns))


def _is_folder(folder: int, name: bytes) -> bool | None:
    """Whether a name is a directory itself; None when it is not there."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None
