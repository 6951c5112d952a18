"""The sentry's process, as the agent has it: started, read, told, started again when it dies."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from gpu_train.capture.watch import sighting
from gpu_train.capture.watch.sighting import Sighting
from gpu_train.environment import current
from gpu_train.process import module_command, module_environment

READY_S = 30.0
"""How long a new sentry may take to look at everything that is there."""

AGAIN_S = 1.0
"""A sentry that died is started again not before so long after its start."""

SYNC_S = 10.0

DROPS = 10_000
"""So many of the last files that a sentry was to give back are known, so that its death leaves none of them."""

_READ_BYTES = 1 << 20


class Lookout:
    """One sentry at a time for one job. Used by one thread, as a context manager.

    Attributes:
        blind: why not everything is watched, in words; empty when it is.
        is_poked: whether the job has something to tell in its control folder; whoever looks sets it back.
        began_ns: when the sentry was started (wall clock).
    """

    def __init__(self, root: Path, pins: Path, control: Path, job_id: str) -> None:
        self.blind = ""
        self.is_poked = True
        self.began_ns = 0
        self._command = module_command(
            "gpu_train.capture.watch", "--root", str(root), "--pins", str(pins), "--control", str(control),
            "--job", job_id,
        )  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._buffer = b""
        self._marks = 0
        self._spare_bytes = 0
        self._told: list[Sighting] = []
        self._notices: list[str] = []
        self._places: list[Path] = []
        self._dropped: deque[str] = deque(maxlen=DROPS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start a sentry. It comes before the training where it can, so start it before giving way to that."""
        self._buffer = b""
        self._began, self.began_ns = time.monotonic(), time.time_ns()
        self._process = subprocess.Popen(
            self._command, env=module_environment(current()), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            start_new_session=True,  # so that it does not share the agent's priority (`_be_polite`)
        )  # fmt: skip
        os.set_blocking(self._out, False)
        if self._spare_bytes:
            self._tell(f"spare {self._spare_bytes}")

    def wait_ready(self) -> None:
        """Wait until everything is watched that can be; `read` has what was seen meanwhile."""
        self._read_until(lambda seen: seen.kind == sighting.END, READY_S)

    @property
    def is_watching(self) -> bool:
        """Whether a sentry sees everything."""
        return self._process is not None and not self.blind

    def fileno(self) -> int | None:
        """Readable when there are sightings, or the sentry is dead; None when there is no sentry."""
        return None if self._process is None else self._out

    def read(self) -> list[Sighting]:
        """What was seen since the last call, never waiting. A dead sentry is started again, when it is time."""
        if self._process is None:
            if time.monotonic() - self._began < AGAIN_S:
                return []
            self.start()
        self._take()
        told, self._told = self._told, []
        return told

    def sync(self) -> list[Sighting]:
        """What was seen up to now, all of it: waits for the sentry to have dealt with all that has happened."""
        self._marks += 1
        mark = str(self._marks)
        self._tell(f"mark {mark}")
        self._read_until(lambda seen: seen.kind == sighting.MARK and seen.why == mark, SYNC_S)
        told, self._told = self._told, []
        return told

    def notices(self) -> list[str]:
        """What a person should know, once each."""
        notices, self._notices = self._notices, []
        return notices

    def places(self) -> list[Path]:
        """The folders with pins on other file systems that were made, once each."""
        places, self._places = self._places, []
        return places

    def drop(self, hold: str) -> None:
        """Give back what holds a file: a link, or a descriptor of the sentry's.

        The sentry does it: it must never wait for a folder that a process of lower priority has locked.
        """
        if self._process is not None:
            self._dropped.append(hold)
            self._tell(f"drop {json.dumps(hold)}")
        else:
            _remove(hold)

    def spare(self, size_bytes: int) -> None:
        """Set how much of a disk copies must leave free; sentries that come after this one are told as well."""
        if size_bytes != self._spare_bytes:
            self._spare_bytes = size_bytes
            self._tell(f"spare {size_bytes}")

    def close(self) -> None:
        """End the sentry."""
        if self._process is not None:
            self._end()

    @property
    def _out(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _tell(self, word: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it is dead, and its end will be read
                self._process.stdin.write(word.encode() + b"\n")

    def _read_until(self, is_it: Callable[[Sighting], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        done = len(self._told)
        while self._process is not None and (left_s := deadline - time.monotonic()) > 0:
            if any(is_it(seen) for seen in self._told[done:]):
                return
            done = len(self._told)
            poll = select.poll()
            poll.register(self._out, select.POLLIN)
            poll.poll(left_s * 1000)
            self._take()

    def _take(self) -> None:
        while self._process is not None:
            try:
                data = os.read(self._out, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                code = self._end()
                while self._dropped:  # it may not have come to all of them
                    _remove(self._dropped.pop())
                self._told.append(Sighting(sighting.DIED, time.monotonic()))
                self._notices.append(
                    f"the process that watches files ended ({code}) and is started again; "
                    "checkpoints that lived meanwhile may have been missed"
                )
                return
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._heard(Sighting.decode(line))

    def _heard(self, seen: Sighting) -> None:
        if seen.kind == sighting.POKE:
            self.is_poked = True
        elif seen.kind == sighting.NOTICE:
            self._notices.append(seen.why)
        elif seen.kind == sighting.PLACE:
            self._places.append(Path(seen.hold))
        elif seen.kind == sighting.BLIND:
            if not self.blind:
                self._notices.append(f"not all folders can be watched, so they are looked at by turns: {seen.why}")
            self.blind = seen.why
        else:
            if seen.kind == sighting.BEGIN:
                self.blind = ""
            self._told.append(seen)

    def _end(self) -> int | None:
        """Let the sentry end; its exit code."""
        process, self._process = self._process, None
        assert process is not None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        try:
            return process.wait(AGAIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _remove(hold: str) -> None:
    with suppress(OSError):  # it is gone, or was a descriptor
        os.unlink(hold)  # noqa: PTH108  thousands of times
