"""The capture agent of one job: a process of its own that watches, pins, stores and keeps the books.

It is told things over its lifeline, a pipe whose other end only the runner holds: JSON lines, `{"job": {"pid":
...}}` once the command runs, `{"end": {...}}` when it has ended. The pipe's end without that word means that
the runner died: the agent then ends the job's processes, does the last capture and marks the job lost.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu_train.active import append_line
from gpu_train.capture.candidate import Commit
from gpu_train.capture.judge import EXPLICIT
from gpu_train.capture.reports import Reports
from gpu_train.capture.storing import Finished, Stored
from gpu_train.capture.tracker import Decision, Tracker
from gpu_train.capture.worker import Outcome, Worker
from gpu_train.process import boot_id, end_job, processes_of, start_time
from gpu_train.step import step_of, with_version
from gpu_train.tables.checkpoint import GONE, INCOMPLETE, VERIFIED, Checkpoint
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import SourceChanged, StorageFull

AGENT_LOCK = "agent.lock"
"""In the control folder: who holds its lock is the job's agent."""

BUSY_EXIT = 6
"""Exit code of an agent that found another one at work."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class End:
    """How the job ended: the fields of its row."""

    fields: Mapping[str, Any]
    clean: bool


class Agent:
    """Watches one job until it has ended and everything it left is in the store."""

    def __init__(self, workspace: Workspace, job: Job, lifeline: int | None) -> None:
        home, settings = workspace.home, workspace.config.capture
        self.workspace = workspace
        self.job = job
        self.settings = settings
        self._lifeline = lifeline
        self._buffer = b""
        self._end: End | None = None
        self._pid, self._pid_start = job.pid, job.pid_start
        self.tracker = Tracker(
            home.checkpoints(job.id), home.pins(job.id), settle_s=settings.settle_s, processes=self._processes
        )
        self.reports = Reports(workspace, job.id)
        self.worker = Worker(workspace, job.id, settings.retry_s)

    def run(self) -> None:
        """Watch until the end, then capture what is left; returns when all is stored."""
        self._know_again()
        with self.worker:
            for decision in self.tracker.recover():
                self._hand_over(decision)
            while self._end is None:
                self._turn()
                self._listen(self.settings.scan_s)
            self._finish(self._end)

    def event(self, kind: str, text: str, **fields: Any) -> None:
        """Note what happened in the job's event log."""
        line = {"time_ns": time.time_ns(), "text": text, "kind": kind, "source": "gpu-train", "fields": fields}
        append_line(self.workspace.home.logs(self.job.id) / "events.jsonl", line)

    def _turn(self, **ended: Any) -> None:
        """One round: what was said, what is there, what is decided, what came of it."""
        for commit in self.reports.commits():
            self._commit(commit)
        self.tracker.look()
        for decision in self.tracker.decide(**ended):
            self._hand_over(decision)
        for outcome in self.worker.outcomes():
            self._report(outcome)
        self.reports.take()

    def _commit(self, commit: Commit) -> None:
        decision = self.tracker.take_commit(commit)
        if decision is not None:
            self._hand_over(decision)
        else:
            self._gone(commit.path, 0, 0.0, f"{commit.path} was committed, but deleted before it could be kept")

    def _hand_over(self, decision: Decision) -> None:
        candidate = decision.candidate
        if decision.gone:
            lifetime_s = candidate.last_seen - candidate.first_seen
            self._gone(
                candidate.name, candidate.size_bytes, lifetime_s,
                f"{candidate.name} was deleted {lifetime_s:.2f} s after it appeared, before its bytes could be kept",
            )  # fmt: skip
            candidate.discard()
            return
        commit = candidate.commit or Commit(candidate.found.path)
        finished = Finished(
            self.job.id, candidate.name, candidate.base(), candidate.found.shape, dict(candidate.members),
            decision.verdict.proof or decision.verdict.missing,
            VERIFIED if decision.verdict.is_whole else INCOMPLETE, candidate.found.path, commit.step, commit.metrics,
            commit.tags,
        )  # fmt: skip
        if finished.proof != EXPLICIT and self._is_known(finished):
            candidate.discard()
            return
        self.worker.put(finished, candidate)

    def _report(self, outcome: Outcome) -> None:
        candidate, finished = outcome.candidate, outcome.finished
        if isinstance(outcome.result, Stored):
            candidate.discard()
            if outcome.result.is_new:
                self._captured(outcome.result)
            self._fingerprints[finished.name] = finished.fingerprint
        elif isinstance(outcome.result, SourceChanged):
            self.tracker.put_back(candidate, again=False)
            if finished.state == VERIFIED:
                self._gone(
                    candidate.name, candidate.size_bytes, candidate.last_seen - candidate.first_seen,
                    f"{candidate.name} was written over before it could be kept ({outcome.result})",
                )  # fmt: skip
        elif isinstance(outcome.result, StorageFull):
            self.event("storage", f"no space left: storing {candidate.name} is tried again; {outcome.result}")
        else:
            self.event("agent", f"storing {candidate.name} failed and is tried again: {outcome.result!r}")

    def _captured(self, stored: Stored) -> None:
        row = stored.checkpoint
        step = "" if row.step is None else f", step {row.step}"
        size = f"{row.size_bytes / MIB:.1f} MiB, {stored.new_bytes / MIB:.1f} MiB new"
        text = f"captured {row.name}{step} ({size}; {row.proof})"
        if row.state == INCOMPLETE:
            text = f"{row.name} is incomplete{step} ({size}): missing is {row.proof}"
        self.event(
            "captured" if row.state == VERIFIED else "incomplete", text, name=row.name, step=row.step,
            size_bytes=row.size_bytes, new_bytes=stored.new_bytes, proof=row.proof,
        )  # fmt: skip

    def _gone(self, name: str, size_bytes: int, lifetime_s: float, text: str) -> None:
        """Put a checkpoint that was lost into the ledger and the events: it must not be silent."""
        with self.workspace.store.transaction("capture") as txn:
            versions = self.workspace.checkpoints.versions_in(txn.txn, self.job.id, name)
            row = Checkpoint(
                self.job.id, with_version(name, len(versions) + 1), step=step_of(name), state=GONE,
                proof="its bytes", created_ns=time.time_ns(), committed_ns=time.time_ns(), size_bytes=size_bytes,
                lifetime_s=round(lifetime_s, 3),
            )  # fmt: skip
            self.workspace.checkpoints.add_in(txn, row)
        self.event("gone", text, name=name, size_bytes=size_bytes, lifetime_s=round(lifetime_s, 3))

    def _know_again(self) -> None:
        """Remember what was stored before, so that a restarted agent reads nothing twice."""
        with self.workspace.store.registry.read() as txn:
            rows = list(self.workspace.checkpoints.scan(txn, self.job.id))
        self._fingerprints = {c.base_name: c.fingerprint for c in rows if c.fingerprint}

    def _is_known(self, finished: Finished) -> bool:
        return self._fingerprints.get(finished.name) == finished.fingerprint

    # The lifeline

    def _listen(self, timeout_s: float) -> None:
        """Wait a moment for the runner's word."""
        if self._lifeline is None:
            self._end = self._lost("its runner is gone")
            return
        if not select.select([self._lifeline], [], [], timeout_s)[0]:
            return
        data = os.read(self._lifeline, 65536)
        if not data:
            self._end = self._lost("its runner died")
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))

    def _hear(self, word: Mapping[str, Any]) -> None:
        if "job" in word:
            self._pid, self._pid_start = word["job"]["pid"], word["job"]["pid_start"]
        if "end" in word:
            self._end = End(word["end"], word["end"].get("exit_code") == 0)

    def _processes(self) -> set[int]:
        return set() if self._pid is None else processes_of(self._pid)

    # The end

    def _lost(self, reason: str) -> End:
        """End what is left of the job's processes; without a runner nobody reads what they print."""
        job = self.workspace.jobs.get(self.job.id) or self.job
        pid, began = self._pid or job.pid, self._pid_start or job.pid_start
        reused = pid is not None and start_time(pid) not in (None, began)
        if pid is not None and job.boot_id == boot_id() and not reused:
            end_job(pid, job.id, self.workspace.config.run.interrupt_grace_s)
        self.event("ended", f"the job is lost: {reason}")
        return End({"status": "lost", "ended_ns": time.time_ns(), "reason": reason}, False)

    def _finish(self, end: End) -> None:
        """The last capture: look until there is nothing left to decide or to store."""
        lived_ns = self._last_sign_ns() if end.fields.get("status") == "lost" else 0
        deadline = time.monotonic() + (self.settings.final_deadline_s or float("inf"))
        while True:
            self._turn(ended=True, clean_end=end.clean, lived_ns=lived_ns)
            if not (self.tracker.watched or self.worker.is_busy or self.reports.has_commits()):
                break
            if time.monotonic() > deadline:
                self.event("agent", "the last capture took too long and was left; `gpu-train reconcile` goes on")
                break
            self.worker.wait(self.settings.scan_s)
        with self.workspace.store.transaction("end") as txn:
            job = self.workspace.jobs.get(self.job.id, txn.txn)
            if job is not None and job.is_live:
                self.workspace.jobs.put_in(txn, replace(job, **end.fields))
        self.reports.take(now=True)

    def _last_sign_ns(self) -> int:
        """When the job last printed or reported something; what had come to rest well before that was finished."""
        logs = self.workspace.home.logs(self.job.id)
        times = [0]
        for name in ("stdout.log", "metrics.jsonl"):
            try:
                times.append((logs / name).stat().st_mtime_ns)
            except OSError:
                continue
        return max(times)
