"""The home's tables as the catalogue that a view is made from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_train import Checkpoint, Job, Workspace
from gpu_train.model import Model
from gpu_train.step import split_version
from gpu_train_cas import Digest, Entry
from gpu_train_cas.errors import NotFound
from gpu_train_fuse.listing import ShownCheckpoint, ShownCode, ShownJob

VERIFIED = "verified"
PRIVATE = ("pid", "pid_start", "runner_pid", "runner_start", "agent_pid", "boot_id")
"""Fields of a job that mean something only to the programs that run it."""


class WorkspaceCatalogue:
    """A `Catalogue` over an open workspace; every answer is read in one transaction of its own.

    Only verified checkpoints are shown: a tool that takes the newest folder of a mount must never get a
    half-written one. Incomplete ones can be had by name with `gpu-train checkpoints restore`.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def stamp(self) -> Hashable:
        """The number of the registry's last commit."""
        with self._workspace.store.registry.read() as txn:
            return int(txn.raw.id())

    def jobs(self) -> Mapping[str, int]:
        """All jobs and when each was made (ns)."""
        return {job.id: job.created_ns for job in self._workspace.jobs.list()}

    def has_job(self, job_id: str) -> bool:
        """Whether there is such a job."""
        job = self._workspace.jobs.get(job_id)
        return job is not None and job.removed_ns is None

    def job(self, job_id: str) -> ShownJob:
        """One job; raises NotFound."""
        job = self._workspace.jobs.get(job_id)
        if job is None or job.removed_ns is not None:
            raise NotFound(f"no job {job_id!r}; `gpu-train jobs` lists what there is")
        table = self._workspace.checkpoints
        rows = table.list(job_id)
        shown = tuple(_shown(c, c.record) for c in rows if c.state == VERIFIED and c.record)
        newest = max((c.created_ns for c in shown), default=0)
        latest = max((c for c in rows if c.state == VERIFIED), key=lambda c: c.seq, default=None)
        best = table.best(job_id, among=rows)
        return ShownJob(
            description=_description(job),
            changed_ns=max(job.created_ns, job.started_ns or 0, job.ended_ns or 0, newest),
            code=self._code_of(job),
            logs=self._workspace.home.logs(job_id),
            checkpoints=shown,
            latest=latest.record if latest else None,
            best=best.record if best else None,
        )

    def _code_of(self, job: Job) -> Digest | None:
        if not job.code:
            return None
        try:
            return self._workspace.code.get(job.code).record
        except NotFound:
            return None

    def code(self) -> Mapping[str, ShownCode]:
        """All code versions."""
        return {v.id: ShownCode(v.record, v.created_ns) for v in self._workspace.code.list()}

    def models(self) -> tuple[ShownCheckpoint, ...]:
        """All models, in the order in which they were registered."""
        shown, seen = [], Counter[str]()
        for sequence, model in enumerate(reversed(self._workspace.models.list()), 1):
            seen[model.name] += 1
            shown.append(_shown_model(model, sequence, seen[model.name]))
        return tuple(shown)

    def root(self, record: Digest) -> Entry:
        """The root directory of a record; raises NotFound or Damaged."""
        return self._workspace.store.record(record).root

    def holding(self, record: Digest) -> AbstractContextManager[None]:
        """Keeps a record that is read from being collected; raises NotFound when it has been."""
        return self._workspace.store.holding(record, "a mount")

    def stored_bytes(self, entry: Entry) -> int:
        """What a file or folder takes in the store by itself."""
        return self._workspace.store.stats([entry]).stored_bytes

    def totals(self) -> tuple[int, int]:
        """Bytes and files of all verified checkpoints, as plain files."""
        rows = [c for c in self._workspace.checkpoints.list() if c.state == VERIFIED]
        return sum(c.size_bytes for c in rows), sum(c.files for c in rows)

    def data(self) -> Path:
        """The folder of the data versions' manifests."""
        return self._workspace.home.data


def _shown(checkpoint: Checkpoint, record: Digest) -> ShownCheckpoint:
    name, version = split_version(checkpoint.name)
    return ShownCheckpoint(
        sequence=checkpoint.seq, name=name, version=version or 1, record=record, step=checkpoint.step,
        created_ns=checkpoint.created_ns, size_bytes=checkpoint.size_bytes, files=checkpoint.files,
    )  # fmt: skip


def _shown_model(model: Model, sequence: int, version: int) -> ShownCheckpoint:
    return ShownCheckpoint(
        sequence=sequence, name=model.name, version=version, record=model.record, step=None,
        created_ns=model.created_ns, size_bytes=model.size_bytes, files=model.files,
    )  # fmt: skip


def _description(job: Job) -> bytes:
    facts: dict[str, Any] = {"schema_version": 1}
    for key, value in job._asdict().items():
        if key.endswith("_ns"):
            when = None if value is None else datetime.fromtimestamp(value / 1e9, UTC).isoformat()
            facts[key.removesuffix("_ns")] = when and when.replace("+00:00", "Z")
        elif key not in PRIVATE:
            facts[key] = value
    # ASCII with escapes, so that a word of the command that is no UTF-8 survives as a lone surrogate.
    return json.dumps(facts, indent=2, default=str).encode("ascii") + b"\n"
