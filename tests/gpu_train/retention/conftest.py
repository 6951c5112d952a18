"""A job with stored checkpoints to remove, prune, thin and bring back."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_train.capture.finder import find
from gpu_train.capture.storing import Finished, History, store_checkpoint
from gpu_train.step import natural_key
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas import EntryKind, Record

JOB = "train-aaaaaa"
BYTES = 70_000
LONG_AGO_NS = 10**18


def noise(seed: str, size: int = 5000) -> bytes:
    """Bytes of a file that nothing else is like; the same ones for a seed."""
    return random.Random(seed).randbytes(size)


@dataclass
class Run:
    """A finished job; `add` stores one more checkpoint with bytes of its own and some that all share."""

    workspace: Workspace
    folder: Path
    job: Job
    contents: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def add(self, name: str, files: dict[str, bytes] | None = None, **fields: object) -> Checkpoint:
        source = self.folder / f"{self.job.id}-{len(self.contents)}"
        made = files or {"own.bin": random.Random(name).randbytes(BYTES), "shared.bin": b"shared" * 20_000}
        for path, data in made.items():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_bytes(data)
        self.contents[name] = made
        return self.store(source, name, **fields)

    def store(self, source: Path, name: str, **fields: object) -> Checkpoint:
        """Store a folder as a checkpoint."""
        now = time.time_ns()
        with self.workspace.store.writer("test") as writer:
            added = writer.add_tree(source)
            with writer.commit() as txn:
                record = txn.put_record(Record("checkpoint", self.job.id, name, now, added.root))
                row = Checkpoint(
                    self.job.id, name, created_ns=now, committed_ns=now, size_bytes=added.size_bytes,
                    files=added.files, record=record, identity=added.root.identity, **fields,  # type: ignore[arg-type]
                )  # fmt: skip
                return self.workspace.checkpoints.add_in(txn, row)

    def write(self, name: str, files: dict[str, bytes] | None = None) -> Path:
        """Write a checkpoint into the job's own folder, some time ago; `capture` stores it."""
        folder = self.plain / name
        made = {"model.safetensors": noise(name), "config.json": b"{}"} if files is None else files
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in made.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
            os.utime(folder / path, ns=(LONG_AGO_NS, LONG_AGO_NS))
        os.utime(folder, ns=(LONG_AGO_NS, LONG_AGO_NS))
        return folder

    def capture(self) -> list[Checkpoint]:
        """Store what lies in the job's folder, as the agent would."""
        history = History(self.workspace, self.job.id)
        founds = sorted(find(self.plain), key=lambda found: natural_key(found.name))
        whole = [Finished(self.job.id, f.name, Path(f.base), f.shape, f.members or {}, "files") for f in founds]
        return [store_checkpoint(self.workspace, one, history).checkpoint for one in whole]

    @property
    def plain(self) -> Path:
        """Where the job writes its checkpoints."""
        return self.workspace.home.checkpoints(self.job.id)

    def names(self) -> list[str]:
        """The checkpoints that are there, first stored first."""
        return [c.name for c in self.workspace.checkpoints.list(self.job.id)[::-1]]

    def read(self, checkpoint: Checkpoint) -> dict[str, bytes]:
        """All files of a checkpoint."""
        assert checkpoint.record is not None
        reader = self.workspace.store.reader
        found = reader.walk(self.workspace.store.record(checkpoint.record).root)
        return {
            os.fsdecode(path): reader.open(entry).pread(entry.size_bytes, 0)
            for path, entry in found
            if entry.kind is EntryKind.FILE
        }

    def check(self) -> None:
        """Each checkpoint that is there reads as it was written, and the store is sound."""
        for checkpoint in self.workspace.checkpoints.list(self.job.id):
            assert self.read(checkpoint) == self.contents[checkpoint.name]
        report = self.workspace.store.verify()
        assert report.complete and not report.damaged


@pytest.fixture
def make_run(workspace: Workspace, tmp_path: Path) -> Callable[..., Run]:
    """Makes a job with no checkpoints yet."""

    def make(job_id: str = JOB, **fields: object) -> Run:
        job = Job(job_id, job_id.rpartition("-")[0], **{"created_ns": 1, "status": "finished", **fields})  # type: ignore[arg-type]
        workspace.jobs.put(job)
        return Run(workspace, tmp_path / "sources", job)

    return make


@pytest.fixture
def run(make_run: Callable[..., Run]) -> Run:
    """A finished job with no checkpoints yet."""
    return make_run()
