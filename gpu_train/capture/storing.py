"""Putting one checkpoint into the store: bytes, record, ledger row and metrics in one transaction."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gpu_train.base import bases_for, classes_of, pattern_of
from gpu_train.capture.finder import FILE, Member, fingerprint_of
from gpu_train.capture.judge import EXPLICIT
from gpu_train.kind import CONFIG_LIMIT_BYTES, Kind, kind_of
from gpu_train.step import split_version, step_of, with_version
from gpu_train.tables.checkpoint import VERIFIED, Checkpoint
from gpu_train.tables.metric import Known, Metric
from gpu_train.workspace import Workspace
from gpu_train_cas import Added, OnProgress, Record, Transaction
from gpu_train_cas.errors import NotFound

TRAINER_STATE = "trainer_state.json"
TRAINER_STATE_LIMIT_BYTES = 256 << 20
_NO_METRICS = ("step", "epoch")


class Finished(NamedTuple):
    """A checkpoint that is ready to be stored.

    Attributes:
        job_id, name: whose it is and its path below the checkpoint folder, without a version.
        base: the folder that the members are read from: a pin, or the checkpoint's own.
        shape: "file" when it is a file that stands for itself, else a folder.
        members: what of it is to be stored, as it was judged.
        proof: why it is whole, or what was missing.
        state: verified or incomplete.
        source: where the trainer had it.
        step, metrics, tags: what was said of it explicitly; they win over what is read from it.
        earlier: what had been handed over under its name before, when it is all of that and some more.
        seen_ns, settled_ns: when it was first seen, and when its fate was known; 0 where nobody watched.
    """

    job_id: str
    name: str
    base: Path
    shape: str
    members: Mapping[str, Member]
    proof: str
    state: str = VERIFIED
    source: str = ""
    step: int | None = None
    metrics: Mapping[str, float] = MappingProxyType({})
    tags: Mapping[str, str] = MappingProxyType({})
    earlier: Mapping[str, Member] = MappingProxyType({})
    seen_ns: int = 0
    settled_ns: int = 0

    @property
    def fingerprint(self) -> str:
        """Tells whether the same files were stored before, without reading them."""
        return fingerprint_of(self.members)

    @property
    def created_ns(self) -> int:
        """The newest modification among its files."""
        return max((m.mtime_ns for m in self.members.values() if m.is_file), default=time.time_ns())


class Stored(NamedTuple):
    """What came of it: the ledger row, whether it is new, how many of its bytes were; or that it was in the trash.

    `late_files` is how many files were added to a checkpoint that was there.
    """

    checkpoint: Checkpoint
    is_new: bool
    new_bytes: int
    brought_back: bool = False
    late_files: int = 0


class History:
    """The metrics of one job that are known already, so that none is read twice, from the table or trainer states."""

    def __init__(self, workspace: Workspace, job_id: str) -> None:
        self._workspace = workspace
        self._job_id = job_id
        self._known = Known()
        self._after = 0

    def new_of(self, entries: Iterable[tuple[int | None, dict[str, float]]], time_ns: int) -> list[Metric]:
        """The reports among (step, values) whose step and name are not in the table yet."""
        self._catch_up()
        fresh = []
        for step, values in entries:
            new = {k: v for k, v in values.items() if not self._known.has(step, k)}
            if new:
                fresh.append(Metric(time_ns, step, new, "trainer_state"))
        return fresh

    def at(self, step: int | None, fresh: Iterable[Metric]) -> dict[str, float]:
        """The values at a step (`Known.at`) of what is in the table, with `fresh` behind it."""
        self._catch_up()
        known = Known()
        reported = self._known.at_steps(step)
        for name, (at, value) in reported.items():
            known.add(Metric(0, at, {name: value}))
        for metric in fresh:
            known.add(metric)
        return known.at(step)

    def _catch_up(self) -> None:
        with self._workspace.store.registry.read() as txn:
            for metric in self._workspace.metrics.scan(txn, self._job_id, after=self._after):
                self._known.add(metric)
                self._after = metric.seq


def store_checkpoint(
    workspace: Workspace, finished: Finished, history: History, check: Callable[[], None] = lambda: None,
    progress: OnProgress | None = None, also: Callable[[Transaction], None] | None = None,
    admit: Callable[[int], None] | None = None,
) -> Stored:  # fmt: skip
    """Store a checkpoint and commit its record, its row and the metrics it tells of together.

    The same content under the same name as the newest version is no new checkpoint; what was said of
    it explicitly is noted on the row that is there, and out of the trash it comes back. The newest version and some
    files more, which came late, is no new one either: the row that is there gets the new record. `check` is called
    when all has been read and may raise SourceChanged, by which nothing is committed. `progress` is told how far the
    reading is. What `also` writes is committed with it. `admit` is told of bytes before they are written; it may raise.

    Raises:
        SourceChanged: when a file changed while it was read; try again later.
        StorageFull: when the disk is full.
    """
    pattern = pattern_of(finished.members)
    bases = bases_for(workspace, finished.job_id, pattern, finished.base)
    with workspace.store.writer("checkpoint", admit=admit) as writer:
        if finished.shape == FILE:
            name = next(iter(finished.members))
            own = os.fsencode(os.path.basename(name))
            added = writer.add_file(finished.base / name, name=own, bases=bases, progress=progress)
        else:
            leave = _all_but(finished.members)
            added = writer.add_tree(finished.base, exclude=leave, bases=bases, progress=progress)
        check()
        state = trainer_state(finished)
        kind = _kind(finished)
        step = _first(finished.step, step_of(finished.name), state.step)
        fresh = history.new_of(state.entries, finished.created_ns)
        known = history.at(step, fresh)
        with writer.commit() as txn:
            if also is not None:
                also(txn)
            workspace.metrics.add_in(txn.txn, finished.job_id, fresh)
            row = Checkpoint(
                finished.job_id, finished.name, step=step, state=finished.state, proof=finished.proof,
                created_ns=finished.created_ns, committed_ns=time.time_ns(), size_bytes=added.size_bytes,
                stored_bytes=added.stored_bytes, files=added.files,
                metrics={**known, **finished.metrics}, own_metrics=tuple(finished.metrics),
                tags=dict(finished.tags), source=finished.source, fingerprint=finished.fingerprint,
                pattern=pattern, classes=classes_of(added), seen_ns=finished.seen_ns, settled_ns=finished.settled_ns,
                shape=finished.shape, total_steps=state.total_steps, kind=kind.name, base_model=kind.base_model,
            )  # fmt: skip
            return _commit(workspace, txn, row, added, finished)


def _commit(workspace: Workspace, txn: Transaction, row: Checkpoint, added: Added, finished: Finished) -> Stored:
    """Enter the row, or improve the one that has the same content."""
    newest, twin = _newest_and_whole(workspace.checkpoints.newest_versions_in(txn.txn, row.job_id, row.name))
    if twin is not None and twin.identity == added.root.identity:
        merged = _merged(twin, row)
        here = merged if twin.removed_ns is None else _brought_back(workspace, txn, merged)
        if here is not None:
            if here.thin:
                here = _whole_again(txn, here, row, added)
            if here != twin:
                workspace.checkpoints.put_in(txn, here)
            return Stored(here, False, 0, brought_back=twin.removed_ns is not None)
    late = newest is not None and _is_completed_by(newest, row, finished)
    name = newest.name if newest is not None and late else next_version(row.name, newest)
    record = txn.put_record(_record(row, name, added))
    row = row._replace(name=name, record=record, identity=added.root.identity)
    if newest is not None and late:
        return _completed(workspace, txn, newest, row, added)
    return Stored(workspace.checkpoints.add_in(txn, row), True, added.new_bytes)


def _record(row: Checkpoint, name: str, added: Added) -> Record:
    meta: dict[str, Any] = {
        "step": row.step, "state": row.state, "proof": row.proof, "metrics": dict(row.metrics), "tags": dict(row.tags),
        "committed_ns": row.committed_ns, "source": row.source,
    }  # fmt: skip
    return Record("checkpoint", row.job_id, name, row.created_ns, added.root, meta)


def _whole_again(txn: Transaction, thin: Checkpoint, row: Checkpoint, added: Added) -> Checkpoint:
    """A thinned checkpoint with all of its content, which has come in once more."""
    if thin.record is not None:
        with suppress(NotFound):
            txn.trash(thin.record, row.committed_ns)
    record = txn.put_record(_record(row, thin.name, added))
    return thin._replace(record=record, size_bytes=added.size_bytes, files=added.files, thin={})


def _is_completed_by(old: Checkpoint, new: Checkpoint, finished: Finished) -> bool:
    """Whether what was stored is what is there now without some files that came late, as those of a slow rank do.

    After a restart nobody remembers what was handed over before; then what is no newer than the stored one is tried.
    """
    if new.state != VERIFIED or old.record is None or old.removed_ns is not None or old.step != new.step:
        return False
    if old.proof == new.proof == EXPLICIT:
        return False  # whoever says it twice means two
    known = {rel: m for rel, m in finished.members.items() if m.is_folder or m.mtime_ns <= old.created_ns}
    subsets = [part for part in (finished.earlier, known) if 0 < len(part) < len(finished.members)]
    return any(fingerprint_of(part) == old.fingerprint for part in subsets)


def _completed(workspace: Workspace, txn: Transaction, old: Checkpoint, new: Checkpoint, added: Added) -> Stored:
    """Give the row that is there the content with its late files; its place in the order stays."""
    assert old.record is not None
    row = _merged(old, new)._replace(
        record=new.record, identity=new.identity, created_ns=new.created_ns, files=new.files,
        size_bytes=new.size_bytes, stored_bytes=old.stored_bytes + added.stored_bytes, pattern=new.pattern,
        classes=old.classes or new.classes, kind=new.kind, base_model=new.base_model, thin={}, pushed={},
    )  # fmt: skip
    workspace.checkpoints.put_in(txn, row)
    if old.record != new.record:
        txn.trash(old.record, time.time_ns())
    return Stored(row, False, added.new_bytes, late_files=new.files - old.files)


def _brought_back(workspace: Workspace, txn: Transaction, removed: Checkpoint) -> Checkpoint | None:
    """A checkpoint that was removed, taken out of the trash; None when gc has taken it from there."""
    assert removed.record is not None
    try:
        txn.restore_trashed(removed.record)
    except NotFound:
        return None
    return workspace.checkpoints.bring_back_in(txn, removed)


def _newest_and_whole(versions: Iterator[Checkpoint]) -> tuple[Checkpoint | None, Checkpoint | None]:
    """Of a path's versions, newest first, the first and the first that has content."""
    newest = next(versions, None)
    if newest is None or newest.identity:
        return newest, newest
    return newest, next((v for v in versions if v.identity), None)


def next_version(base: str, newest: Checkpoint | None) -> str:
    """The name of what comes next under a path, of which `newest` is there."""
    return with_version(base, 1 if newest is None else (split_version(newest.name)[1] or 1) + 1)


def _merged(old: Checkpoint, new: Checkpoint) -> Checkpoint:
    """The row that is there, with what the later word adds: a proof, a step, metrics, tags.

    Without a step, what else the job has reported by now is no word about the checkpoint.
    """
    later = new.metrics if new.step is not None else {}
    better = new.state == VERIFIED and (old.state != VERIFIED or new.own_metrics or new.proof == EXPLICIT)
    return old._replace(
        state=VERIFIED if new.state == VERIFIED else old.state,
        proof=new.proof if better else old.proof,
        step=_first(old.step, new.step) if not better else _first(new.step, old.step),
        metrics={**later, **old.metrics, **{k: new.metrics[k] for k in new.own_metrics}},
        own_metrics=tuple(dict.fromkeys((*old.own_metrics, *new.own_metrics))),
        tags={**old.tags, **new.tags},
        total_steps=_first(new.total_steps, old.total_steps),
        kind=old.kind or new.kind,
        base_model=old.base_model or new.base_model,
        fingerprint=new.fingerprint,
    )


def _kind(finished: Finished) -> Kind:
    """What kind of checkpoint it is, by the files that are stored of it."""
    if finished.shape == FILE:
        return Kind()

    def read(path: str) -> bytes | None:
        if finished.members[path].size_bytes > CONFIG_LIMIT_BYTES:
            return None
        with suppress(OSError):
            return (finished.base / path).read_bytes()
        return None

    return kind_of((path for path, member in finished.members.items() if member.is_file), read)


class TrainerState(NamedTuple):
    """What a Hugging Face trainer_state.json tells: where the training is, how far it goes, what it logged."""

    step: int | None = None
    total_steps: int | None = None
    entries: tuple[tuple[int | None, dict[str, float]], ...] = ()


def trainer_state(finished: Finished) -> TrainerState:
    """The trainer's state within a checkpoint; empty when there is none or it cannot be read."""
    member = finished.members.get(TRAINER_STATE)
    if finished.shape == FILE or member is None or member.size_bytes > TRAINER_STATE_LIMIT_BYTES:
        return TrainerState()
    try:
        data = json.loads((finished.base / TRAINER_STATE).read_bytes())
        step, total = data.get("global_step"), data.get("max_steps")
        history = data.get("log_history") or []
        entries = tuple(_entry(e) for e in history if isinstance(e, dict))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return TrainerState()
    return TrainerState(
        step if isinstance(step, int) else None, total if isinstance(total, int) and total > 0 else None, entries
    )


def _entry(entry: Mapping[str, Any]) -> tuple[int | None, dict[str, float]]:
    step = entry.get("step")
    values = {
        k: v
        for k, v in entry.items()
        if k not in _NO_METRICS and isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < math.inf
    }
    return step if isinstance(step, int) else None, values


def _all_but(members: Mapping[str, Member]) -> Callable[[bytes, bool], bool]:
    """Leaves out what is no member: files that appeared after the judgement, temporary ones, other checkpoints."""
    wanted = {os.fsencode(rel) for rel in members}
    return lambda path, is_folder: path not in wanted


def _first(*values: int | None) -> int | None:
    return next((v for v in values if v is not None), None)
