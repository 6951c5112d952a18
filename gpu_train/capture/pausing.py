"""Telling that storing waits for room, and that it goes on: once, and not for waits that nobody would notice."""

from __future__ import annotations

import time

from gpu_train.capture.board import Paused
from gpu_train.capture.foresight import STORAGE, OnEvent

TELL_S = 1.0
"""A pause that lasts for less is not told of."""

QUIET_S = 60.0
"""Nor is another one so soon after the last: where there is room for just one save, each one pauses storing."""


class Pausing:
    """The pauses of one job's storing. Used by one thread."""

    def __init__(self, event: OnEvent) -> None:
        self._event = event
        self._told: Paused | None = None
        self._told_at = 0.0

    def look(self, paused: Paused | None) -> None:
        """How it is now."""
        if paused is None:
            if self._told is not None:
                self._event(STORAGE, "there is room again, storing goes on", is_paused=False)
            self._told = None
            return
        is_news = self._told is None and (time.monotonic() - self._told_at > QUIET_S or not self._told_at)
        is_other = self._told is not None and self._told.is_last != paused.is_last
        if (is_news or is_other) and time.time_ns() - paused.since_ns > TELL_S * 1e9:
            self._told, self._told_at = paused, time.monotonic()
            self._event(
                STORAGE, str(paused), free_bytes=paused.free_bytes, kept_bytes=paused.kept_bytes,
                wants_bytes=paused.wants_bytes, is_paused=True,
            )  # fmt: skip
