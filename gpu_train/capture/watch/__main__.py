"""`python -m gpu_train.capture.watch`: the sentry of one job, started by its agent.

It says what it sees on stdout and takes commands on stdin, one a line: `drop PATH` (as JSON) gives back what it holds
there, `spare BYTES` is how much of a disk copies must leave free, `mark WORD` is answered once everything that happened
before has been told. The end of stdin is its own.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from gpu_train.capture.watch import sighting
from gpu_train.capture.watch.outbox import Outbox
from gpu_train.capture.watch.sentry import LIMBO_S, Sentry
from gpu_train.capture.watch.snapshot import ignore_lease_breaks

RETRY_S = 60.0
"""How long it stays blind before it tries again to watch everything."""

_COMMANDS, _SAID = 0, 1


def main() -> int:
    """Watch until the agent is gone; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gpu_train.capture.watch")
    for name in ("root", "pins", "control"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--job", required=True)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent's end is what ends it
    ignore_lease_breaks()
    gc.disable()  # nothing here makes cycles
    sys.setswitchinterval(1e-4)
    _be_quick()
    outbox = Outbox(_SAID)
    sentry = Sentry(arguments.root, arguments.pins, arguments.control, arguments.job, outbox)
    with suppress(BrokenPipeError):
        _watch(sentry, outbox)
    return 0


def _be_quick() -> None:
    """Come before everything else that runs, if this process may: it works for microseconds, and then sleeps."""
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _watch(sentry: Sentry, outbox: Outbox) -> None:
    buffer = b""
    retry_at = time.monotonic() + RETRY_S
    while True:
        outbox.flush()
        ready = _wait(sentry, outbox)
        if sentry.queue in ready or sentry.is_expecting:
            sentry.take_events()
        if sentry.keeper.fileno() in ready:
            sentry.take_copies()
        if _COMMANDS in ready:
            data = os.read(_COMMANDS, 1 << 12)
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                _obey(sentry, outbox, line)
        if sentry.is_blind and time.monotonic() > retry_at:
            sentry.begin_anew()
            retry_at = time.monotonic() + RETRY_S


def _wait(sentry: Sentry, outbox: Outbox) -> set[int]:
    """The descriptors that have something, or take something, by now."""
    poll = select.poll()
    for fd in (sentry.queue, sentry.keeper.fileno(), _COMMANDS):
        if fd is not None:
            poll.register(fd, select.POLLIN)
    # Without a wish only errors are told: the agent's end.
    poll.register(_SAID, 0 if outbox.is_empty else select.POLLOUT)
    timeout_s = RETRY_S if sentry.is_blind else None
    if sentry.is_expecting:
        timeout_s = LIMBO_S
    return {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}


def _obey(sentry: Sentry, outbox: Outbox, line: bytes) -> None:
    word, _, value = line.partition(b" ")
    if word == b"drop":
        sentry.holder.let_go(json.loads(value))
    elif word == b"spare":
        sentry.keeper.spare_bytes = int(value)
    elif word == b"mark":
        sentry.take_events()
        outbox.say(sighting.MARK, why=value.decode())


if __name__ == "__main__":
    sys.exit(main())
