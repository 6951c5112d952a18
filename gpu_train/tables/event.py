"""Events: what happened to a job, told by the job itself or by gpu-train."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gpu_train.tables.row import forget_rows, from_row, job_prefix, next_seq, numbered_key, seq_of, to_row
from gpu_train_cas.registry import Registry, Txn


class Event(NamedTuple):
    """One thing that happened.

    Attributes:
        time_ns: when, nanoseconds since the epoch.
        text: in words, for people.
        kind: "note" for gpu_train.event; else started, ended, captured, incomplete, gone, removed, agent,
            storage, signal, data, sink.
        source: "job" or "gpu-train".
        fields: facts for programs, such as a checkpoint's name and size.
        end: byte offset in events.jsonl behind the line that it was read from.
        seq: its number within the job, from 1.
    """

    time_ns: int
    text: str
    kind: str = "note"
    source: str = "gpu-train"
    fields: Mapping[str, Any] = {}
    end: int = 0
    seq: int = 0

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Event:
        """Read a row back."""
        return from_row(cls, row)


EventList = list[Event]  # a name of its own: within the class `list` is a method


class Events:
    """The table of events. Nothing is ever changed, only added; the log file in the job's folder comes first."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.table = registry.table("events")

    def list(self, job_id: str, *, after: int = 0, kind: str | None = None) -> EventList:
        """A job's events, oldest first, from the one behind number `after`."""
        with self._registry.read() as txn:
            return [e for e in self.scan(txn, job_id, after=after) if kind is None or e.kind == kind]

    def scan(self, txn: Txn, job_id: str, *, after: int = 0) -> Iterator[Event]:
        """`list` within a transaction."""
        start = numbered_key(job_id, after + 1)
        for key, row in self.table.scan(txn, job_prefix(job_id), start=start):
            yield Event.from_row({**row, "seq": seq_of(key)})

    def read_to(self, txn: Txn, job_id: str) -> int:
        """The offset in events.jsonl up to which lines are in the table."""
        rows = self.table.scan(txn, job_prefix(job_id), reverse=True)
        return next((int(row["end"]) for _, row in rows if row["end"]), 0)

    def add_in(self, txn: Txn, job_id: str, events: Iterable[Event]) -> None:
        """Append in order, as part of a write transaction."""
        seq = next_seq(self.table, txn, job_id)
        for at, event in enumerate(events, seq):
            row = to_row(event)
            del row["seq"]
            self.table.put(txn, numbered_key(job_id, at), row)

    def forget(self, job_id: str) -> None:
        """Delete all of a job that goes for good, some thousands at a time."""
        forget_rows(self._registry, self.table, job_id)

    def add(self, job_id: str, events: Iterable[Event]) -> None:
        """Append in order."""
        with self._registry.write() as txn:
            self.add_in(txn, job_id, events)
