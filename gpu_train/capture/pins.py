"""Where a job's pins lie, and how much of the disk they alone hold.

Most lie in the job's own folder; where checkpoints are on another file system, in a hidden folder there, which is noted
in the job's control folder so that it is found again after a crash.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu_train.active import append_line
from gpu_train.capture.candidate import ABOUT
from gpu_train.capture.tail import Tail
from gpu_train.home import Home

_NOTES = "pin-places.jsonl"


@dataclass(frozen=True, slots=True)
class PinUse:
    """What a job's pins hold.

    Attributes:
        files: how many files are pinned.
        held_bytes: of those whose only name is the pin: what the disk would get back without it.
    """

    files: int = 0
    held_bytes: int = 0


def places_of(home: Home, job_id: str) -> list[Path]:
    """The folders with a job's pins, its own first."""
    notes = Tail(home.control(job_id) / _NOTES)
    return [home.pins(job_id), *(Path(line["path"]) for line, _ in notes.read() if isinstance(line.get("path"), str))]


def note_place(home: Home, job_id: str, place: Path) -> None:
    """Remember a folder with pins on another file system."""
    if place not in places_of(home, job_id):
        with suppress(OSError):  # a full disk: it is only looked for after a crash
            append_line(home.control(job_id) / _NOTES, {"path": str(place)})


def usage(home: Home, job_id: str) -> PinUse:
    """What a job's pins hold now."""
    files = held_bytes = 0
    for place in places_of(home, job_id):
        for folder, _, names in os.walk(place):
            for name in names if names != [ABOUT] else ():
                with suppress(OSError):  # it was freed this moment
                    found = os.stat(f"{folder}/{name}", follow_symlinks=False)
                    files += 1
                    held_bytes += found.st_size if found.st_nlink == 1 else 0
    return PinUse(files, held_bytes)
