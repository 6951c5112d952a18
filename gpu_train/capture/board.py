"""What a job's agent has in its hands: checkpoints that were seen and are not stored yet, in control/in-hand.json.

It is for others to read while the agent works, and for the next agent when this one dies: a name that stands here, and
is neither stored nor on the disk then, was lost. The file is replaced whenever something in it changes, but not
pushed to the disk: after a crash of the machine it may be an older one or not there, and all that depends on it is what
can be told.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpu_train.process import boot_id, is_alive, start_time
from gpu_train.size import AUTO, Size, size_text
from gpu_train.tables.row import from_row
from gpu_train_cas.filesystem import replacing

WRITING = "writing"
SETTLED = "settled"
STORING = "storing"

IN_HAND = "in-hand.json"
GROWTH_S = 1.0
"""How often growing sizes are written down; a change of state is at once."""


class InHand(NamedTuple):
    """A checkpoint between its first file and its place in the store.

    Attributes:
        name: its path below the checkpoint folder.
        state: "writing" (seen, not known to be finished), "settled" (its fate is known, it waits for the store) or
            "storing".
        seen_ns: when its first file was seen. since_ns: since when it is in that state.
        path: where the trainer has or had it. inode: device and inode there, by which it is known again when it was
            renamed; [0, 0] for files among others.
        size_bytes: of the files seen so far.
        is_pinned: whether links or copies hold all that was seen of it.
        fingerprint: of its files once it is settled (`finder.fingerprint_of`); else "".
    """

    name: str
    state: str
    seen_ns: int
    since_ns: int = 0
    path: str = ""
    size_bytes: int = 0
    is_pinned: bool = False
    fingerprint: str = ""
    inode: Sequence[int] = (0, 0)


class Paused(NamedTuple):
    """Nothing is being stored, since a disk has not the room.

    Attributes:
        since_ns: since when.
        path: where the disk is; free_bytes: what was free of it then.
        kept_bytes: what is to stay free; wants_bytes: what the next checkpoint takes at least.
        is_last: whether the job has ended, so that nothing is kept for a trainer any more.
    """

    since_ns: int
    path: str
    free_bytes: int
    kept_bytes: int
    wants_bytes: int = 0
    is_last: bool = False

    def __str__(self) -> str:
        for_what = "rows, logs and other running jobs"
        for_what = for_what if self.is_last else "the trainer's next save (capture.reserve_bytes)"
        kept = f"{size_text(self.kept_bytes)} are kept for {for_what}"
        wants = f", and the next checkpoint takes {size_text(self.wants_bytes)}" if self.wants_bytes else ""
        return (
            f"storing is paused: the disk with {self.path} has {size_text(self.free_bytes)} free, {kept}{wants}; free "
            "some and it goes on by itself (`gpu-train checkpoints prune`, `gpu-train reclaim`, `gpu-train gc`)"
        )


class Notice(NamedTuple):
    """What was on the board.

    Attributes:
        pid, pid_start, boot_id, time_ns: which process wrote it, and when.
        in_hand: what it had in its hands.
        paused: why it stored nothing.
        reserve_bytes: what it kept free of the disk that the trainer writes to.
        max_pin_bytes: the setting of what its pins may hold.
    """

    pid: int | None = None
    pid_start: int | None = None
    boot_id: str = ""
    time_ns: int = 0
    in_hand: tuple[InHand, ...] = ()
    paused: Paused | None = None
    reserve_bytes: int = 0
    max_pin_bytes: Size = AUTO

    def as_json(self) -> bytes:
        """What `read_board` reads."""
        paused = None if self.paused is None else self.paused._asdict()
        row = {**self._asdict(), "in_hand": [one._asdict() for one in self.in_hand], "paused": paused}
        return json.dumps(row).encode()

    @property
    def is_current(self) -> bool:
        """Whether the agent that wrote it is alive."""
        return is_alive(self.pid, self.pid_start, self.boot_id)


class Board:
    """The writer's side; for the agent, which is one thread.

    Attributes:
        before: what an earlier agent had put up. It stays up, under the new agent's name, until the first `show`.
    """

    def __init__(self, control: Path, max_pin_bytes: Size = AUTO) -> None:
        self._path = control / IN_HAND
        self._me = Notice(os.getpid(), start_time(os.getpid()), boot_id(), max_pin_bytes=max_pin_bytes)
        self._shown: Notice | None = None
        self.before = read_board(control)
        self._since = {(one.name, one.seen_ns): (one.state, one.since_ns) for one in self.before.in_hand}
        self._wrote = 0.0
        self.show(self.before.in_hand)

    def show(self, in_hand: Iterable[InHand], paused: Paused | None = None, reserve_bytes: int = 0) -> None:
        """Put up what is in hand now, and how there is room. A full disk leaves what was there."""
        dated = tuple(self._dated(one) for one in in_hand)
        self._since = {(one.name, one.seen_ns): (one.state, one.since_ns) for one in dated}
        now = self._me._replace(in_hand=dated, paused=paused, reserve_bytes=reserve_bytes)
        grown_only = self._shown is not None and _states(now) == _states(self._shown)
        if now == self._shown or (grown_only and time.monotonic() - self._wrote < GROWTH_S):
            return
        with suppress(OSError), replacing(self._path, durable=False) as file:
            file.write(now._replace(time_ns=time.time_ns()).as_json())
            self._shown, self._wrote = now, time.monotonic()

    def _dated(self, one: InHand) -> InHand:
        state, since_ns = self._since.get((one.name, one.seen_ns), ("", 0))
        if state == one.state:
            return one._replace(since_ns=since_ns)
        return one._replace(since_ns=one.seen_ns if one.state == WRITING else time.time_ns())


def read_board(control: Path) -> Notice:
    """What the job's agent, or the last one it had, has put up; an empty notice when there is none."""
    try:
        row = json.loads((control / IN_HAND).read_bytes())
        in_hand = tuple(from_row(InHand, one) for one in row["in_hand"])
        paused = from_row(Paused, row["paused"]) if row.get("paused") else None
        return from_row(Notice, {**row, "in_hand": in_hand, "paused": paused})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Notice()


def _states(notice: Notice) -> tuple[int, int, list[tuple[str, int, str]]]:
    since_ns = 0 if notice.paused is None else notice.paused.since_ns
    return since_ns, notice.reserve_bytes, [(one.name, one.seen_ns, one.state) for one in notice.in_hand]
