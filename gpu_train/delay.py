"""What holds a job's last capture up: it waits for room on a full disk without end."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress

from gpu_train.capture.board import read_board
from gpu_train.home import Home

SLOW_S = 5.0
"""After how long a person who waits for a last capture is told why."""

FULL_BYTES = 1 << 20
NOTES = {"is_short", "is_paused"}
"""The fields of events about room that hold nothing up themselves: forecasts, and what the agent tells on its board."""


def reason_for_delay(home: Home, job_id: str) -> str:
    """In words, with a colon before them, what holds the last capture up; empty when it just takes its time."""
    with suppress(OSError, ValueError):
        if shutil.disk_usage(home.root).free < FULL_BYTES:
            return f": the disk with {home.root} is full, free some and it goes on"
        notice = read_board(home.control(job_id))
        if notice.is_current and notice.paused is not None:
            return f": {notice.paused}"
        lines = (home.logs(job_id) / "events.jsonl").read_bytes().splitlines()
        told = [line for line in map(json.loads, lines) if line.get("kind") in ("storage", "captured")]
        told = [line for line in told if not NOTES & line.get("fields", {}).keys()]
        if told and told[-1]["kind"] == "storage":
            return f": {told[-1]['text']}"
    return ""
