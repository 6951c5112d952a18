"""Spans of time as people write them: `90`, `90s`, `15m`, `2h`, `7d`, `1h30m`."""

from __future__ import annotations

import re

UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PART = re.compile(rf"({_NUMBER})\s*([smhdw])\s*")


def parse_duration(text: str) -> float:
    """The seconds that a text means; a bare number counts seconds.

    Raises:
        ValueError: for anything else, saying what is expected.
    """
    said = text.strip().lower()
    if re.fullmatch(_NUMBER, said):
        return float(said)
    if said and not _PART.sub("", said):
        return sum(float(number) * UNITS[unit] for number, unit in _PART.findall(said))
    raise ValueError(f"{text!r} is no duration; write 90s, 15m, 2h or 7d")


def duration_text(seconds: float) -> str:
    """A text that `parse_duration` reads as so many seconds: `2d`, `90m`, `45s`."""
    for name in "dhm":
        if seconds >= UNITS[name] and seconds % UNITS[name] == 0:
            return f"{int(seconds // UNITS[name])}{name}"
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
