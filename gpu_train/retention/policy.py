"""Which checkpoints are worth keeping: policies in the words of Orbax, as pure functions over a job's rows.

    AnyOf((LatestN(3), BestN("eval_loss", 2), EveryNSteps(1000)))

Each policy is asked for all whole checkpoints of one job, in any order, and gives those that it preserves with the
reason in words; one that no policy preserves may go. What is preserved stays preserved when others have gone: a
policy applied twice says the same. None reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple, Protocol

from gpu_train.duration import duration_text
from gpu_train.tables.checkpoint import Checkpoint, mode_of

NS = 10**9
Reasons = Mapping[int, str]
"""Why checkpoints are preserved, by their numbers within the job."""


class Policy(Protocol):
    """Says which checkpoints of a job are preserved."""

    def preserved(self, checkpoints: Sequence[Checkpoint]) -> Reasons:
        """Of the whole checkpoints of one job, those to be preserved."""
        ...


class LatestN(NamedTuple):
    """The last `n` by the order in which they were stored."""

    n: int

    def preserved(self, checkpoints: Sequence[Checkpoint]) -> Reasons:
        """See `Policy`."""
        newest = sorted(checkpoints, key=lambda c: c.seq, reverse=True)[: self.n]
        return {c.seq: f"among the latest {self.n}" for c in newest}


class BestN(NamedTuple):
    """The `n` with the best metric, of equals the newest; `mode` is "min" or "max", "" goes by the metric's name.

    A value may come later than its checkpoint: one without it is preserved while none that was stored after it has a
    value. A value that is no finite number is the worst.
    """

    metric: str
    n: int = 1
    mode: str = ""

    def preserved(self, checkpoints: Sequence[Checkpoint]) -> Reasons:
        """See `Policy`."""
        scored = [c for c in checkpoints if _is_number(c.metrics.get(self.metric))]
        sign = 1 if (self.mode or mode_of(self.metric)) == "min" else -1
        finite = [c for c in scored if isfinite(c.metrics[self.metric])]
        best = sorted(finite, key=lambda c: (sign * c.metrics[self.metric], -c.seq))[: self.n]
        last = max((c.seq for c in scored), default=0)
        waiting = [c for c in checkpoints if c.seq > last]
        return {c.seq: f"its {self.metric} is not known yet" for c in waiting} | {
            c.seq: f"among the best {self.n} by {self.metric} ({c.metrics[self.metric]:.6g})" for c in best
        }


class EveryNSteps(NamedTuple):
    """Those whose step is a multiple of `n`; of several contents of one name at one step the newest."""

    n: int

    def preserved(self, checkpoints: Sequence[Checkpoint]) -> Reasons:
        """See `Policy`."""
        newest: dict[tuple[str, int], Checkpoint] = {}
        for c in sorted(checkpoints, key=lambda c: c.seq):
            if c.step is not None and c.step % self.n == 0:
                newest[c.base_name, c.step] = c
        return {c.seq: f"its step is a multiple of {self.n}" for c in newest.values()}


class EveryNSeconds(NamedTuple):
    """The first one, and each that was made at least `seconds` after the last that this preserves."""

    seconds: float

    def preserved(self, checkpoints: Sequence[Checkpoint]) -> Reasons:
        """See `Policy`."""
        found: dict[int, str] = {}
        due_ns = 0
        for c in sorted(checkpoints, key=lambda c: (made_ns(c), c.seq)):
            if not found or made_ns(c) >= due_ns:
                found[c.seq] = f"one in {duration_text(self.seconds)}"
                due_ns = made_ns(c) + round(self.seconds * NS)
        return found


class LatestDuration(NamedTuple):
    """Those that were made within `seconds` of the newest."""

    seconds: float

    def preserved(self, checkpoints: Sequence[Checkpoint]) -> Reasons:
        """See `Policy`."""
        since_ns = max(map(made_ns, checkpoints), default=0) - round(self.seconds * NS)
        recent = [c for c in checkpoints if made_ns(c) >= since_ns]
        return {c.seq: f"within {duration_text(self.seconds)} of the newest" for c in recent}


class AnyOf(NamedTuple):
    """What any of several policies preserves, with the reason of the first that does."""

    policies: tuple[Policy, ...]

    def preserved(self, checkpoints: Sequence[Checkpoint]) -> Reasons:
        """See `Policy`."""
        found: dict[int, str] = {}
        for policy in self.policies:
            found = {**policy.preserved(checkpoints), **found}
        return found


def made_ns(checkpoint: Checkpoint) -> int:
    """When a checkpoint was made: its newest file's time; when it was stored, where that is not known or cannot be."""
    created, committed = checkpoint.created_ns, checkpoint.committed_ns
    return min(created, committed) if created > 0 and committed > 0 else max(created, committed)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
