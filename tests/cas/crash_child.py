"""The process that test_crash.py kills: forks one child per kill point, each of which works on a home of its own.

    crash_child.py MECHANISM SCENARIO WHEN FOLDER POINT...

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
from collections.abc import Callable
from pathlib import Path

from gpu_train_cas import Record, Store, rebuild_registry

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


def ingest(home: Path, sources: Path, announce: Announce) -> None:
    with Store.open(home) as store:
        jobs = store.registry.table("jobs")
        for source in sorted(sources.glob("new*")):
            with store.writer("ingest", threads=1) as writer:
                added = writer.add_tree(source)
                with writer.commit() as txn:
                    digest = txn.put_record(Record("checkpoint", "job", source.name, 1, added.root))
                    txn.put(jobs, source.name.encode(), {"v": 1, "record": digest}, durable=True)
            announce(f"record {digest.hex()}")
            announce(f"row {source.name} {digest.hex()}")


def rows(home: Path, sources: Path, announce: Announce) -> None:
    with Store.open(home) as store:
        jobs = store.registry.table("jobs")
        for index in range(3):
            with store.transaction() as txn:
                for key in (b"one", b"two"):
                    txn.put(jobs, key, {"v": 1, "record": b"%d" % index}, durable=True)
            announce(f"row one {(b'%d' % index).hex()}")
            announce(f"row two {(b'%d' % index).hex()}")


def gc(home: Path, sources: Path, announce: Announce) -> None:
    with Store.open(home) as store:
        store.gc(trash_days=0)
        announce("collected")


def rebuild(home: Path, sources: Path, announce: Announce) -> None:
    rebuild_registry(home)
    announce("rebuilt")


def restore(home: Path, sources: Path, announce: Announce) -> None:
    with Store.open(home) as store:
        for digest, record in store.records():
            store.restore(record.root, home.parent / "restored" / record.name, threads=1)
            announce(f"restored {record.name} {digest.hex()}")


SCENARIOS = {f.__name__: f for f in (ingest, rows, gc, rebuild, restore)}


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


def child(mechanism: str, scenario: str, when: int, folder: Path, point: int) -> None:
    log = os.open(folder / str(point) / "announced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if mechanism == "profile":
        kill_self_at(point)
    else:
        for _ in range(when - point):
            with contextlib.suppress(OSError):
                WITHOUT_EFFECT[mechanism]()

    def announce(text: str) -> None:
        os.write(log, text.encode() + b"\n")

    SCENARIOS[scenario](folder / str(point) / "home", folder / "sources", announce)


def main() -> None:
    mechanism, scenario, when, folder, *points = sys.argv[1:]
    statuses = []
    for point in points:
        pid = os.fork()
        if pid == 0:
            try:
                child(mechanism, scenario, int(when), Path(folder), int(point))
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        statuses.append(status)
        if status == 0:
            break
    os.write(1, " ".join(map(str, statuses)).encode())


main()
