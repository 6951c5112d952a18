"""Bringing existing runs in: `checkpoints import`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpu_train.capture.finder import FILE, LOOSE, Found, find, find_one
from gpu_train.capture.frameworks import KNOWN, rulebook
from gpu_train.capture.judge import Judge, Moment
from gpu_train.capture.rules import Rulebook
from gpu_train.capture.shape import is_checkpoint_folder, is_step_named
from gpu_train.capture.storing import Finished, History, Stored, store_checkpoint
from gpu_train.step import VERSION_MARK, natural_key, split_version, step_of
from gpu_train.tables.checkpoint import INCOMPLETE, VERIFIED
from gpu_train.tables.job import Job, clean_name, new_id
from gpu_train.workspace import Workspace
from gpu_train_cas import OnProgress, Transaction
from gpu_train_cas.errors import NotFound, UsageError

IMPORTED = "imported"
"""The proof of what came in without a better one: the person said that it is a checkpoint."""


def import_checkpoints(
    workspace: Workspace, path: Path | str, job: str, name: str | None = None,
    on_stored: Callable[[Stored], None] = lambda stored: None, progress: OnProgress | None = None,
) -> list[Stored]:  # fmt: skip
    """Store existing checkpoints as a job's: all of a run folder, oldest first, or the one that `path` is.

    The job is found by id or name, and made when it is not there. A single checkpoint is called `name`, or as
    its folder or file; a name also makes one checkpoint of a folder in which nothing proves itself to be one.
    The same content again under the same name changes nothing (`Stored.is_new` is False). What is visibly
    not whole is stored as incomplete. `progress` begins anew with each checkpoint.

    Raises:
        NotFound: when there is nothing at `path`, or no checkpoint in it.
        UsageError: for `name` with a folder of several, or a job's name that is ambiguous.
        SourceChanged, StorageFull: as for ingest; what was stored before stays, and of a new job nothing is left for
            which nothing was.
    """
    source = Path(path).expanduser().absolute()
    rules = rulebook(workspace.config.capture.rules)
    found = _oldest_first(checkpoints_in(source, is_one=name is not None, rules=rules))
    if name is not None:
        if len(found) > 1:
            raise UsageError(f"{source} holds {len(found)} checkpoints; --name is for a single one")
        if not name.strip("/") or split_version(name)[1] is not None:
            raise UsageError(
                f"checkpoint name {name!r} cannot be used: it is empty or ends in a version ({VERSION_MARK}2)"
            )
        found[0].name = name.strip("/")
    owner, is_new = _job(workspace, job, source)
    history = History(workspace, owner.id)
    stored: list[Stored] = []
    for one in found:
        also = partial(_put_job, workspace, owner) if is_new and not stored else None
        stored.append(
            store_checkpoint(workspace, _finished(one, owner.id, rules), history, progress=progress, also=also)
        )
        on_stored(stored[-1])
    return stored


def checkpoints_in(source: Path, *, is_one: bool = False, rules: Rulebook = KNOWN) -> list[Found]:
    """The checkpoint that a path is, or all those in the run folder that it is.

    With `is_one` the person says that it is a single one, which holds unless some in it prove themselves.

    Raises:
        NotFound: when there is nothing at `source`, or no checkpoint in it.
        UsageError: when it is a FIFO, a socket or a device.
    """
    itself = find_one(source.resolve() if source.is_symlink() else source, rules)
    if itself is None:
        raise NotFound(f"{source} is not there; give a run's folder, a checkpoint's folder or a file")
    if not (source.is_file() or source.is_dir()):
        raise UsageError(f"{source} is neither a file nor a folder; give a run's or a checkpoint's folder, or a file")
    itself.name = source.name
    if itself.shape == FILE:
        return [itself]
    inside = list(find(itself.path, rules=rules))
    members = itself.members or {}
    files = {rel for rel, m in members.items() if m.is_file and "/" not in rel}
    folders = {rel for rel, m in members.items() if m.is_folder and "/" not in rel}
    one_model = bool(inside) and all(f.shape == LOOSE and "/" not in f.name for f in inside)
    named_like_one = is_step_named(source.name) and not any(is_step_named(f) for f in folders)
    if files and (named_like_one or is_checkpoint_folder(source.name, files, folders, rules) or one_model):
        return [itself]
    if named_like_one and members:
        return [itself]
    if is_one and members and all(_finished(one, "", rules).proof == IMPORTED for one in inside):
        return [itself]
    if not inside:
        raise NotFound(
            f"{source} holds nothing that looks like a checkpoint; give the checkpoint's own folder or file, "
            "or say that it is one with --name"
        )
    return inside


def _oldest_first(found: list[Found]) -> list[Found]:
    """By step when all have one, else by their newest file, which a copy may have made anew."""
    steps = [step_of(f.name) for f in found]
    if all(s is not None for s in steps):
        return sorted(found, key=lambda f: (step_of(f.name) or 0, natural_key(f.name)))
    newest = {f.name: max((m.mtime_ns for m in (f.members or {}).values() if m.is_file), default=0) for f in found}
    return sorted(found, key=lambda f: (newest[f.name], natural_key(f.name)))


def _finished(found: Found, job_id: str, rules: Rulebook) -> Finished:
    members = found.members or {}
    settled = Moment(
        rest_s=float("inf"), settle_s=0, ended=True, clean_end=True, busy=found.busy, beside=found.beside, is_copy=True
    )
    verdict = Judge(rules).verdict(found.name, found.shape, members, lambda rel: f"{found.base}/{rel}", settled)
    proof = verdict.proof if verdict.proof not in ("quiet", "ended") else IMPORTED
    return Finished(
        job_id, found.name, Path(found.base), found.shape, members,
        proof if verdict.is_whole else verdict.missing, VERIFIED if verdict.is_whole else INCOMPLETE, found.path,
    )  # fmt: skip


def _put_job(workspace: Workspace, job: Job, txn: Transaction) -> None:
    workspace.jobs.put_in(txn, job)


def _job(workspace: Workspace, text: str, source: Path) -> tuple[Job, bool]:
    """The job of that id or name, or a new one that is not written yet; whether it is new."""
    found = workspace.jobs.look_up(text)
    if found is not None:
        return found, False
    now = time.time_ns()
    job = Job(
        new_id(clean_name(text)), text, workspace.config.defaults.project, "finished", provider="import",
        cwd=str(source), created_ns=now, started_ns=now, ended_ns=now,
    )  # fmt: skip
    return job, True
