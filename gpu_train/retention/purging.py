"""Taking for good what has been in the trash long enough: whole jobs with their files, then gc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_train.capture.headroom import device_of, kept_for_jobs
from gpu_train.retention.diskspace import files_below, freed_bytes
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas import CollectReport, OnProgress, Transaction
from gpu_train_cas.errors import mapped_os_errors
from gpu_train_cas.filesystem import FOLDER_FLAGS, remove_tree

DAY_NS = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class Purged:
    """What was taken for good; in a dry run, what would be.

    Attributes:
        jobs: ids of the jobs that went.
        file_bytes: what their plain files and logs took on the disk.
        store: what gc did to the store.
    """

    jobs: Sequence[str]
    file_bytes: int
    store: CollectReport


def purge(
    workspace: Workspace, *, trash_days: float | None = None, dry_run: bool = False, progress: OnProgress | None = None
) -> Purged:
    """Remove what has been in the trash for `trash_days`, else `defaults.trash_days`, and free what nothing needs.

    Raises:
        Busy, ReadOnly, StorageFull: as for `Store.gc`; what was done until then stays done and is sound.
    """
    days = workspace.config.defaults.trash_days if trash_days is None else trash_days
    before_ns = time.time_ns() - int(days * DAY_NS)
    jobs = _over(workspace, before_ns, marked=not dry_run)
    files = [workspace.home.artifacts(job.id) for job in jobs]
    file_bytes = sum(freed_bytes(files_below(str(folder))) for folder in files)
    for folder in files if not dry_run else ():  # first of all, since it needs no room and makes some
        with mapped_os_errors(f"removing {folder}"):
            _remove_folder(os.fsencode(folder.parent), os.fsencode(folder.name))
    spare_bytes = kept_for_jobs(workspace).get(device_of(workspace.home.packs), 0)
    store = workspace.store.gc(trash_days=days, dry_run=dry_run, spare_bytes=spare_bytes, progress=progress)
    for job in jobs if not dry_run else ():
        _forget(workspace, job.id)
    return Purged([job.id for job in jobs], file_bytes, store)


def _over(workspace: Workspace, before_ns: int, *, marked: bool) -> list[Job]:
    """The jobs whose days in the trash are over; `marked` so that nobody brings one back while its files go."""
    found = [job for job in workspace.jobs.all() if job.purged or 0 < (job.removed_ns or 0) <= before_ns]
    if not marked:
        return found

    def mark(txn: Transaction, part: Sequence[Job]) -> Iterator[Job]:
        for old in part:
            job = workspace.jobs.get(old.id, txn.txn)
            if job is None or job.removed_ns is None or not (job.purged or job.removed_ns <= before_ns):
                continue
            if not job.purged:
                workspace.jobs.put_in(txn, job._replace(purged=True))
            yield job

    return workspace.store.change(found, mark, "gc")


def _forget(workspace: Workspace, job_id: str) -> None:
    """Delete a marked job's rows, its own last: a purge that is killed is done again."""
    workspace.metrics.forget(job_id)
    workspace.events.forget(job_id)

    def forget(txn: Transaction, part: Sequence[int | None]) -> list[None]:
        for seq in part:
            if seq is None:
                workspace.jobs.delete_in(txn, job_id)
            else:
                workspace.checkpoints.forget_in(txn, job_id, seq)
        return []

    with workspace.store.registry.read() as txn:
        rows: list[int | None] = [c.seq for c in workspace.checkpoints.scan_removed(txn, job_id)]
    workspace.store.change([*rows, None], forget, "gc")


def _remove_folder(above: bytes, name: bytes) -> None:
    try:
        fd = os.open(above, FOLDER_FLAGS)
    except FileNotFoundError:
        return
    try:
        remove_tree(fd, name)
    finally:
        os.close(fd)
