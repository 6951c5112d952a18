"""Which plain files of a job are still needed, or may be: by its trainer, by a link, by who has them open.

While a job runs, its trainer may come back to what it wrote: to the newest checkpoint of a kind, to the best one, to
what a `latest` file or the newest checkpoint's own state names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpu_train.capture.family import kind_of
from gpu_train.capture.finder import FILE, FOLDER, Found, folder_of
from gpu_train.capture.openfiles import any_open
from gpu_train.capture.storing import TRAINER_STATE, TRAINER_STATE_LIMIT_BYTES
from gpu_train.process import all_processes
from gpu_train.step import step_of
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.formats import FileSource, FormatError, archive

WRITING_NS = 60 * 10**9
"""What is not stored yet counts as being written until so long after its last change."""

PICKLE_LIMIT_BYTES = 32 << 20


class Needed:
    """Why plain files of a job stay, whatever is stored of them."""

    def __init__(
        self, workspace: Workspace, job: Job, founds: Sequence[Found], rows: Mapping[str, Checkpoint], *,
        keep_latest: bool,
    ) -> None:  # fmt: skip
        self._job = job
        newest = max(rows.values(), key=lambda row: row.seq, default=None)
        self._newest = _like_the_newest(founds, rows, newest) if keep_latest else set()
        if job.is_live:
            self._newest |= _newest_of_each_kind(founds, rows)
        best = workspace.checkpoints.best(job.id)
        self._best = best.seq if best is not None else 0
        self._said = b"".join(_what_is_said(founds, self._newest)) if job.is_live else b""
        self._unfinished = [f.name for f in founds if f.busy or (f.name not in rows and _is_fresh(f))]
        self._processes = all_processes()
        self._targets = set(_targets(workspace.home.checkpoints(job.id), founds))

    def reasons(self, found: Found, row: Checkpoint | None) -> Iterator[str]:
        """The reasons against deleting the files, without looking into them."""
        if row is None:
            yield "no whole checkpoint is stored under this name"
            return
        if row.thin:
            yield "what is stored was thinned"
        if found.busy:
            yield f"it is being written ({found.busy})"
        if found.name in self._newest:
            yield "it is the newest"
        if any(_lies_at(found, target) for target in self._targets):
            yield "a link leads to it"
        if self._job.is_live:
            yield from self._while_running(found, row)
        if any_open(self._processes, [(m.dev, m.ino) for m in (found.members or {}).values() if m.is_file]):
            yield "a process has it open"

    def _while_running(self, found: Found, row: Checkpoint) -> Iterator[str]:
        name = os.path.basename(found.path)
        if step_of(name) is None:
            yield "the job is running and may write or read it again"
        elif self._unfinished:
            yield f"the job is writing {self._unfinished[0]}"
        if row.seq == self._best:
            yield "it is the best one, which the running job may load"
        if os.fsencode(name) in self._said and found.name not in self._newest:
            yield "the newest checkpoint speaks of it"


def _like_the_newest(founds: Sequence[Found], rows: Mapping[str, Checkpoint], newest: Checkpoint | None) -> set[str]:
    """The name of what was stored last, and of what belongs to it: a trainer may write several files for one step."""
    names = {found.name for found in founds if newest is not None and rows.get(found.name) == newest}
    folders = {folder_of(found.path) for found in founds if found.name in names}
    for found in founds:
        row = rows.get(found.name)
        if row is not None and newest is not None and row.step == newest.step is not None:
            names |= {found.name} if folder_of(found.path) in folders else set()
    return names


def _newest_of_each_kind(founds: Sequence[Found], rows: Mapping[str, Checkpoint]) -> set[str]:
    """The names of what was stored last, and of what has the highest step; trainers go by either."""
    last: dict[str, tuple[int, str]] = {}
    highest: dict[str, tuple[int, str]] = {}
    for found in founds:
        row = rows.get(found.name)
        if row is None:
            continue
        where = f"{folder_of(found.path)}/{kind_of(os.path.basename(found.path))}"
        last[where] = max(last.get(where, (0, "")), (row.seq, found.name))
        highest[where] = max(highest.get(where, (-1, "")), (-1 if row.step is None else row.step, found.name))
    return {name for found in (last, highest) for _, name in found.values()}


def _is_fresh(found: Found) -> bool:
    newest_ns = max((m.mtime_ns for m in (found.members or {}).values()), default=0)
    with suppress(OSError):
        newest_ns = max(newest_ns, os.stat(found.base).st_mtime_ns if found.shape == FOLDER else 0)
    return time.time_ns() - newest_ns < WRITING_NS


def _what_is_said(founds: Sequence[Found], newest: Collection[str]) -> Iterator[bytes]:
    """Texts that may name checkpoints which the trainer comes back to: `latest` files, the newest ones' own state."""
    for found in founds:
        yield from (text.encode(errors="surrogateescape") for text in found.beside.texts.values())
        if found.name in newest:
            yield _state_of(found)


def _state_of(found: Found) -> bytes:
    if found.shape == FILE:
        return _pickle_in(Path(found.path))
    try:
        with open(f"{found.base}/{TRAINER_STATE}", "rb") as file:
            return file.read(TRAINER_STATE_LIMIT_BYTES)
    except OSError:
        return b""


def _pickle_in(path: Path) -> bytes:
    """The pickle of a torch archive, such as that of a Lightning checkpoint, whose callbacks name other files."""
    try:
        with path.open("rb") as file:
            source = FileSource(file.fileno())
            found = archive.read_archive(source, source.size_bytes)
            pickles = [r for r in found.records if r.name.endswith("data.pkl")]
            return b"".join(found.inflate(source, r, PICKLE_LIMIT_BYTES) for r in pickles)
    except (OSError, FormatError):
        return b""


def _targets(root: Path, founds: Sequence[Found]) -> Iterator[str]:
    """What the symbolic links lead to that lie among a job's checkpoints."""
    folders = {root, *(above for f in founds for above in Path(f.path).parents if root in above.parents)}
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            yield from (os.path.realpath(entry.path) for entry in entries if entry.is_symlink())


def _lies_at(found: Found, target: str) -> bool:
    """Whether a checkpoint, or a part of it, is what lies at a path without links in it."""
    base = os.path.realpath(found.base)
    if found.shape == FOLDER:
        return target == base or target.startswith(f"{base}/")
    return any(target == f"{base}/{rel}" for rel in found.members or {})
