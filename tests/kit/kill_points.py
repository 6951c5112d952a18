"""What the processes share that crash tests kill: one child is forked per kill point, each with a home of its own.

    CHILD MECHANISM SCENARIO WHEN FOLDER POINT...

FOLDER/POINT/home is the home of a child, FOLDER/sources what it reads in; a child writes what it has committed
to FOLDER/POINT/announced. A mechanism that names a system call means that strace kills a process at its WHEN-th
call of that: a child makes WHEN - POINT of them without effect first, so that it dies at its POINT-th. With
"profile" it does so itself, at the POINT-th call of a C function that changes something. Prints each child's exit
status.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

CHANGING = {
    "writev", "pwrite", "pwritev", "write", "fsync", "fdatasync", "rename", "unlink", "mkdir", "rmdir", "ftruncate",
    "open", "close", "flock", "commit", "put", "delete", "begin", "symlink", "utime", "fchmod",
}  # fmt: skip

NO_FILE = 1_000_000  # a descriptor that is not open
NO_PATH = "/no/such/path"

WITHOUT_EFFECT: dict[str, Callable[[], object]] = {
    "write": lambda: os.write(NO_FILE, b"x"),
    "writev": lambda: os.writev(NO_FILE, [b"x"]),
    "pwrite64": lambda: os.pwrite(NO_FILE, b"x", 0),
    "pwritev": lambda: os.pwritev(NO_FILE, [b"x"], 0),
    "fsync": lambda: os.fsync(NO_FILE),
    "fdatasync": lambda: os.fdatasync(NO_FILE),
    "rename": lambda: os.rename(NO_PATH, NO_PATH),
    "unlink": Path(NO_PATH).unlink,
    "renameat": lambda: os.rename(NO_PATH, NO_PATH, src_dir_fd=NO_FILE, dst_dir_fd=NO_FILE),
    "mkdirat": lambda: os.mkdir(NO_PATH, dir_fd=NO_FILE),
    "fchmod": lambda: os.fchmod(NO_FILE, 0),
    "utimensat": lambda: os.utime(NO_PATH),
    "flock": lambda: fcntl.flock(NO_FILE, fcntl.LOCK_UN),
}
"""How each system call is made, in the same way as the engine makes it, so that nothing comes of it."""

Announce = Callable[[str], None]
Scenario = Callable[[Path, Path, Announce], None]
"""Works on a home, with the sources, and announces what it has committed."""


def kill_self_at(point: int) -> None:
    """End this process at the point-th call of a C function that changes something."""
    left = point

    def watch(frame: object, event: str, function: object) -> None:
        nonlocal left
        if event == "c_call" and getattr(function, "__name__", "") in CHANGING:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


def child(mechanism: str, scenario: Scenario, when: int, folder: Path, point: int) -> None:
    log = os.open(folder / str(point) / "announced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if mechanism == "profile":
        kill_self_at(point)
    else:
        for _ in range(when - point):
            with contextlib.suppress(OSError):
                WITHOUT_EFFECT[mechanism]()

    def announce(text: str) -> None:
        os.write(log, text.encode() + b"\n")

    scenario(folder / str(point) / "home", folder / "sources", announce)


def main(scenarios: Mapping[str, Scenario]) -> None:
    """Do as the command line says."""
    mechanism, scenario, when, folder, *points = sys.argv[1:]
    statuses = []
    for point in points:
        pid = os.fork()
        if pid == 0:
            try:
                child(mechanism, scenarios[scenario], int(when), Path(folder), int(point))
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        statuses.append(status)
        if status == 0:
            break
    os.write(1, " ".join(map(str, statuses)).encode())
