"""What a view shows of a home: jobs and their checkpoints as facts, and where each checkpoint is shown."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpu_train_cas import Digest, Entry

ShownPath = tuple[bytes, ...]
"""The folders below checkpoints/, one part each."""


@dataclass(frozen=True, slots=True)
class ShownCheckpoint:
    """A committed checkpoint, or a registered model: as much of it as the view needs.

    `version` counts the contents that were seen under one name, from 1; `sequence` all of a job's commits.
    """

    sequence: int
    name: str
    version: int
    record: Digest
    step: int | None
    created_ns: int
    size_bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class ShownJob:
    """One job at one moment.

    Attributes:
        description: the bytes of job.json.
        changed_ns: when the job last changed; the time of job.json and of the job's folder.
        code: the record of its code version, if it has one.
        logs: the folder its logs are written to; shown only when it exists.
        checkpoints: the committed ones, in any order.
        latest, best: records among them, or None.
    """

    description: bytes
    changed_ns: int
    code: Digest | None = None
    logs: Path | None = None
    checkpoints: tuple[ShownCheckpoint, ...] = ()
    latest: Digest | None = None
    best: Digest | None = None


@dataclass(frozen=True, slots=True)
class ShownCode:
    """A code version: its record, and when it was first seen."""

    record: Digest
    created_ns: int


class Catalogue(Protocol):
    """What the view asks of a home. Threads call it at the same time; each answer is one moment's state."""

    def stamp(self) -> Hashable:
        """Another value whenever anything in the registry has changed. Cheap."""
        ...

    def jobs(self) -> Mapping[str, int]:
        """The ids of all jobs, and when each was made (ns)."""
        ...

    def has_job(self, job_id: str) -> bool:
        """Whether there is such a job. Cheap."""
        ...

    def job(self, job_id: str) -> ShownJob:
        """One job; raises NotFound."""
        ...

    def code(self) -> Mapping[str, ShownCode]:
        """Every code version by id."""
        ...

    def models(self) -> tuple[ShownCheckpoint, ...]:
        """Every registered model."""
        ...

    def root(self, record: Digest) -> Entry:
        """The root directory of a record; raises NotFound or Damaged."""
        ...

    def holding(self, record: Digest) -> AbstractContextManager[None]:
        """Keeps a record that is read from being collected; raises NotFound when it has been."""
        ...

    def stored_bytes(self, entry: Entry) -> int:
        """What a file or folder takes in the store by itself, each block of it once, whoever else shares it.

        Not what its deltas are taken against. Costs a look for each block.
        """
        ...

    def totals(self) -> tuple[int, int]:
        """Bytes and files of all committed checkpoints, as plain files."""
        ...

    def data(self) -> Path:
        """The folder of the data versions' manifests; it may not exist."""
        ...


class Branch:
    """A folder in checkpoints/: a checkpoint, or a part of nested names, or both."""

    __slots__ = ("changed_ns", "checkpoint", "children")

    def __init__(self) -> None:
        self.children: dict[bytes, Branch] = {}
        self.checkpoint: ShownCheckpoint | None = None
        self.changed_ns = 0


class Places:
    """Where each of some checkpoints is shown: a tree of folders.

    Paths follow refs: `checkpoints/X` is what `JOB@X` names. When a name had several contents (a file that is
    overwritten in place, a model that was registered again), the plain name is the newest and `~` and the version
    mark the others.

    Attributes:
        root: the folder of all of them.
        paths: each by its path.
        shown: path and checkpoint by record.
    """

    def __init__(self, checkpoints: Iterable[ShownCheckpoint]) -> None:
        self.root = Branch()
        self.paths: dict[ShownPath, ShownCheckpoint] = {}
        self.shown: dict[Digest, tuple[ShownPath, ShownCheckpoint]] = {}
        for checkpoint in sorted(checkpoints, key=lambda c: c.sequence, reverse=True):
            path = shown_path(checkpoint.name)
            while path in self.paths:
                path = (*path[:-1], path[-1] + f"~{checkpoint.version}".encode())
            self.paths[path] = checkpoint
            # Two names may hold one record (an imported copy); the newest name speaks for it.
            self.shown.setdefault(checkpoint.record, (path, checkpoint))
            self._grow(path, checkpoint)

    def _grow(self, path: ShownPath, checkpoint: ShownCheckpoint) -> None:
        branch = self.root
        branch.changed_ns = max(branch.changed_ns, checkpoint.created_ns)
        for part in path:
            branch = branch.children.setdefault(part, Branch())
            branch.changed_ns = max(branch.changed_ns, checkpoint.created_ns)
        branch.checkpoint = checkpoint


@dataclass(slots=True)
class Listing:
    """A job as it was read at `read_s`, and found unchanged at `checked_s`, with the places of its checkpoints."""

    job: ShownJob
    stamp: Hashable
    read_s: float
    checked_s: float
    places: Places = field(init=False)

    def __post_init__(self) -> None:
        self.places = Places(self.job.checkpoints)


def shown_path(name: str) -> ShownPath:
    """The folders that a checkpoint's name is shown as; parts that no folder can be named are escaped."""
    parts = [part for part in name.encode("utf-8", "surrogateescape").split(b"/") if part]
    escape = {b".": b"%2E", b"..": b"%2E%2E"}
    return tuple(escape.get(part, part).replace(b"\0", b"%00") for part in parts) or (b"%2F",)
