"""The mounts of this machine that are ours, as the kernel lists them, and whether they still answer."""

from __future__ import annotations

import errno
import os
import re
import threading
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

FILESYSTEM = "fuse.gpu-train"
SOURCE_PREFIX = "gpu-train:"
MOUNT_INFO = Path("/proc/self/mountinfo")
ANSWER_WITHIN_S = 5.0


class State(Enum):
    """Whether a mount answers: live, stale (its process is gone), or silent (its process does not answer)."""

    LIVE = "live"
    STALE = "stale"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount.

    Attributes:
        path: the mount point.
        target: the job's id, or "all".
        state: whether it answered a moment ago.
        home: the home it shows, when it answers.
        pid: the process that serves it, when it answers.
    """

    path: Path
    target: str
    state: State
    home: Path | None = None
    pid: int | None = None


class Line(NamedTuple):
    """What the kernel's list says of a mount, also of one that does not answer: where, what, and of which home."""

    path: Path
    target: str
    home_mark: str


def home_mark(home: Path) -> str:
    """What stands for a home in the kernel's list: its path may be too long there and hold anything."""
    return blake3(os.fsencode(home)).hexdigest(4)


def source(target: str, home: Path) -> str:
    """What a mount is called in the kernel's list, and by df."""
    return f"{SOURCE_PREFIX}{target}@{home_mark(home)}"


def parse(text: str) -> list[Line]:
    """Our mounts in a mountinfo file, in the order they were mounted."""
    found = []
    for line in text.splitlines():
        before, mark, after = line.partition(" - ")
        fields, tail = before.split(" "), after.split(" ")
        if mark and len(fields) > 4 and len(tail) > 1 and tail[0] == FILESYSTEM:
            target, _, home = _unescape(tail[1]).removeprefix(SOURCE_PREFIX).partition("@")
            found.append(Line(Path(_unescape(fields[4])), target, home))
    return found


def _unescape(text: str) -> str:
    raw = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), os.fsencode(text))
    return os.fsdecode(raw)


def lines(table: Path = MOUNT_INFO) -> list[Line]:
    """Our mounts, without asking any of them; [] where there is no /proc."""
    try:
        return parse(os.fsdecode(table.read_bytes()))
    except FileNotFoundError:
        return []


def paths() -> list[tuple[Path, str]]:
    """Mount point and target of each of our mounts, without asking any of them."""
    return [(line.path, line.target) for line in lines()]


def device(path: Path, table: Path = MOUNT_INFO) -> str | None:
    """The device of our mount at a path, as `major:minor`, without asking the mount; None where there is none."""
    found = None
    for line in os.fsdecode(table.read_bytes()).splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if after.startswith(FILESYSTEM + " ") and Path(_unescape(fields[4])) == path:
            found = fields[2]  # of several on top of each other the last one is seen
    return found


def mounts() -> list[Mount]:
    """All our mounts that this process can see, with their state."""
    return [look(path, target) for path, target in paths()]


def look(path: Path, target: str) -> Mount:
    """Ask one mount whether it lives, for ANSWER_WITHIN_S at most."""
    answer: list[Mount] = []

    def ask() -> None:
        answer.append(_ask(path, target))

    # A process that was stopped leaves the caller in an uninterruptible wait: that must not be ours.
    thread = threading.Thread(target=ask, name=f"ask {path}", daemon=True)
    thread.start()
    thread.join(ANSWER_WITHIN_S)
    return answer[0] if answer else Mount(path, target, State.SILENT)


def _ask(path: Path, target: str) -> Mount:
    try:
        pid = int(os.getxattr(path, "user.gpu_train.pid"))
        home = Path(os.fsdecode(os.getxattr(path, "user.gpu_train.home")))
    except OSError as e:
        # ENOTCONN: the process is gone. EACCES: it lives, but belongs to somebody else.
        return Mount(path, target, State.STALE if e.errno in (errno.ENOTCONN, errno.ECONNABORTED) else State.LIVE)
    return Mount(path, target, State.LIVE, home, pid)
