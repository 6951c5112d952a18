"""Metrics: numbers that a training reported, in the order in which they arrived."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gpu_train.tables.row import forget_rows, from_row, job_prefix, next_seq, numbered_key, seq_of, to_row
from gpu_train_cas.registry import Registry, Txn


class Metric(NamedTuple):
    """One report.

    Attributes:
        time_ns: when, nanoseconds since the epoch.
        step: the training step, None when none was told.
        values: name -> number.
        source: "log" (gpu_train.log) or "trainer_state" (read out of a captured checkpoint).
        end: byte offset in metrics.jsonl behind the line that it was read from; 0 for other sources.
        seq: its number within the job, from 1.
    """

    time_ns: int
    step: int | None
    values: Mapping[str, float] = {}
    source: str = "log"
    end: int = 0
    seq: int = 0

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Metric:
        """Read a row back."""
        return from_row(cls, row)


MetricList = list[Metric]  # a name of its own: within the class `list` is a method


class Metrics:
    """The table of metrics. Nothing is ever changed, only added."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.table = registry.table("metrics")

    def list(self, job_id: str, *, after: int = 0) -> MetricList:
        """A job's metrics, oldest first, from the one behind number `after`."""
        with self._registry.read() as txn:
            return list(self.scan(txn, job_id, after=after))

    def scan(self, txn: Txn, job_id: str, *, after: int = 0) -> Iterator[Metric]:
        """`list` within a transaction."""
        start = numbered_key(job_id, after + 1)
        for key, row in self.table.scan(txn, job_prefix(job_id), start=start):
            yield Metric.from_row({**row, "seq": seq_of(key)})

    def read_to(self, txn: Txn, job_id: str) -> int:
        """The offset in metrics.jsonl up to which lines are in the table."""
        rows = self.table.scan(txn, job_prefix(job_id), reverse=True)
        return next((int(row["end"]) for _, row in rows if row["end"]), 0)

    def add_in(self, txn: Txn, job_id: str, metrics: Iterable[Metric]) -> None:
        """Append in order, as part of a write transaction."""
        seq = next_seq(self.table, txn, job_id)
        for at, metric in enumerate(metrics, seq):
            row = to_row(metric)
            del row["seq"]
            self.table.put(txn, numbered_key(job_id, at), row)

    def forget(self, job_id: str) -> None:
        """Delete all of a job that goes for good, some thousands at a time."""
        forget_rows(self._registry, self.table, job_id)

    def add(self, job_id: str, metrics: Iterable[Metric]) -> None:
        """Append in order."""
        with self._registry.write() as txn:
            self.add_in(txn, job_id, metrics)


class Known:
    """The reports of one job in memory, by name and step, so that a growing number of them is read only once."""

    def __init__(self) -> None:
        self._values: dict[str, dict[int, float]] = {}
        self._steps: dict[str, list[int]] = {}
        self._last: dict[str, float] = {}

    def add(self, metric: Metric) -> None:
        """Take in the next report."""
        step = _place(metric.step)
        for name, value in metric.values.items():
            values = self._values.setdefault(name, {})
            if step not in values:
                insort(self._steps.setdefault(name, []), step)
            values[step] = value
            self._last[name] = value

    def has(self, step: int | None, name: str) -> bool:
        """Whether there is a report of that name at that step."""
        return _place(step) in self._values.get(name, ())

    def at(self, step: int | None) -> dict[str, float]:
        """For each name the value last known at `step`: of the highest step not above it, the newest report.

        Without a step, the newest report of each name.
        """
        if step is None:
            return dict(self._last)
        return {name: value for name, (_, value) in self.at_steps(step).items()}

    def at_steps(self, step: int | None) -> dict[str, tuple[int, float]]:
        """`at`, with the step that each value is of; -1 stands for none."""
        if step is None:
            return {name: (-1, value) for name, value in self._last.items()}
        found = {}
        for name, steps in self._steps.items():
            if at := bisect_right(steps, step):
                found[name] = (steps[at - 1], self._values[name][steps[at - 1]])
        return found


def _place(step: int | None) -> int:
    return -1 if step is None else step
