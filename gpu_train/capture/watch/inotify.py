"""The kernel's inotify, as far as capture needs it (inotify(7)).

A library would bring recursion by path, which loses to renames, and threads of its own; this is one small call table.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

OPEN = 0x20
CLOSE_WRITE = 0x8
MODIFY = 0x2
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
OVERFLOW = 0x4000
IGNORED = 0x8000
IS_FOLDER = 0x40000000

_ONLY_FOLDERS = 0x01000000
_EXCLUDE_UNLINKED = 0x04000000
_HEAD = struct.Struct("iIII")
_READ_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)


class Event(NamedTuple):
    """What happened to a name in a watched folder: the watch, what (a mask), a number that moves share, the name."""

    watch: int
    mask: int
    cookie: int
    name: bytes


class Inotify:
    """One queue of events and the folders that feed it. Reading never blocks; `fileno` can be polled.

    Raises:
        OSError: when the kernel has no inotify, or no more instances for this user (EMFILE).
    """

    def __init__(self) -> None:
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def fileno(self) -> int:
        """The queue's file descriptor."""
        return self._fd

    def add(self, folder: int, mask: int) -> int:
        """Watch the folder that a file descriptor stands for; the number that its events carry.

        A folder that is watched already keeps its number and gets the new mask.

        Raises:
            OSError: ENOSPC when there are no more watches for this user (fs.inotify.max_user_watches).
        """
        # By the descriptor: a path could lead elsewhere by now.
        path = b"/proc/self/fd/%d" % folder
        mask |= _ONLY_FOLDERS | _EXCLUDE_UNLINKED
        return _checked(_libc.inotify_add_watch(self._fd, path, ctypes.c_uint32(mask)), "inotify_add_watch")

    def remove(self, watch: int) -> None:
        """Stop watching a folder; one that is gone is not watched any more."""
        _libc.inotify_rm_watch(self._fd, watch)

    def read(self) -> list[Event]:
        """The events that wait, oldest first; empty when there are none. One call may not bring all."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return []
        return list(_events(data))

    def close(self) -> None:
        """End all watches."""
        os.close(self._fd)


def _events(data: bytes) -> Iterator[Event]:
    at = 0
    while at < len(data):
        watch, mask, cookie, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield Event(watch, mask, cookie, data[at : at + length].rstrip(b"\0"))
        at += length


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
