"""What a job's writers say that they finished, held against what is in the store."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import NamedTuple

from gpu_train import Workspace
from gpu_train.tables.checkpoint import GONE, VERIFIED, Checkpoint


class Version(NamedTuple):
    """A checkpoint as it was once: its name, and a digest of its files."""

    name: str
    digest: str


@dataclass(frozen=True)
class Written:
    """What one writer finished, in its order, and from when to when each was there (monotonic seconds)."""

    versions: list[Version]
    lives: list[tuple[float, float]]

    @classmethod
    def of(cls, folders: Iterable[Path]) -> Written:
        """From the lists (written.jsonl) in some folders."""
        lines = [json.loads(line) for folder in folders for line in (folder / "written.jsonl").read_text().splitlines()]
        return cls([Version(x["name"], x["digest"]) for x in lines], [(x["from"], x["to"]) for x in lines])


@dataclass
class Account:
    """What became of each version that was written.

    Attributes:
        captured: those that are in the store bit for bit.
        silent: those that are neither there nor reported, by their place in the list.
        wrong: rows that say that they are whole and hold what nobody finished.
        told: how many of each name were reported: as gone, or kept as incomplete.
    """

    captured: int = 0
    silent: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)


def account(workspace: Workspace, job_id: str, written: Written, unseen: tuple[float, float] | None = None) -> Account:
    """Hold a job's rows against what was written; what lived in the `unseen` time may be missing."""
    result, wanted, stored = Account(), set(written.versions), Counter[Version]()
    for row in workspace.checkpoints.list(job_id):
        if row.state != VERIFIED:
            result.told[row.base_name] += 1
            continue
        version = version_of(workspace, row)
        stored[version] += 1
        if version not in wanted:
            result.wrong.append(f"{row.name} ({row.proof})")
    left = Counter(result.told)
    for place, version in enumerate(written.versions):
        since, until = written.lives[place]
        if stored[version] > 0:
            stored[version] -= 1
            result.captured += 1
        elif unseen is not None and since <= unseen[1] and until >= unseen[0]:
            continue
        elif left[version.name] > 0:
            left[version.name] -= 1
        else:
            result.silent.append(place)
    return result


def version_of(workspace: Workspace, row: Checkpoint) -> Version:
    """What is stored, digested as the writers do it (kit/trainers/rotating.py)."""
    assert row.record is not None
    assert row.state != GONE
    reader = workspace.store.reader
    own = row.base_name.rpartition("/")[2] if row.shape == "folder" else ""
    files = {
        PurePath(own, os.fsdecode(path)): hashlib.sha256(reader.open(entry).pread(entry.size_bytes, 0)).hexdigest()
        for path, entry in reader.walk(workspace.store.record(row.record).root)
        if entry.files == 1 and entry.kind == 0
    }
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        digest.update(f"{path}\0{content}\n".encode())
    return Version(row.base_name, digest.hexdigest())


@contextmanager
def latest_of(home: Path) -> Iterator[set[Version]]:
    """All that the latest checkpoint of a home's only job ever is meanwhile, asked for again and again."""
    seen: set[Version] = set()
    enough = threading.Event()

    def watch() -> None:
        with Workspace.open(home) as workspace:
            last = None
            while not enough.wait(0.005):
                for job in workspace.jobs.list():
                    row = workspace.checkpoints.latest(job.id)
                    if row is not None and row.record != last:
                        last = row.record
                        seen.add(version_of(workspace, row))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        enough.set()
        thread.join()
