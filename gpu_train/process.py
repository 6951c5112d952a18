"""Processes of a job: which they are, whether one still is the one it was, and how they are ended.

A process number alone names nothing for long: with the kernel's start time and the boot it does.
"""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gpu_train
import gpu_train_cas
from gpu_train.environment import JOB_ID

PROC = "/proc"
POLL_S = 0.02


def boot_id() -> str:
    """Names this boot of the machine."""
    try:
        return Path(PROC, "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """When the kernel started a process, in clock ticks since boot; None when it is not there (or a zombie)."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def identity_of(runner: int) -> dict[str, Any]:
    """The fields of a job's row by which its runner, a process that lives now, is known again."""
    return {"runner_pid": runner, "runner_start": start_time(runner), "boot_id": boot_id()}


def is_alive(pid: int | None, began: int | None, boot: str) -> bool:
    """Whether the process that had that number, start time and boot is still there."""
    return pid is not None and began is not None and boot == boot_id() and start_time(pid) == began


def all_processes() -> set[int]:
    """Every process that can be seen."""
    try:
        return {int(name) for name in os.listdir(PROC) if name.isdecimal()}
    except OSError:
        return set()


def processes_of(leader: int) -> set[int]:
    """The live processes of a job: those in the session that `leader` began, and all their descendants.

    A session outlives its leader, so this finds what a dead command has left behind.
    """
    parents: dict[int, int] = {}
    members = {leader}
    for pid in all_processes():
        fields = _stat(pid)
        if fields is None or fields[0] in (b"Z", b"X"):
            continue
        parents[pid] = int(fields[1])
        if int(fields[3]) == leader:
            members.add(pid)
    grown = True
    while grown:
        fresh = {pid for pid, parent in parents.items() if parent in members} - members
        members |= fresh
        grown = bool(fresh)
    return members & parents.keys()


def job_processes(leader: int | None, job_id: str) -> set[int]:
    """`processes_of`, and all others whose environment says that they belong to the job.

    Those are what left both its session and its family (a launcher that gives each rank a session, and died). Without
    a leader, as when nobody could note its number, the environment alone tells.
    """
    mark = f"{JOB_ID}={job_id}".encode()
    found = set() if leader is None else processes_of(leader)
    others = all_processes() - found - {os.getpid()}
    return found | {pid for pid in others if _has(pid, mark)}


def _has(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(PROC, str(pid), "environ").read_bytes().split(b"\0") and start_time(pid) is not None
    except OSError:
        return False


def send(pids: set[int], number: int) -> None:
    """Send a signal to processes; those that are gone, or not ours, are passed over."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def end_job(
    leader: int | None, job_id: str, grace_s: float, meanwhile: Callable[[], None] = lambda: None
) -> None:  # fmt: skip
    """End all processes of a job: SIGTERM, and SIGKILL to what is left after `grace_s` seconds.

    `meanwhile` is called again and again until they have ended: they may save once more.
    The caller makes sure that `leader`, where it is known, still means the job: that its start time is the one known,
    or that nothing else can have taken the number (its session has members).
    """
    deadline = time.monotonic() + grace_s
    left = job_processes(leader, job_id)
    send(left, signal.SIGTERM)
    send(left, signal.SIGCONT)  # a stopped process takes no signal but this and SIGKILL
    while left and time.monotonic() < deadline:
        meanwhile()
        time.sleep(POLL_S)
        left = job_processes(leader, job_id)
    while left:
        send(left, signal.SIGKILL)
        time.sleep(POLL_S)
        left = job_processes(leader, job_id)


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours with this Python.

    -P: the working directory is the project's, and a `json.py` or `types.py` there must not become ours.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment under which `module_command` finds the very packages that this process runs.

    Site folders are left out of PYTHONPATH: they would come before the standard library.
    """
    site_folders = {os.path.realpath(p) for p in (*site.getsitepackages(), site.getusersitepackages())}
    roots = [str(Path(package.__file__ or "").parents[1]) for package in (gpu_train, gpu_train_cas)]
    paths = [p for p in dict.fromkeys(roots) if os.path.realpath(p) not in site_folders]
    inherited = environ.get("PYTHONPATH", "")
    return {**environ, "PYTHONPATH": os.pathsep.join([*paths, inherited] if inherited else paths)}


_let_go: list[subprocess.Popen[bytes]] = []


def let_go(child: subprocess.Popen[bytes]) -> None:
    """Let a child go on by itself. It is kept in mind, so that it is reaped, and since Python warns otherwise."""
    _let_go[:] = [c for c in (*_let_go, child) if c.poll() is None]


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/<pid>/stat from the state on (the name before may hold anything)."""
    try:
        return Path(PROC, str(pid), "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
