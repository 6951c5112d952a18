"""The books of one job: what was captured, incomplete or gone, as rows and as events, never silently.

A full disk must not stop the watch: what cannot be written then is kept and written later.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

from gpu_train.active import append_line
from gpu_train.capture.board import InHand
from gpu_train.capture.candidate import Candidate
from gpu_train.capture.finder import fingerprint_of
from gpu_train.capture.storing import Finished, Stored, next_version
from gpu_train.size import size_text
from gpu_train.step import step_of
from gpu_train.tables.checkpoint import GONE, INCOMPLETE, Checkpoint
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import GpuTrainError

MIB = 1 << 20


class Ledger:
    """Writes the books of one job; used by one thread."""

    def __init__(self, workspace: Workspace, job_id: str) -> None:
        self._workspace = workspace
        self._job_id = job_id
        self._events = workspace.home.logs(job_id) / "events.jsonl"
        self._late: deque[Checkpoint] = deque()
        self._known: set[tuple[str, str]] = set()
        self._told: set[tuple[str, str]] = set()
        self._newest_ns: dict[str, int] = {}
        with closing(workspace.checkpoints.history(job_id)) as rows:
            for row in rows:
                (self._told if row.state == GONE else self._known).add((row.base_name, row.fingerprint))
                self._newest_ns.setdefault(row.base_name, row.committed_ns)

    @property
    def is_behind(self) -> bool:
        """Whether rows wait for room on the disk."""
        return bool(self._late)

    def event(self, kind: str, text: str, **fields: Any) -> None:
        """Note what happened in the job's event log; lost when the disk is full."""
        line = {"time_ns": time.time_ns(), "text": text, "kind": kind, "source": "gpu-train", "fields": fields}
        with suppress(OSError):
            append_line(self._events, line)

    def is_known(self, finished: Finished) -> bool:
        """Whether these very files were stored under their name before, also by an earlier agent."""
        return (finished.name, finished.fingerprint) in self._known

    def has(self, name: str, since_ns: int, fingerprint: str = "") -> bool:
        """Whether there has been a row of that name since then, whatever it says; or for just these files."""
        if fingerprint:
            return (name, fingerprint) in self._known | self._told
        return self._newest_ns.get(name, 0) >= since_ns

    def stored(self, finished: Finished, stored: Stored) -> None:
        """Tell of a checkpoint whose row has been committed."""
        self._known.add((finished.name, finished.fingerprint))
        row = stored.checkpoint
        if stored.late_files:
            files = f"{stored.late_files} file" + "s" * (stored.late_files > 1)
            self.event("completed", f"{row.name} got {files} more", name=row.name, late_files=stored.late_files)
        if not stored.is_new:
            return
        step = "" if row.step is None else f", step {row.step}"
        size = f"{row.size_bytes / MIB:.1f} MiB, {stored.new_bytes / MIB:.1f} MiB new"
        kind, text = "captured", f"captured {row.name}{step} ({size}; {row.proof})"
        if row.state == INCOMPLETE:
            kind, text = "incomplete", f"{row.name} is incomplete{step} ({size}): missing is {row.proof}"
        self.event(
            kind, text, name=row.name, step=row.step, size_bytes=row.size_bytes, new_bytes=stored.new_bytes,
            proof=row.proof,
        )  # fmt: skip

    def deleted(self, candidate: Candidate) -> None:
        """A checkpoint was deleted before its bytes could be kept."""
        self._gone(
            candidate.name, candidate.size_bytes, candidate.lifetime_s,
            f"was deleted {candidate.lifetime_s:.2f} s after it appeared, before its bytes could be kept",
        )  # fmt: skip

    def written_over(self, name: str, size_bytes: int, lifetime_s: float, reason: str) -> None:
        """A finished checkpoint was written over in place before its bytes could be kept."""
        text = f"was written over {lifetime_s:.2f} s after it was finished, before it could be kept ({reason})"
        self._gone(name, size_bytes, lifetime_s, text)

    def lost(self, seen: InHand, last_ns: int) -> None:
        """What an earlier agent had seen, until `last_ns`, was deleted or written over before this one began."""
        lifetime_s = max(0.0, (last_ns - seen.seen_ns) / 1e9)
        text = "was seen by a capture agent that died, and was not there any more when the next one began"
        self._gone(seen.name, seen.size_bytes, lifetime_s, text, seen.fingerprint)

    def given_up(self, candidate: Candidate, reason: str) -> None:
        """A checkpoint that was pinned was given up, since the room was needed."""
        self._gone(
            candidate.name, candidate.size_bytes, candidate.lifetime_s,
            f"({size_text(candidate.size_bytes)}) was given up before it could be stored: {reason}",
            fingerprint_of(candidate.members), proof=f"its bytes, which were given up: {reason}",
        )  # fmt: skip

    def committed_and_gone(self, path: str) -> None:
        """A checkpoint was committed by the job and not there any more when the commit was read."""
        self._gone(path.rpartition("/")[2], 0, 0.0, f"({path}) was committed, but deleted before it could be kept")

    def catch_up(self) -> None:
        """Write the rows that had to wait, if there is room now."""
        while self._late:
            row = self._late[0]
            try:
                with self._workspace.store.transaction("capture") as txn:
                    checkpoints = self._workspace.checkpoints
                    newest = next(checkpoints.newest_versions_in(txn.txn, self._job_id, row.name), None)
                    checkpoints.add_in(txn, row._replace(name=next_version(row.name, newest)))
            except GpuTrainError:
                return
            self._late.popleft()

    def close(self, fields: Mapping[str, Any]) -> None:
        """Write how the job ended into its row, unless somebody has.

        Raises:
            StorageFull: when there is no room; try again.
        """
        with self._workspace.store.transaction("end") as txn:
            job = self._workspace.jobs.get(self._job_id, txn.txn)
            if job is not None and job.is_live:
                self._workspace.jobs.put_in(txn, job._replace(**fields))

    def _gone(
        self, name: str, size_bytes: int, lifetime_s: float, what: str, fingerprint: str = "", proof: str = "its bytes"
    ) -> None:
        now = time.time_ns()
        self._late.append(
            Checkpoint(
                self._job_id, name, step=step_of(name), state=GONE, proof=proof, created_ns=now,
                committed_ns=now, size_bytes=size_bytes, lifetime_s=round(lifetime_s, 3), fingerprint=fingerprint,
            )
        )  # fmt: skip
        self.catch_up()
        self.event("gone", f"{name} {what}", name=name, size_bytes=size_bytes, lifetime_s=round(lifetime_s, 3))
