"""From a job's name to a mount that answers: the process behind it, its log, its readiness.

A mount in the background is a fresh `python -m gpu_train_fuse`, never a fork: by then the caller has threads
and an open registry, neither of which a forked child may use. The process writes one line of JSON to a pipe
once its mount answers or has failed, and the caller waits for that line. What it has to say later (damaged
blocks) stands in <home>/mnt/.log/<job>.log.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gpu_train import Home, Workspace
from gpu_train_cas import ReadAhead, Reader
from gpu_train_cas.errors import GpuTrainError, mapped_os_errors
from gpu_train_fuse import support, table
from gpu_train_fuse.catalogue import WorkspaceCatalogue
from gpu_train_fuse.mountpoint import alone, prepare
from gpu_train_fuse.support import MountUnavailable
from gpu_train_fuse.table import Mount
from gpu_train_fuse.tree import FileTree, home_tree, job_tree
from gpu_train_fuse.unmount import unmount

ALL = "all"
READY_WITHIN_S = 60.0
LOG_LIMIT_BYTES = 1 << 20
CACHE_BYTES = 64 << 20


def mount(
    workspace: Workspace, target: str, path: Path | None = None, *, allow_other: bool = False, nonempty: bool = False
) -> Mount:
    """Mount a job (its id, name or the start of its id) or "all" in the background; return when it answers.

    Args:
        workspace: the home to show; it may be closed afterwards.
        target: what to show.
        path: the mount point, by default <home>/mnt/<job id>; made when it is not there.
        allow_other: let other users in, as far as the stored modes do.
        nonempty: mount over a folder that has something in it.

    Raises:
        NotFound, UsageError: for a target that is not there or is ambiguous.
        UsageError, DestinationExists, Busy: for the mount point (see `mountpoint.prepare`).
        MountUnavailable: when this machine cannot mount, or the process did not come up; says why.
    """
    name, path = _plan(workspace, target, path, nonempty)
    log = log_file(workspace.home, name)
    with mapped_os_errors(f"making {log}"):
        log = _made(log)
    command = [sys.executable, "-m", "gpu_train_fuse", "--home", os.fspath(workspace.home.root), "--target", name]
    command += ["--mountpoint", os.fspath(path), *(["--allow-other"] if allow_other else [])]
    with alone(path, READY_WITHIN_S):
        prepare(path, workspace.home.root, workspace.home.mounts, nonempty=nonempty)  # again: one may have come first
        _start(command, path, log)
        return table.look(path, name)


def mount_here(
    workspace: Workspace, target: str, path: Path | None = None, *, allow_other: bool = False, nonempty: bool = False,
    on_ready: Callable[[Path], None] = lambda path: None,
) -> None:  # fmt: skip
    """As `mount`, but serve in this process until unmounted or interrupted; only from the main thread.

    `on_ready` is called with the mount point, from another thread, once the mount answers.
    """
    from gpu_train_fuse.adapter import serve  # noqa: PLC0415  only the process that serves needs it

    name, path = _plan(workspace, target, path, nonempty)
    with ExitStack() as mounting:
        mounting.enter_context(alone(path, READY_WITHIN_S))
        prepare(path, workspace.home.root, workspace.home.mounts, nonempty=nonempty)  # again: one may have come first

        def ready() -> None:
            mounting.close()
            on_ready(path)

        with tree_of(workspace, name) as tree:
            serve(tree, path, name=name, facts=facts(workspace.home), allow_other=allow_other, on_ready=ready)


def _plan(workspace: Workspace, target: str, path: Path | None, nonempty: bool) -> tuple[str, Path]:
    name = target if target == ALL else workspace.jobs.find(target).id
    support.check()
    home = workspace.home
    return name, prepare(path or home.mounts / name, home.root, home.mounts, nonempty=nonempty)


@contextmanager
def tree_of(workspace: Workspace, name: str) -> Iterator[FileTree]:
    """The view of a job by id, or of the whole home for "all", to be served until this is left; raises NotFound."""
    # The kernel keeps what was read: a cache here is for what several requests share and what is read ahead.
    store = workspace.store
    objects = ReadAhead(Reader([store.packs, *store.elsewhere()], CACHE_BYTES))
    try:
        catalogue = WorkspaceCatalogue(workspace)
        yield home_tree(catalogue, objects) if name == ALL else job_tree(catalogue, objects, name)
    finally:
        objects.close()


def facts(home: Home) -> dict[str, str]:
    """What a mount tells about itself in the extended attributes of its root."""
    return {"pid": str(os.getpid()), "home": os.fspath(home.root.resolve())}


def log_file(home: Home, name: str) -> Path:
    """Where the process behind a mount writes what it has to say."""
    return home.mounts / ".log" / f"{name}.log"


def _made(log: Path) -> Path:
    """The log, ready to be appended to. A home that cannot be written can be looked at all the same, without one."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
            log.replace(log.with_suffix(".log.1"))
        log.open("ab").close()
    except OSError as e:
        if e.errno not in (errno.EROFS, errno.EACCES):
            raise
        return Path(os.devnull)
    return log


def _start(command: list[str], path: Path, log: Path) -> None:
    ours, theirs = os.pipe()
    try:
        with log.open("ab") as out:
            begins = out.tell()
            process = subprocess.Popen(
                [*command, "--ready-fd", str(theirs)], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, pass_fds=[theirs],
            )  # fmt: skip
    except OSError as e:
        os.close(ours)
        raise MountUnavailable(f"{command[0]} could not be started: {e.strerror}") from e
    finally:
        os.close(theirs)
    # Whoever stays alive longer than the mount reaps its process by this.
    threading.Thread(target=process.wait, name=f"reap {process.pid}", daemon=True).start()
    try:
        answer = _await(ours)
    finally:
        os.close(ours)
    if answer.get("state") == "ready":
        return
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)  # it is not mounted, or not to be trusted
    with suppress(GpuTrainError):
        if any(at == path for at, _ in table.paths()):
            unmount(path, lazy=True)
    reasons = [answer.get("message", ""), _last_words(log, begins, only_libfuse="message" in answer)]
    reason = "; ".join(filter(None, reasons)) or "its process ended without a word"
    raise MountUnavailable(f"mounting {path} failed: {reason} (log: {log})")


def _await(fd: int) -> dict[str, str]:
    """The line that the process writes, {} when it ends without, or a message when it takes too long."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([fd], [], [], READY_WITHIN_S)[0]:
            return {"message": f"it did not answer within {READY_WITHIN_S:.0f} s"}
        part = os.read(fd, 65536)
        if not part:
            break
        line += part
    return dict(json.loads(line)) if line else {}


def _last_words(log: Path, begins: int, *, only_libfuse: bool) -> str:
    """The last line of the log; libfuse and its fusermount3 have no other way to say what went wrong."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(begins)
        lines = file.read(LOG_LIMIT_BYTES).decode(errors="replace").strip().splitlines()
        return next((line for line in reversed(lines) if line.startswith("fuse") or not only_libfuse), "")
    return ""
