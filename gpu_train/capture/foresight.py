"""Telling in time that a disk will not last for the run: after the first checkpoint, and whenever that changes."""

from __future__ import annotations

from typing import Protocol

from gpu_train.room import room_for, shortage
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import GpuTrainError

STORAGE = "storage"


class OnEvent(Protocol):
    """Notes in the job's event log what happened."""

    def __call__(self, kind: str, text: str, **fields: object) -> None:
        """`kind` is for programs, `text` for people, `fields` are facts."""
        ...


class Foresight:
    """Looks ahead for one job. Used by one thread."""

    def __init__(self, workspace: Workspace, job_id: str, event: OnEvent) -> None:
        self._workspace = workspace
        self._job_id = job_id
        self._event = event
        self._was_short = False

    def look(self) -> None:
        """A checkpoint was stored: tell if the disks will not last, or will after all."""
        try:
            job = self._workspace.jobs.get(self._job_id)
            room = None if job is None else room_for(self._workspace, job)
        except (OSError, GpuTrainError):  # a forecast that cannot be made must not end the watch
            return
        if room is None or room.saves is None:
            return
        short = shortage(room)
        for text in short if not self._was_short else ():
            self._event(STORAGE, text, saves_to_come=room.saves.left, is_short=True)
        if self._was_short and not short:
            self._event(STORAGE, "the disks last after all, as saves are now", is_short=False)
        self._was_short = bool(short)
