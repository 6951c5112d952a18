"""What the job and its runner append to files, brought into the registry: commits, metrics, events."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from gpu_train.active import append_line
from gpu_train.capture.answer import ANSWERS, COMMITS
from gpu_train.capture.commit import Commit
from gpu_train.capture.tail import Tail
from gpu_train.tables.event import Event
from gpu_train.tables.metric import Metric
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import StorageFull
from gpu_train_cas.filesystem import replacing

BATCH = 10_000
TAKE_S = 0.5
"""At most this often: each batch is a commit of the registry."""


class Reports:
    """The three files of a job, each read on from where the registry (or this process) stopped."""

    def __init__(self, workspace: Workspace, job_id: str) -> None:
        self._workspace = workspace
        self._job_id = job_id
        logs, control = workspace.home.logs(job_id), workspace.home.control(job_id)
        self._commits = Tail(control / COMMITS, _number(control / "commits.read"))
        self._commits_read = control / "commits.read"
        self._answers = control / ANSWERS
        self._answered = {line.get("commit") for line, _ in Tail(self._answers).read()}
        with workspace.store.registry.read() as txn:
            metrics, events = workspace.metrics.read_to(txn, job_id), workspace.events.read_to(txn, job_id)
        self._metrics = Tail(logs / "metrics.jsonl", metrics)
        self._events = Tail(logs / "events.jsonl", events)
        self._taken = 0.0

    def commits(self) -> Iterator[Commit]:
        """The commits that the job announced since the last call; what it logged before them has been taken by then."""
        lines = list(self._commits.read())
        if lines:
            with suppress(StorageFull):
                self.take(now=True)
        for line, end in lines:
            commit = _commit(line)
            if commit is not None and commit.id not in self._answered:
                yield commit
            # Noted after it was handed over: an agent that dies in between leaves the commit's pin, and reads it again.
            with suppress(OSError), replacing(self._commits_read, durable=False) as file:
                file.write(str(end).encode())

    def has_commits(self) -> bool:
        """Whether there are bytes behind the last commit that was read."""
        try:
            return self._commits.path.stat().st_size > self._commits.offset and not self._cut_short()
        except OSError:
            return False

    def answer(self, commit: Commit | None, why_lost: str = "") -> None:
        """Tell the job what became of a commit: it is stored, or why it never will be."""
        if commit is None or not commit.id:
            return
        line = {"commit": commit.id, "stored": not why_lost} | ({"why": why_lost} if why_lost else {})
        with suppress(OSError):
            append_line(self._answers, line)

    def take(self, *, now: bool = False) -> None:
        """Bring new metrics and events into the registry, if it is time or `now`.

        Raises:
            StorageFull: when there is no room, but only if asked to do it `now`; nothing is skipped.
        """
        if not now and time.monotonic() - self._taken < TAKE_S:
            return
        self._taken = time.monotonic()
        while True:
            offsets = self._metrics.offset, self._events.offset
            try:
                if not self._take_batch():
                    return
            except StorageFull:
                self._metrics.offset, self._events.offset = offsets
                if now:
                    raise
                return

    def _cut_short(self) -> bool:
        with open(self._commits.path, "rb") as file:
            file.seek(self._commits.offset)
            return b"\n" not in file.read()

    def _take_batch(self) -> bool:
        metrics = [m for m in (_metric(v, end) for v, end in _some(self._metrics)) if m is not None]
        events = [e for e in (_event(v, end) for v, end in _some(self._events)) if e is not None]
        if not metrics and not events:
            return False
        with self._workspace.store.transaction("reports") as txn:
            self._workspace.metrics.add_in(txn.txn, self._job_id, metrics)
            self._workspace.events.add_in(txn.txn, self._job_id, events)
            at: dict[int, dict[str, float]] = defaultdict(dict)
            for metric in metrics:
                if metric.step is not None:
                    at[metric.step].update(metric.values)
            if at:
                self._bring_to_checkpoints(txn, at)
        return True

    def _bring_to_checkpoints(self, txn: Any, at: Mapping[int, Mapping[str, float]]) -> None:
        """Give checkpoints of exactly these steps what was reported after they were stored."""
        for step, values in at.items():
            for row in self._workspace.checkpoints.at_step_in(txn.txn, self._job_id, step):
                late = {k: v for k, v in values.items() if k not in row.own_metrics}
                if late and {**row.metrics, **late} != dict(row.metrics):
                    self._workspace.checkpoints.put_in(txn, row._replace(metrics={**row.metrics, **late}))


def _some(tail: Tail) -> Iterator[tuple[dict[str, Any], int]]:
    """At most a batch of new lines."""
    for count, item in enumerate(tail.read(), 1):
        yield item
        if count == BATCH:
            return


def _number(path: Any) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _commit(line: Mapping[str, Any]) -> Commit | None:
    path = line.get("path")
    if not isinstance(path, str) or not path:
        return None
    tags = line.get("tags")
    return Commit(
        path, _text(line.get("pin")) or None, _step(line.get("step")), _numbers(line.get("metrics")),
        {str(k): str(v) for k, v in tags.items()} if isinstance(tags, dict) else {}, _text(line.get("id")),
        _time(line),
    )  # fmt: skip


def _metric(line: Mapping[str, Any], end: int) -> Metric | None:
    values = _numbers(line.get("values"))
    return Metric(_time(line), _step(line.get("step")), values, "log", end) if values else None


def _event(line: Mapping[str, Any], end: int) -> Event | None:
    fields = line.get("fields")
    text = _text(line.get("text"))
    return Event(
        _time(line), text, _text(line.get("kind")) or "note", _text(line.get("source")) or "job",
        fields if isinstance(fields, dict) else {}, end,
    )  # fmt: skip


def _numbers(values: Any) -> dict[str, float]:
    if not isinstance(values, dict):
        return {}
    return {
        str(k): v
        for k, v in values.items()
        if isinstance(v, float) or (isinstance(v, int) and not isinstance(v, bool) and -(2**63) <= v < 2**63)
    }


def _time(line: Mapping[str, Any]) -> int:
    when = line.get("time_ns")
    return when if isinstance(when, int) and 0 <= when < 2**63 else time.time_ns()


def _step(step: Any) -> int | None:
    whole = isinstance(step, int) or (isinstance(step, float) and math.isfinite(step))
    return int(step) if whole and not isinstance(step, bool) and abs(step) < 2**63 else None


def _text(text: Any) -> str:
    return text if isinstance(text, str) else ""
