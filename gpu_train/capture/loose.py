"""Letting go of links while the trainer lacks room for its next save, so that what it deletes is room at once.

Some trainers delete an old checkpoint and write the next one into its place right away. A link that is given up only
then is given up too late. So where a disk has less than a save takes, what still lies in the trainer's folder and waits
to be stored is not held: should it go, it is lost, and told. When there is room it is held again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu_train.capture.candidate import Candidate
from gpu_train.capture.headroom import Headroom
from gpu_train.capture.pressure import Pinned, Surrender
from gpu_train.capture.worker import UNHELD


class Loose:
    """The checkpoints of one job that are not held although they wait to be stored. Used by one thread."""

    def __init__(self, headroom: Headroom, if_waiting: Callable[[Candidate, Callable[[], None]], bool]) -> None:
        """`if_waiting` does something to a checkpoint unless it is being stored (`worker.Worker.if_waiting`)."""
        self._headroom = headroom
        self._if_waiting = if_waiting
        self._loose: list[Candidate] = []

    def look(self, waiting: Sequence[Pinned]) -> list[Surrender]:
        """Hold again what there is room for; those that went meanwhile are returned."""
        here = {id(one.candidate) for one in waiting}
        loose = [candidate for candidate in self._loose if id(candidate) in here]
        lost = [candidate for candidate in loose if not candidate.lies_there]
        self._loose = [candidate for candidate in loose if candidate not in lost and not self._held_again(candidate)]
        return [Surrender(candidate, UNHELD) for candidate in lost]

    def let_go(self, waiting: Sequence[Pinned]) -> None:
        """Let go of what still lies there, where there is too little room, and nothing else is left to be given up."""
        for candidate in (one.candidate for one in waiting):
            may_go = candidate.is_held and not candidate.copied and candidate.lies_there
            may_go = may_go and self._headroom.is_cramped(candidate.pin.parent)
            if may_go and self._if_waiting(candidate, candidate.let_go):
                self._loose.append(candidate)

    def _held_again(self, candidate: Candidate) -> bool:
        has_room = self._headroom.squeeze(candidate.pin.parent) is None
        return has_room and self._if_waiting(candidate, candidate.hold_again) and candidate.is_held
