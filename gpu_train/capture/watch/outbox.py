"""The sentry's side of the pipe to the agent: nothing is lost, and nobody waits for the other side."""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from contextlib import suppress
from typing import Any

from gpu_train.capture.watch.folders import Folder
from gpu_train.capture.watch.sighting import Sighting

PIPE_BYTES = 1 << 20
_BATCH = 64


class Outbox:
    """Sightings on their way. What the pipe does not take is kept until it does.

    `now` is the time that they get, in monotonic seconds.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.now = time.monotonic()
        self._lines: deque[bytes] = deque()
        os.set_blocking(fd, False)
        with suppress(OSError):  # it is a wish: the usual 64 KiB do as well
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def is_empty(self) -> bool:
        """Whether the agent has, or can have, everything."""
        return not self._lines

    def say(self, kind: str, **fields: Any) -> None:
        """Tell something, by the next `flush` at the earliest; `fields` are those of a `Sighting`."""
        self._lines.append(Sighting(kind, self.now, **fields).encode())

    def tell(self, kind: str, folder: Folder, name: bytes, **fields: Any) -> None:
        """Tell something about a name in a folder."""
        self.say(kind, folder=folder.told, name=os.fsdecode(name), **fields)

    def flush(self) -> None:
        """Write as much as the pipe takes.

        Raises:
            BrokenPipeError: when nobody reads any more.
        """
        while self._lines:
            part = b"".join(self._lines[i] for i in range(min(_BATCH, len(self._lines))))
            try:
                written = os.write(self.fd, part)
            except BlockingIOError:
                return
            while self._lines and written >= len(self._lines[0]):
                written -= len(self._lines.popleft())
            if written:
                self._lines[0] = self._lines[0][written:]
