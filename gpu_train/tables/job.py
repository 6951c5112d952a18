"""Jobs: one training run each, from its command to how it ended."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_train.spelling import near
from gpu_train.tables.row import from_row, to_row
from gpu_train_cas.errors import NotFound, UsageError
from gpu_train_cas.registry import decode_row

if TYPE_CHECKING:
    from gpu_train_cas.registry import Registry, Row, Txn
    from gpu_train_cas.transaction import Transaction

LIVE = ("queued", "running")
ENDED = ("finished", "failed", "stopped", "killed", "lost")
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_ID_TAIL = 6
_NAME_LIMIT = 48


class Job(NamedTuple):
    """One training run.

    Attributes:
        id: "<name>-<6 characters>"; names the job's folder and never changes.
        name: what the person calls it; several jobs may share one.
        status: queued | running | finished (exit 0) | failed (any other exit) | stopped (it was told to
            end) | killed (it was not asked) | lost (its runner died).
        command: the words that were run.
        cwd: where they were run.
        provider: "local", ...; "import" for jobs made by `checkpoints import`.
        created_ns, started_ns, ended_ns: nanoseconds since the epoch, None while it has not happened.
        exit_code: the command's, 128 + n when signal n ended it.
        signal: that n.
        attempt: 1 for the first run.
        pid, pid_start: the command's process (also its process group and session) and when the kernel
            started it (clock ticks since boot), which tells it from a later process of the same number.
        runner_pid, runner_start, agent_pid: the supervisor's and the capture agent's.
        boot_id: the boot during which those numbers mean something.
        host, environment: facts about the machine and the Python packages (`host.py`).
        code: the code version's id; git: commit, branch, dirty as they were.
        data: "name@version" of the data versions that it resolved.
        parent: the checkpoint it went on from, "JOB@NAME".
        loads: the refs of the checkpoints that were restored for it.
        gpus: what was asked for.
        reason: why it ended so, when the status alone does not say.
        retention: what is kept of its checkpoints, when that was said for this job (`retention.setting`).
        removed_ns, removed_by: for one that was removed, when and by which command. It is in no list; its row goes
            when the days of the trash are over.
        purged: whether its files are being deleted, so that it cannot come back.
    """

    id: str
    name: str
    project: str = "default"
    status: str = "queued"
    command: tuple[str, ...] = ()
    cwd: str = ""
    provider: str = "local"
    created_ns: int = 0
    started_ns: int | None = None
    ended_ns: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    attempt: int = 1
    pid: int | None = None
    pid_start: int | None = None
    runner_pid: int | None = None
    runner_start: int | None = None
    agent_pid: int | None = None
    boot_id: str = ""
    host: Mapping[str, Any] = {}
    environment: Mapping[str, Any] = {}
    code: str | None = None
    git: Mapping[str, Any] | None = None
    data: tuple[str, ...] = ()
    parent: str | None = None
    loads: tuple[str, ...] = ()
    gpus: str | None = None
    reason: str = ""
    retention: Mapping[str, Any] | None = None
    removed_ns: int | None = None
    removed_by: str = ""
    purged: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it has not ended, as far as its row says."""
        return self.status in LIVE

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Job:
        """Read a row back."""
        return from_row(cls, {**row, **{name: tuple(row.get(name, ())) for name in ("command", "data", "loads")}})


def clean_name(text: str) -> str:
    """A name as ids allow it: lower case, [a-z0-9._-], at most 48 characters; "job" when nothing is left."""
    name = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")
    return name[:_NAME_LIMIT].strip("-._") or "job"


def new_id(name: str) -> str:
    """A fresh id for a job of that name."""
    return f"{clean_name(name)}-{''.join(_BASE32[byte % len(_BASE32)] for byte in os.urandom(_ID_TAIL))}"


JobList = list[Job]  # a name of its own: within the class `list` is a method


class Jobs:
    """The table of jobs. Reads take an own snapshot each, unless a transaction is given."""

    def __init__(self, registry: Registry, transaction: Callable[[], Any]) -> None:
        self._registry = registry
        self._transaction = transaction
        self.table = registry.table("jobs")

    def get(self, job_id: str, txn: Txn | None = None) -> Job | None:
        """The job of that exact id, also one that was removed."""
        if txn is not None:
            row = self.table.get(txn, _key(job_id))
        else:
            with self._registry.read() as snapshot:
                row = self.table.get(snapshot, _key(job_id))
        return None if row is None else Job.from_row(row)

    def list(self, *, project: str | None = None, status: Iterable[str] | None = None) -> JobList:
        """All jobs that were not removed, newest first."""
        jobs = [job for job in self.all() if job.removed_ns is None]
        wanted = None if status is None else set(status)
        jobs = [
            j for j in jobs
            if (project is None or j.project == project) and (wanted is None or j.status in wanted)
        ]  # fmt: skip
        return _newest_first(jobs)

    def removed(self) -> JobList:
        """Those that were removed and can be brought back, the last removed first."""
        jobs = [job for job in self.all() if job.removed_ns is not None and not job.purged]
        return sorted(jobs, key=lambda j: (j.removed_ns or 0, j.created_ns, j.id), reverse=True)

    def all(self) -> JobList:
        """All rows, also of jobs that were removed, in no order."""
        with self._registry.read() as txn:
            return [Job.from_row(row) for _, row in self.table.scan(txn)]

    def live(self) -> JobList:
        """Those that have not ended, newest first; the others are not decoded."""
        with self._registry.read() as txn:
            return _newest_first(self.live_in(txn))

    def live_in(self, txn: Txn) -> JobList:
        """Those that have not ended, within a transaction; the others are not decoded."""
        words = [status.encode() for status in LIVE]
        rows = (value for _, value in self.table.scan_bytes(txn) if any(word in value for word in words))
        found = [Job.from_row(decode_row(value)) for value in rows]
        return [job for job in found if job.is_live]

    def find(self, text: str) -> Job:
        """The job with that id; else the newest with that name; else the only one whose id begins so.

        Raises:
            NotFound: naming what is near.
            UsageError: when several ids begin so.
        """
        found = self.look_up(text)
        if found is not None:
            return found
        gone = _chosen(text, self.removed())
        if gone is not None:
            raise NotFound(f"job {gone.id} was removed; `gpu-train checkpoints undo {gone.id}` brings it back")
        meant = near(text, (n for j in self.list() for n in (j.name, j.id)))
        hint = f"did you mean {', '.join(meant)}?" if meant else "`gpu-train jobs` lists what there is"
        raise NotFound(f"no job {text!r}; {hint}")

    def look_up(self, text: str) -> Job | None:
        """The job that `find` gives; None where it finds none.

        Raises:
            UsageError: when several ids begin so.
        """
        exact = self.get(text) if text else None
        if exact is not None and exact.removed_ns is None:
            return exact
        with self._registry.read() as txn:
            rows = [row for _, row in self.table.scan(txn) if _is_called(row, text)]
        return _chosen(text, _newest_first(job for job in map(Job.from_row, rows) if job.removed_ns is None))

    def find_removed(self, text: str) -> Job | None:
        """The removed job that a text names, as for `find`; None when there is none."""
        return _chosen(text, self.removed())

    def put(self, job: Job) -> None:
        """Write a job in a transaction of its own, durable: packs alone could bring it back."""
        with self._transaction() as txn:
            self.put_in(txn, job)

    def put_in(self, txn: Transaction, job: Job) -> None:
        """Write a job as part of a transaction."""
        key = _key(job.id)
        txn.put(self.table, key, to_row(job, txn.get(self.table, key)), durable=True)

    def delete_in(self, txn: Transaction, job_id: str) -> None:
        """Delete a job's row for good, as part of a transaction."""
        txn.delete(self.table, _key(job_id), durable=True)

    def update(self, job_id: str, **changes: Any) -> Job:
        """Change some fields of a job and leave the others as another process may just have set them.

        Raises:
            NotFound: when there is no such job.
        """
        with self._transaction() as txn:
            return self.update_in(txn, job_id, **changes)

    def update_in(self, txn: Transaction, job_id: str, **changes: Any) -> Job:
        """`update` as part of a transaction."""
        job = self.get(job_id, txn.txn)
        if job is None:
            raise NotFound(f"no job {job_id!r}; `gpu-train jobs` lists what there is")
        job = job._replace(**changes)
        self.put_in(txn, job)
        return job


def _chosen(text: str, jobs: Sequence[Job]) -> Job | None:
    """The job of that id; else the first of that name; else the only one whose id begins so.

    Raises:
        UsageError: when several ids begin so.
    """
    named = [j for j in jobs if j.id == text] or [j for j in jobs if j.name == text]
    begun = [j for j in jobs if text and j.id.startswith(text)]
    if named or len(begun) == 1:
        return (named or begun)[0]
    if begun:
        shown = ", ".join(j.id for j in begun[:5]) + (", ..." if len(begun) > 5 else "")
        raise UsageError(f"job {text!r} could be {len(begun)} jobs: {shown}; write more of the id")
    return None


def _is_called(row: Row, text: str) -> bool:
    """Whether a row may be that of the job that `text` names; the others need not be made a Job of."""
    return bool(text) and (row.get("name") == text or str(row.get("id")).startswith(text))


def _key(job_id: str) -> bytes:
    return job_id.encode(errors="surrogateescape")  # what a person typed need not be an id, nor UTF-8


def _newest_first(jobs: Iterable[Job]) -> JobList:
    return sorted(jobs, key=lambda j: (j.created_ns, j.id), reverse=True)
