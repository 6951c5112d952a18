"""How the agent gives way to the training: the processor and the disk only when that does not need them."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from pathlib import Path

NICE = 10
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE = 3 << 13
_LEAST = 2 << 13 | 7
"""The lowest priority of those that get the disk while others use it (ioprio_set(2), IOPRIO_CLASS_BE)."""


def be_polite() -> None:
    """Take the processor and the disk only when the training does not need them, where that is possible."""
    with suppress(OSError):
        # Where the kernel groups processes by session, niceness counts only within one (sched(7)).
        if os.getsid(0) == os.getpid():
            Path("/proc/self/autogroup").write_text(str(NICE), "ascii")
    try:
        os.nice(NICE)
    except OSError:
        return
    wait_for_disk(is_idle=True)


def wait_for_disk(*, is_idle: bool) -> None:
    """Have this thread, and those that it starts, use the disk only when nobody else does, or also beside others."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        try:
            ctypes.CDLL(None).syscall(number, 1, 0, _IDLE if is_idle else _LEAST)
        except (OSError, AttributeError):
            return
