"""The trainer's own files of checkpoints that are stored: which can go, and why the others must stay.

`needed` says what a trainer or anybody else may still want, `comparison` whether the rest is stored byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpu_train.capture.finder import Found, find, find_one, fingerprint_of
from gpu_train.capture.frameworks import rulebook
from gpu_train.capture.openfiles import any_open
from gpu_train.process import all_processes
from gpu_train.retention.comparison import differences
from gpu_train.retention.diskspace import freed_bytes
from gpu_train.retention.needed import Needed
from gpu_train.retention.trash import Trash
from gpu_train.step import natural_key
from gpu_train.tables.checkpoint import VERIFIED, Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas import OnProgress
from gpu_train_cas.errors import GpuTrainError

LOAD = "load/"
"""What the names of restored checkpoints begin with, beside those of a job's own."""


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """The files of one checkpoint as they lie in a job's folder.

    Attributes:
        job: whose folder it is.
        found: where they are.
        checkpoint: what is stored of them; None when nothing whole is.
        size_bytes: what deleting them frees on the disk.
        why: the reasons why they stay; empty when they go.
    """

    job: Job
    found: Found
    checkpoint: Checkpoint | None
    size_bytes: int
    why: tuple[str, ...] = ()

    @property
    def goes(self) -> bool:
        """Whether they go."""
        return not self.why


def plan_reclaim(workspace: Workspace, job: Job, *, keep_latest: bool = False, deep: bool = True) -> list[PlainFiles]:
    """What of a job's plain files can go; with `keep_latest` the newest whole checkpoint stays in any case.

    Files whose inodes, sizes and times are not what was stored are hashed if `deep`, else they stay.
    """
    rules = rulebook(workspace.config.capture.rules)
    there = find(workspace.home.checkpoints(job.id), rules=rules)
    founds = sorted((found for found in there if _has_files(found)), key=lambda found: natural_key(found.name))
    rows = _stored_as(workspace, job, founds)
    needed = Needed(workspace, job, founds, rows, keep_latest=keep_latest)
    plan = []
    for found in founds:
        row = rows.get(found.name)
        why = list(needed.reasons(found, row))
        if not why and row is not None:
            why += differences(workspace, found, row, deep=deep)
        plan.append(PlainFiles(job, found, row, _size(found), tuple(why)))
    return plan


def plan_loaded(workspace: Workspace, job: Job) -> list[PlainFiles]:
    """What can go of the checkpoints that were restored into the job's folder, to start from or to be read."""
    origins = dict(_origins(workspace, job))
    plan = []
    for path in sorted(workspace.home.load(job.id).glob("*")):
        found, row = find_one(path), origins.get(path.name)
        if found is None:
            continue
        found.name = LOAD + path.name
        inodes = [(m.dev, m.ino) for m in (found.members or {}).values() if m.is_file]
        why: list[str] = []
        if job.is_live:
            why += ["the job is running and may read it"]
        elif row is None:
            why += ["what it was restored from is not stored any more"]
        elif any_open(all_processes(), inodes):
            why += ["a process has it open"]
        else:
            why += differences(workspace, found, row, deep=True)
        plan.append(PlainFiles(job, found, row, _size(found), tuple(why)))
    return plan


def read_back(workspace: Workspace, plan: Sequence[PlainFiles], progress: OnProgress | None = None) -> list[PlainFiles]:
    """The plan, once all that is stored of what goes was read and hashed; what did not read well stays."""
    records = list(dict.fromkeys(one.checkpoint.record for one in plan if one.goes and one.checkpoint is not None))
    report = workspace.store.verify(records=[r for r in records if r is not None], progress=progress)
    bad = {hit.record: hit.reason for hit in reversed(report.hits)}
    checked = []
    for one in plan:
        reason = bad.get(one.checkpoint.record) if one.checkpoint and one.checkpoint.record else None
        checked.append(replace(one, why=(*one.why, f"what is stored is damaged: {reason}")) if reason else one)
    return checked


def _has_files(found: Found) -> bool:
    return any(not member.is_folder for member in (found.members or {}).values())


def _size(found: Found) -> int:
    return freed_bytes(f"{found.base}/{rel}" for rel, member in (found.members or {}).items() if not member.is_folder)


def _stored_as(workspace: Workspace, job: Job, founds: Sequence[Found]) -> Mapping[str, Checkpoint]:
    """What is stored under each name, be it in the trash: what was taken from these very files, else the newest."""
    contents: dict[str, list[Checkpoint]] = {found.name: [] for found in founds}
    with workspace.store.registry.read() as txn:
        here = list(workspace.checkpoints.scan(txn, job.id))
    for row in [*Trash(workspace).list(job.id)[::-1], *here]:
        if row.base_name in contents and row.state == VERIFIED and row.record is not None:
            contents[row.base_name].append(row)
    rows = {}
    for found in founds:
        known = contents[found.name]
        taken = [row for row in known if row.fingerprint == fingerprint_of(found.members or {})]
        if known:
            rows[found.name] = (taken or known)[-1]
    return rows


def _origins(workspace: Workspace, job: Job) -> Iterator[tuple[str, Checkpoint]]:
    """Names that restored checkpoints can have in the job's folder, and what they were restored from."""
    with workspace.store.registry.read() as txn:
        own = [row for row in workspace.checkpoints.scan(txn, job.id) if row.record is not None]
    yield from ((row.name.replace("/", "_"), row) for row in own)
    for ref in dict.fromkeys([*job.loads, *([job.parent] if job.parent else [])]):
        with suppress(GpuTrainError):  # it was removed since
            row, _ = workspace.checkpoints.resolve(ref)
            label = row.name.replace("/", "_")
            yield f"{row.job_id}_{label}", row
            yield label, row
