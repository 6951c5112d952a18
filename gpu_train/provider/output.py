"""What a job prints: kept byte for byte in one log, and passed on live to where the runner's own output goes."""

from __future__ import annotations

import io
import os
import select
import sys
from pathlib import Path
from typing import IO, Any

CHUNK_BYTES = 64 << 10


class Outlet:
    """A stream of ours that takes bytes; once it breaks (the terminal was closed) it takes them no more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._open = stream is not None
        try:
            self._fd: int | None = stream.fileno() if stream is not None else None
        except (OSError, AttributeError, io.UnsupportedOperation):
            self._fd = None

    def write(self, data: bytes) -> None:
        """Pass bytes on; never raises."""
        if not self._open:
            return
        try:
            if self._fd is not None:
                self._stream.flush()
                self._write_fd(self._fd, data)
            else:
                binary: IO[bytes] | None = getattr(self._stream, "buffer", None)
                if binary is not None:
                    binary.write(data)
                else:
                    self._stream.write(data.decode("utf-8", "replace"))
                self._stream.flush()
        except (OSError, ValueError):
            self._open = False

    @staticmethod
    def _write_fd(fd: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(fd, left) :]
            except BlockingIOError:
                select.select([], [fd], [])


class Output:
    """The two streams of a command, interleaved in the log as they arrive."""

    def __init__(self, log: Path, *, pass_on: bool) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._outlets = [Outlet(sys.stdout), Outlet(sys.stderr)] if pass_on else [Outlet(None), Outlet(None)]
        self.lost_bytes = 0

    def take(self, stream: int, data: bytes) -> None:
        """Keep and pass on what came out of stdout (0) or stderr (1).

        A full disk loses bytes of the log, counted in `lost_bytes`; it never stops the job.
        """
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._log, left) :]
        except OSError:
            self.lost_bytes += len(left)
        self._outlets[stream].write(data)

    def close(self) -> None:
        """Close the log; safe to call twice."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
