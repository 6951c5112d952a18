"""A job's logs as plain objects in a sink: what it printed, its events and its metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from gpu_train.sinks.key import log_key
from gpu_train.sinks.objects.content import Content, Held, Lazy
from gpu_train.sinks.objects.objectstore import ObjectStore, OnBytes, Put
from gpu_train.workspace import Workspace

STDOUT, EVENTS, METRICS = "stdout.log", "events.jsonl", "metrics.jsonl"


def push_logs(workspace: Workspace, objects: ObjectStore, job_id: str, on_bytes: OnBytes = lambda count: None) -> int:
    """Send a job's logs as they are now; how many bytes they have.

    Events and metrics are those of the registry, one JSON object a line: also what checkpoints told of is in them.

    Raises:
        SinkFailed: when the sink failed.
    """
    puts = []
    printed = _printed(workspace.home.logs(job_id) / STDOUT)
    if printed is not None:
        puts.append(Put(log_key(job_id, STDOUT), printed))
    for name, lines in ((EVENTS, _events(workspace, job_id)), (METRICS, _metrics(workspace, job_id))):
        puts.append(Put(log_key(job_id, name), Held(b"".join(lines))))
    objects.put(puts, on_bytes)
    return sum(put.content.size_bytes for put in puts)


def _printed(path: Path) -> Content | None:
    """What was printed up to now; the job may go on printing."""
    try:
        size_bytes = path.stat().st_size
    except OSError:
        return None

    def read(length: int, offset: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(min(length, max(0, size_bytes - offset)))

    return Lazy(size_bytes, read)


def _events(workspace: Workspace, job_id: str) -> Iterator[bytes]:
    for event in workspace.events.list(job_id):
        yield _line({
            "time_ns": event.time_ns, "kind": event.kind, "source": event.source, "text": event.text,
            "fields": dict(event.fields),
        })  # fmt: skip


def _metrics(workspace: Workspace, job_id: str) -> Iterator[bytes]:
    for metric in workspace.metrics.list(job_id):
        yield _line({"time_ns": metric.time_ns, "step": metric.step, "values": dict(metric.values)})


def _line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode() + b"\n"
