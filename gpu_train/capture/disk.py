"""What the finder asks for names: the disk as it is now, or a view of it as it was at some moment (`watch.view`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol


class Entry(Protocol):
    """A name in a folder, as `os.DirEntry` has it."""

    @property
    def name(self) -> str:
        """The name itself."""

    @property
    def path(self) -> str:
        """The folder's path and the name."""

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""

    def is_dir(self) -> bool:
        """Whether it is a folder."""

    def is_file(self) -> bool:
        """Whether it is a regular file."""


class Disk(Protocol):
    """Names and what they are."""

    def entries(self, path: str) -> Iterable[Entry]:
        """The names in a folder.

        Raises:
            OSError: when it is not there or cannot be read.
        """

    def stat(self, path: str) -> os.stat_result:
        """What a name is, links not followed.

        Raises:
            OSError: when it is not there.
        """

    def source(self, path: str) -> str:
        """Where the bytes of the file that has that name can be read."""

    def stamp(self, path: str, found: os.stat_result) -> int:
        """A number that changes whenever names in a folder do; `found` is its stat. 0 when there is none."""


class NowOnDisk:
    """The disk as it is when it is asked."""

    def entries(self, path: str) -> Iterable[Entry]:
        """See `Disk.entries`."""
        with os.scandir(path) as entries:
            return list(entries)

    def stat(self, path: str) -> os.stat_result:
        """See `Disk.stat`."""
        return os.stat(path, follow_symlinks=False)

    def source(self, path: str) -> str:
        """See `Disk.source`."""
        return path

    def stamp(self, path: str, found: os.stat_result) -> int:
        """See `Disk.stamp`: the time of modification."""
        return found.st_mtime_ns
