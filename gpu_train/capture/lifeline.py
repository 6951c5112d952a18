"""The pipe by which a runner speaks to its agent, and by whose end the agent learns of the runner's death."""

from __future__ import annotations

import json
import os
import select
from typing import Any


class Lifeline:
    """The reading end. Words are JSON maps, one a line."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""
        self.is_cut = False

    def fileno(self) -> int:
        """Readable when there are words, or at the pipe's end."""
        return self._fd

    def listen(self, timeout_s: float) -> list[dict[str, Any]]:
        """The words that came within the time; at the first ones it returns. Sets `is_cut` at the pipe's end."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return []
        data = os.read(self._fd, 65536)
        self.is_cut = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]
