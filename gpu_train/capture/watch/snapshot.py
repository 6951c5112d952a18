"""An exact copy of a file as it was when it was closed, or none: for files that are written over in place.

A link follows the file, so writing over it reaches the link too. A clone (FICLONE, where the file system has it)
shares the bytes until one side changes; else the bytes are copied. Neither is atomic against a writer that comes
in the meantime, so afterwards somebody has to ask `is_still`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import time
from contextlib import suppress
from typing import IO

from gpu_train.capture.watch.sighting import Version

CHUNK_BYTES = 8 << 20
COARSE_S = 0.02
"""Times of modification may be this coarse: what is younger may have been written to since and look the same."""

_GLANCE_BYTES = 1 << 16
_FICLONE = 0x40049409
_PROBE = ".probe"
_calls = ctypes.PyDLL(
    None, use_errno=True
)  # keeps the interpreter to itself, so that no thread comes between taking and giving back


class Changed(Exception):
    """The file was written to while it was copied."""


def can_clone(folder: int) -> bool:
    """Whether files in a folder can be cloned there."""
    probe, twin = _PROBE, f"{_PROBE}-twin"
    try:
        first = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            os.write(first, bytes(4096))
            second = os.open(twin, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=folder)
            try:
                return _clone(first, second)
            finally:
                os.close(second)
        finally:
            os.close(first)
    except OSError:
        return False
    finally:
        for name in (probe, twin):
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)


def take(source: int, size_bytes: int, folder: int, name: bytes) -> None:
    """Clone or copy an open file of that length as `name` in a folder, with its mode and time of modification.

    Raises:
        Changed: when the file is longer or shorter by now; nothing is left behind.
        OSError: when there is no room or it cannot be read; nothing is left behind.
    """
    target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        if not _clone(source, target):
            _copy(source, target, size_bytes)
        found = os.fstat(source)
        if found.st_size != size_bytes or os.fstat(target).st_size != size_bytes:
            raise Changed
        os.fchmod(target, found.st_mode & 0o777 | 0o600)
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(target)


def is_still(source: int, version: Version) -> bool | None:
    """Whether an open file has the content that it had as `version`; None when that cannot be told yet.

    When nobody can be writing to it, it has, provided that nobody wrote and went: the caller knows of closings. A
    time alone may be set anew, as by `cp -p`. With a writer about, or where the kernel does not say, times decide
    once they are old enough.
    """
    found = os.fstat(source)
    if found.st_size != version[2]:
        return False
    if has_writers(source) is False:
        return True
    if found.st_mtime_ns != version[3]:
        return False
    return True if time.time_ns() - found.st_mtime_ns > COARSE_S * 1e9 else None


def has_writers(file: int) -> bool | None:
    """Whether any process has an open file open for writing too; None where the kernel does not say.

    A read lease can be had only while there is no writer (fcntl(2), F_SETLEASE); it is given back at once.
    """
    if _calls.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0:
        _calls.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    # Any other error than EAGAIN is a file system, or an owner, for which there are no leases.
    return True if ctypes.get_errno() == errno.EAGAIN else None


def begins(copy: str, path: str) -> bool:
    """Whether a file begins, as far as a glance at both ends tells, with what an earlier copy of it holds."""
    try:
        with open(copy, "rb") as old, open(path, "rb") as new:
            size_bytes = os.fstat(old.fileno()).st_size
            if os.fstat(new.fileno()).st_size < size_bytes:
                return False
            ends = (0, max(0, size_bytes - _GLANCE_BYTES))
            return all(_bytes_at(old, at) == _bytes_at(new, at, size_bytes) for at in ends)
    except OSError:
        return False


def _bytes_at(file: IO[bytes], at: int, end: int | None = None) -> bytes:
    file.seek(at)
    return file.read(_GLANCE_BYTES if end is None else min(_GLANCE_BYTES, end - at))


def ignore_lease_breaks() -> None:
    """Make sure that a writer who comes while `has_writers` asks does not end this process."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)


def _clone(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _copy(source: int, target: int, size_bytes: int) -> None:
    done = 0
    try:
        while done < size_bytes:
            count = os.copy_file_range(source, target, min(CHUNK_BYTES, size_bytes - done), done, done)
            if not count:
                raise Changed
            done += count
    except OSError as e:
        if done or isinstance(e, Changed):
            raise
        _copy_by_hand(source, target, size_bytes)


def _copy_by_hand(source: int, target: int, size_bytes: int) -> None:
    """For file systems between which the kernel does not copy."""
    done = 0
    while done < size_bytes:
        data = os.pread(source, min(CHUNK_BYTES, size_bytes - done), done)
        if not data:
            raise Changed
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
        done += len(data)
