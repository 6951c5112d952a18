"""Knowing, on the first rank, that all ranks have come to the same point.

The ranks leave marks in torch.distributed's own key-value store. That is no collective: the first rank waits with
a deadline and the others not at all, so a rank that never comes, because the callback was given to some ranks
only, costs one wait and hangs nothing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from gpu_train.complaint import complain

PATIENCE_S = 30.0
POLL_S = 0.005


class Meeting:
    """The points at which the ranks of one training meet, told from those of others by a name."""

    def __init__(self, name: str, patience_s: float = PATIENCE_S) -> None:
        self._name = name
        self._patience_s = patience_s

    def is_complete(self, point: str, world_size: int | None = None) -> bool:
        """Leave this rank's mark; on the first rank wait for those of the others, and say whether all came.

        True without torch.distributed, or with one rank. `world_size` is how many ranks the framework knows of:
        when there are more than torch.distributed tells of, there is no store to meet at, and the answer is False.
        """
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return world_size is None or world_size <= 1 or self._in_vain("they do not use torch.distributed")
        ranks, rank = range(1, dist.get_world_size()), dist.get_rank()
        if not ranks:
            return True
        try:
            return self._meet(_store(), [f"gpu-train/{self._name}/{point}/{r}" for r in ranks], rank)
        except Exception as e:  # a backend without a store (MPI), or one that has gone away
            return self._in_vain(f"{type(e).__name__}: {e}")

    def _meet(self, store: Any, marks: list[str], rank: int) -> bool:
        if rank:
            store.set(marks[rank - 1], "here")
            return True
        deadline = time.monotonic() + self._patience_s
        while not store.check(marks):
            if time.monotonic() >= deadline:
                return self._in_vain("not all of them came; give the callback to every rank")
            time.sleep(POLL_S)
        for mark in marks:
            store.delete_key(mark)
        return True

    def _in_vain(self, why: str) -> bool:
        self._patience_s = 0.0
        complain(
            f"meeting {self._name}", f"cannot wait until all ranks have written a checkpoint: {why}. It is not "
            "committed explicitly; capture takes it by its files",
        )  # fmt: skip
        return False


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store  # noqa: PLC0415  imported long ago

    return _get_default_store()
