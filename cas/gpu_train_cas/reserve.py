"""Room that is kept for gc: a file of real blocks, given up when a full disk would not let gc begin."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gpu_train_cas.filesystem import remove_if_there, size_if_there

NAME = "reserve"
RESERVE_BYTES = 4 << 20
"""Enough for a lease, a pack of rows and some hundred pages of the registry, which is what gc needs at a time."""

LOAN_BYTES = 1 << 20
KEPT_BYTES = 2 << 20
"""How much at a time may be used up by what leads to room later, and what is never lent: gc must still begin."""

MARGIN = 4
"""The reserve is only made where so many times its size is free: it must not be what fills the disk."""


class Reserve:
    """The reserve of one store; `folder` is the store's own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def make(self) -> None:
        """Make it unless it is there; where there is no room, or it may not be written, there is none."""
        with suppress(OSError):
            if size_if_there(self.path) >= RESERVE_BYTES:
                return
            disk = os.statvfs(self.path.parent)
            if disk.f_bavail * disk.f_frsize < MARGIN * RESERVE_BYTES:
                return
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            except OSError:
                self.give_up()
            finally:
                os.close(fd)

    def give_up(self) -> None:
        """Give its room back to the disk, which needs none itself; not being there is fine.

        Raises:
            OSError: when the file cannot be removed.
        """
        remove_if_there(self.path)

    def lend(self) -> bool:
        """Give a part of its room back for a small change; False when there is none to spare. `make` fills it up."""
        size = size_if_there(self.path) - LOAN_BYTES
        if size < KEPT_BYTES:
            return False
        with suppress(OSError):
            os.truncate(self.path, size)
            return True
        return False
