"""What was asked for when a job was started, beyond what its row says."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_train.environment import (
    ALIASES,
    ATTEMPT,
    CHECKPOINT_DIR,
    HOME,
    JOB_ID,
    JOB_NAME,
    LOAD_CHECKPOINT_DIR,
    NODE_RANK,
    RESUME_FROM,
)
from gpu_train.home import Home
from gpu_train.tables.job import Job
from gpu_train_cas.errors import UsageError

_OURS = (JOB_ID, JOB_NAME, ATTEMPT, CHECKPOINT_DIR, LOAD_CHECKPOINT_DIR, RESUME_FROM, NODE_RANK, *ALIASES.values())


@dataclass(frozen=True, slots=True)
class Request:
    """What the runner needs to know beside the job's row.

    Attributes:
        env: variables added to the command's environment.
        resume_from: the restored checkpoint to go on from.
        load_dir: the folder with the restored checkpoints that were asked for.
        aliases: whether the BT_ names are given too.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    resume_from: str | None = None
    load_dir: str | None = None
    aliases: bool = False

    def save(self, path: Path) -> None:
        """Write it for a runner in another process; only this user may read it, variables can be secrets."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            json.dump(asdict(self), file)

    @classmethod
    def take(cls, path: Path) -> Request:
        """Read what `save` wrote, and remove it."""
        request = cls(**json.loads(path.read_text(encoding="ascii")))
        path.unlink()
        return request


def command_of(task: Mapping[str, Any]) -> tuple[str, ...]:
    """The words that a task runs: its `command`, or its `entrypoint` with `args`.

    An entrypoint that ends in .py is run by this Python, .sh by bash, anything else is a program.

    Raises:
        UsageError: for a task with neither or both, or an unknown key.
    """
    unknown = task.keys() - {"command", "entrypoint", "args", "env", "cwd"}
    if unknown:
        raise UsageError(f"task: unknown key {min(unknown)!r}; known are command, entrypoint, args, env, cwd")
    if ("command" in task) == ("entrypoint" in task):
        raise UsageError("task: give either command (a list of words) or entrypoint (with args)")
    words = task.get("command", task.get("args", []))
    if isinstance(words, str | bytes) or not isinstance(words, Sequence):
        raise UsageError(f"task: command and args are lists of words, not {words!r}")
    words = tuple(os.fspath(w) if isinstance(w, os.PathLike) else str(w) for w in words)
    if "command" in task:
        if not words:
            raise UsageError("task: command is empty; name a program")
        return words
    entrypoint = os.fspath(task["entrypoint"])
    if entrypoint.endswith(".py"):
        return (sys.executable, entrypoint, *words)
    return ("bash", entrypoint, *words) if entrypoint.endswith(".sh") else (entrypoint, *words)


def check_runnable(command: Sequence[str], cwd: Path, path: str | None) -> None:
    """Refuse a command that cannot start, before a job is made of it.

    Raises:
        UsageError: naming what is missing.
    """
    if not cwd.is_dir():
        raise UsageError(f"working directory {cwd} is not there")
    program = command[0]
    where = str(cwd / program) if "/" in program else program
    if shutil.which(where, path=path) is None:
        reason = "is not on PATH" if "/" not in program else "is not there, or not executable"
        raise UsageError(f"command {program!r} {reason}; check its spelling (in {cwd})")


def gpu_environment(gpus: str | int | None) -> dict[str, str]:
    """The variables that give a job its GPUs.

    "cpu" hides all; a number is how many, from the first on; "0,2" or "0," are which; None and "all" change nothing.

    Raises:
        UsageError: for anything else.
    """
    text = "all" if gpus is None else str(gpus).strip().lower()
    if text == "all":
        return {}
    if text in ("cpu", "none", "0"):
        chosen: list[str] = []
    elif text.isdecimal():
        chosen = [str(i) for i in range(int(text))]
    else:
        chosen = [part.strip() for part in text.split(",") if part.strip()]
        if not chosen or not all(c.isdecimal() or c.startswith(("gpu-", "mig-")) for c in chosen):
            raise UsageError(f"gpus {gpus!r}: write cpu, all, a number of GPUs (2) or a list of them (0,2)")
        chosen = [str(part).strip() for part in str(gpus).split(",") if part.strip()]
    return {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}


def job_environment(home: Home, job: Job, request: Request, base: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a job's command."""
    env = {k: v for k, v in base.items() if k not in _OURS}
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.update(request.env)
    ours = {
        HOME: str(home.root), JOB_ID: job.id, JOB_NAME: job.name, ATTEMPT: str(job.attempt), NODE_RANK: "0",
        CHECKPOINT_DIR: str(home.checkpoints(job.id)),
        LOAD_CHECKPOINT_DIR: request.load_dir or "", RESUME_FROM: request.resume_from or "",
    }  # fmt: skip
    env.update({k: v for k, v in ours.items() if v})
    if request.aliases:
        env.update({alias: env[name] for name, alias in ALIASES.items() if name in env})
    return env
