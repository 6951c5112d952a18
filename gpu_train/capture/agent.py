"""The capture agent of one job: a process of its own that watches, pins, stores and keeps the books.

It is told things over its lifeline (`lifeline`): `{"job": {"pid": ...}}` once the command runs, `{"end": {...}}` with
the fields of the job's row when it has ended. The lifeline's end without that word means that the runner
died: the agent then ends the job's processes, does the last capture and marks the job lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_train.capture.candidate import Commit
from gpu_train.capture.frameworks import rulebook
from gpu_train.capture.judge import EXPLICIT
from gpu_train.capture.ledger import Ledger
from gpu_train.capture.lifeline import Lifeline
from gpu_train.capture.reports import Reports
from gpu_train.capture.storing import Finished, Stored
from gpu_train.capture.tracker import Decision, Tracker
from gpu_train.capture.worker import Outcome, Worker
from gpu_train.control import END_FILE
from gpu_train.process import boot_id, end_job, processes_of, start_time
from gpu_train.retention.upkeep import Upkeep
from gpu_train.tables.checkpoint import INCOMPLETE, VERIFIED
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import SourceChanged, StorageFull


@dataclass(frozen=True, slots=True)
class End:
    """How the job ended: the fields of its row."""

    fields: Mapping[str, Any]

    @property
    def is_clean(self) -> bool:
        """Whether the command ended by itself and said that all is well."""
        return self.fields.get("exit_code") == 0

    @property
    def is_lost(self) -> bool:
        """Whether nobody saw it end."""
        return self.fields.get("status") == "lost"


class Agent:
    """Watches one job until it has ended and everything it left is in the store."""

    def __init__(self, workspace: Workspace, job: Job, lifeline: int | None) -> None:
        home, settings = workspace.home, workspace.config.capture
        self._workspace = workspace
        self._job = job
        self._settings = settings
        self._lifeline = None if lifeline is None else Lifeline(lifeline)
        self._pid, self._pid_start = job.pid, job.pid_start
        self._tracker = Tracker(
            home.checkpoints(job.id), home.pins(job.id), settle_s=settings.settle_s, processes=self._processes,
            rules=rulebook(settings.rules),
        )  # fmt: skip
        self._ledger = Ledger(workspace, job.id)
        self._reports = Reports(workspace, job.id)
        self._worker = Worker(
            workspace, job.id, settings.retry_s, after=Upkeep(workspace, job, self._ledger.event).stored
        )

    def run(self) -> None:
        """Watch until the end, then capture what is left; returns when all is stored."""
        with self._worker:
            for decision in self._tracker.recover():
                self._hand_over(decision)
            end = self._listen(0.0)
            while end is None:
                self._turn()
                end = self._listen(self._settings.scan_s)
            self._finish(end)

    def _turn(self, **ended: Any) -> None:
        """One round: what is there, what was said, what is decided, what came of it."""
        self._tracker.look()
        for commit in self._reports.commits():  # those of contents before what was seen now come first
            self._take(commit)
        for decision in self._tracker.decide(**ended):
            self._hand_over(decision)
        for outcome in self._worker.outcomes():
            self._note(outcome)
        self._ledger.catch_up()
        self._reports.take()

    def _take(self, commit: Commit) -> None:
        decision = self._tracker.take_commit(commit)
        if decision is not None:
            self._hand_over(decision)
        else:
            self._ledger.committed_and_gone(commit.path)
            self._reports.answer(commit, "it was deleted before its bytes could be kept")

    def _hand_over(self, decision: Decision) -> None:
        """Have a checkpoint stored, or enter it as gone."""
        candidate, verdict = decision.candidate, decision.verdict
        if decision.gone:
            self._ledger.deleted(candidate)
            candidate.discard()
            return
        commit = candidate.commit or Commit(candidate.found.path)
        finished = Finished(
            self._job.id, candidate.name, candidate.base(), candidate.found.shape, dict(candidate.members),
            verdict.proof or verdict.missing, VERIFIED if verdict.is_whole else INCOMPLETE, candidate.found.path,
            commit.step, commit.metrics, commit.tags, candidate.earlier if candidate.completes_earlier else {},
        )  # fmt: skip
        if finished.proof != EXPLICIT and self._ledger.is_known(finished):
            candidate.discard()
        else:
            self._worker.put(finished, candidate)

    def _note(self, outcome: Outcome) -> None:
        """Keep the books on what came of storing a checkpoint."""
        candidate, result = outcome.candidate, outcome.result
        if isinstance(result, Stored):
            candidate.discard()
            self._ledger.stored(outcome.finished, result)
            self._reports.answer(candidate.commit)
        elif isinstance(result, SourceChanged):
            self._tracker.look_again(candidate)
            if outcome.finished.state == VERIFIED:
                self._ledger.written_over(candidate, str(result))
                self._reports.answer(candidate.commit, str(result))
        elif outcome.final:
            self._ledger.event(
                "agent", f"storing {candidate.name} failed {outcome.attempt} times and is given up: {result!r}; "
                f"what was pinned of it stays in {candidate.pin}", name=candidate.name,
            )  # fmt: skip
            self._reports.answer(candidate.commit, f"storing it failed {outcome.attempt} times: {result!r}")
        elif outcome.attempt == 1:
            kind = "storage" if isinstance(result, StorageFull) else "agent"
            self._ledger.event(kind, f"storing {candidate.name} failed and is tried again: {result}")

    def _listen(self, timeout_s: float) -> End | None:
        """Wait a moment for the runner's word; how the job ended when it did, or when the runner did."""
        if self._lifeline is None:
            return self._last_word() or self._lost("its runner is gone")
        for word in self._lifeline.listen(timeout_s):
            if "job" in word:
                self._pid, self._pid_start = word["job"]["pid"], word["job"]["pid_start"]
            if "end" in word:
                return End(word["end"])
        return self._lost("its runner died") if self._lifeline.is_cut else None

    def _last_word(self) -> End | None:
        """How the job ended, as its runner noted before it died itself."""
        try:
            return End(json.loads((self._workspace.home.control(self._job.id) / END_FILE).read_text()))
        except (OSError, ValueError):
            return None

    def _processes(self) -> set[int]:
        return set() if self._pid is None else processes_of(self._pid)

    def _lost(self, reason: str) -> End:
        """End what is left of the job's processes; without a runner nobody reads what they print."""
        job = self._workspace.jobs.get(self._job.id) or self._job
        pid, began = self._pid or job.pid, self._pid_start or job.pid_start
        reused = pid is not None and start_time(pid) not in (None, began)
        if pid is not None and job.boot_id in (boot_id(), "") and not reused:
            end_job(pid, job.id, self._workspace.config.run.interrupt_grace_s)
        self._ledger.event("ended", f"the job is lost: {reason}")
        return End({"status": "lost", "ended_ns": time.time_ns(), "reason": reason})

    def _finish(self, end: End) -> None:
        """The last capture: look until there is nothing left to decide, to store or to write down."""
        lived_ns = self._last_sign_ns() if end.is_lost else 0
        while True:
            self._turn(ended=True, clean_end=end.is_clean, lived_ns=lived_ns)
            busy = self._worker.is_busy or self._ledger.is_behind or self._reports.has_commits()
            if not (busy or self._tracker.watched) and self._close(end):
                self._tracker.clear()
                return
            self._worker.wait(self._settings.scan_s)

    def _close(self, end: End) -> bool:
        """Write the last rows; whether there was room for them."""
        try:
            self._reports.take(now=True)
            self._ledger.close(end.fields)
        except StorageFull:
            time.sleep(self._settings.scan_s)
            return False
        return True

    def _last_sign_ns(self) -> int:
        """When the job last printed or reported something; what had come to rest well before that was finished."""
        logs = self._workspace.home.logs(self._job.id)
        times = [0]
        for name in ("stdout.log", "metrics.jsonl"):
            try:
                times.append((logs / name).stat().st_mtime_ns)
            except OSError:
                continue
        return max(times)
