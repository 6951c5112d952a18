"""Everything the engine raises on purpose.

    GpuTrainError                 exit 1
    ├── UsageError                exit 2   also ValueError
    ├── NotFound                  exit 3   also LookupError
    ├── Damaged                   exit 4   stored bytes are not what they claim to be
    ├── Incomplete                exit 4   something that should be there is not finished
    ├── Unreachable               exit 5   what lies elsewhere cannot be had now
    ├── Busy                      exit 6   another process holds what is needed
    ├── SourceChanged             exit 1   a file changed while it was read
    ├── DestinationExists         exit 1   also FileExistsError
    ├── UnsafeName                exit 4   a name that would leave its folder
    ├── StorageFull               exit 1   also OSError(ENOSPC)
    ├── ReadOnly                  exit 1   also OSError(EROFS)
    ├── Denied                    exit 1   also PermissionError
    ├── UnsupportedHome           exit 1   the home lies where LMDB cannot work
    └── TooNew                    exit 1   written by a newer gpu-train

A message names the thing, the value and the next step. The exit code is the class's, so that a
program needs no table of its own.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class GpuTrainError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what a program should exit with."""

    exit_code = 1


class UsageError(GpuTrainError, ValueError):
    """What was asked for does not make sense."""

    exit_code = 2


class NotFound(GpuTrainError, LookupError):
    """A ref, record, block, file or job that is not there."""

    exit_code = 3


class Damaged(GpuTrainError):
    """Stored bytes that fail their checksum or cannot be decoded."""

    exit_code = 4


class Incomplete(GpuTrainError):
    """Something that was never finished, such as a checkpoint without its proof."""

    exit_code = 4


class Unreachable(GpuTrainError):
    """Blocks that lie in another place, which did not give them in time; trying again later can work."""

    exit_code = 5


class Busy(GpuTrainError):
    """Another live process holds what is needed; trying again later can work."""

    exit_code = 6


class SourceChanged(GpuTrainError):
    """A file changed, shrank or vanished while it was being read into the store."""


class DestinationExists(GpuTrainError, FileExistsError):
    """The destination is there already and overwriting was not asked for."""


class UnsafeName(GpuTrainError):
    """A stored name that would lead out of its own folder."""

    exit_code = 4


class StorageFull(GpuTrainError, OSError):
    """The disk (or a quota) has no room left; `errno` is ENOSPC."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ENOSPC, message)

    def __str__(self) -> str:
        return str(self.args[1])


class ReadOnly(GpuTrainError, OSError):
    """The home cannot be written; `errno` is EROFS."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.EROFS, message)

    def __str__(self) -> str:
        return str(self.args[1])


class Denied(GpuTrainError, PermissionError):
    """The system refuses access to a file or folder of the home."""


class UnsupportedHome(GpuTrainError):
    """The home lies on a filesystem where the registry cannot work."""


class TooNew(GpuTrainError):
    """The store was written by a newer version, which the message names."""


UNREADABLE = (Damaged, NotFound, TooNew, UnsafeName)
"""What reading a stored object back may raise: such an object says nothing of what it needs."""


@contextmanager
def mapped_os_errors(what: str) -> Iterator[None]:
    """Turn the OSErrors that a person can act on into ours; `what` names what was being done.

    Raises:
        StorageFull: for ENOSPC and EDQUOT.
        ReadOnly: for EROFS.
        Denied: for EACCES and EPERM.
    """
    try:
        yield
    except GpuTrainError:
        raise
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"{what}: no space left on the disk; free some (`gpu-train gc`, `df -h`) and try again"
            ) from e
        if e.errno == errno.EROFS:
            raise ReadOnly(f"{what}: the filesystem is read-only; remount it or set GPU_TRAIN_HOME") from e
        if e.errno in (errno.EACCES, errno.EPERM):
            raise Denied(f"{what}: permission denied; check who owns it, or set GPU_TRAIN_HOME") from e
        raise
