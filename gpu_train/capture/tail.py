"""Reading on in a file to which other processes append lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20
LINE_LIMIT_BYTES = 16 << 20
"""A longer line is skipped: no report is, and memory must not depend on what a job writes."""


class Tail:
    """The lines of a file from an offset on; a line counts once its newline is there."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.bad_lines = 0

    def read(self) -> Iterator[tuple[dict[str, Any], int]]:
        """The new lines that are JSON maps, each with the offset behind it. `offset` moves along."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                while line := file.readline(LINE_LIMIT_BYTES):
                    if not line.endswith(b"\n"):
                        if len(line) < LINE_LIMIT_BYTES:
                            return
                        while line and not line.endswith(b"\n"):
                            line = file.readline(CHUNK_BYTES)
                        line = b""
                    self.offset = file.tell()
                    value = _parsed(line)
                    if value is None:
                        self.bad_lines += 1
                    else:
                        yield value, self.offset
        except FileNotFoundError:
            return


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
