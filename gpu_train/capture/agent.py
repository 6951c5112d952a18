"""The capture agent of one job: a process of its own that watches, pins, stores and keeps the books.

It is told things over its lifeline (`lifeline`): `{"job": {"pid": ...}}` once the command runs, `{"end": {...}}` with
the fields of the job's row when it has ended. The lifeline's end without that word means that the runner
died: the agent then ends the job's processes, does the last capture and marks the job lost.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_train.capture.board import SETTLED, STORING, WRITING, Board, InHand
from gpu_train.capture.candidate import Candidate
from gpu_train.capture.commit import Commit, name_at
from gpu_train.capture.decision import Decision
from gpu_train.capture.finder import fingerprint_of
from gpu_train.capture.foresight import Foresight
from gpu_train.capture.frameworks import rulebook
from gpu_train.capture.headroom import Headroom
from gpu_train.capture.judge import EXPLICIT
from gpu_train.capture.ledger import Ledger
from gpu_train.capture.lifeline import Lifeline
from gpu_train.capture.loose import Loose
from gpu_train.capture.pausing import Pausing
from gpu_train.capture.pins import note_place, places_of
from gpu_train.capture.pressure import Pinned, Pressure
from gpu_train.capture.reports import Reports
from gpu_train.capture.storing import Finished, Stored
from gpu_train.capture.tracker import Tracker
from gpu_train.capture.watch.lookout import Lookout
from gpu_train.capture.watch.rescan import Rescan
from gpu_train.capture.watch.sighting import Sighting
from gpu_train.capture.watch.view import View
from gpu_train.capture.worker import GivenUp, Outcome, Worker
from gpu_train.control import END_FILE
from gpu_train.process import boot_id, end_job, processes_of, start_time
from gpu_train.retention.upkeep import Upkeep
from gpu_train.sinks.replication import Replication
from gpu_train.tables.checkpoint import INCOMPLETE, VERIFIED
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import SourceChanged, StorageFull

UNFLUSHED_NS = 60 * 10**9
"""How long a kernel may keep written bytes in memory only: half of that is Linux's default."""

IDLE_S = 0.5
"""At most so long is the agent's pause when nothing happens: metrics may have been reported."""

DRAIN_S = 0.02
"""At least so long apart are two looks at what the sentry tells; it comes in bursts."""


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

    def __init__(self, workspace: Workspace, job: Job, lifeline: int | None, lookout: Lookout) -> None:
        """`lookout` has been started, and is ended with the agent."""
        home, settings = workspace.home, workspace.config.capture
        self._workspace = workspace
        self._job = job
        self._settings = settings
        self._lifeline = None if lifeline is None else Lifeline(lifeline)
        self._pid, self._pid_start = job.pid, job.pid_start
        root = home.checkpoints(job.id)
        self._lookout = lookout
        self._tracker = Tracker(
            root, home.pins(job.id), settle_s=settings.settle_s, processes=self._processes,
            rules=rulebook(settings.rules), view=View(root, lookout.drop),
        )  # fmt: skip
        self._rescan = Rescan(settings.scan_s, lambda: lookout.is_watching)
        self._rescan.also_on(root)
        self._turned = self._drained = 0.0
        self._ledger = Ledger(workspace, job.id)
        self._reports = Reports(workspace, job.id)
        self._upkeep = Upkeep(workspace, job, self._ledger.event)
        self._headroom = Headroom(workspace, job, settings.reserve_bytes)
        self._pressure = Pressure(home, job.id, self._headroom, settings.max_pin_bytes, self._ledger.event)
        self._replication = Replication(workspace, job.id)
        self._worker = Worker(
            workspace, job.id, settings.retry_s, self._headroom, after=self._upkeep.stored, on_stored=self._stored
        )
        self._loose = Loose(self._headroom, self._worker.if_waiting)
        self._stuck: list[Pinned] = []
        self._pausing = Pausing(self._ledger.event)
        self._recovered: set[str] = set()
        self._foresight = Foresight(workspace, job.id, self._ledger.event)
        self._board = Board(home.control(job.id), settings.max_pin_bytes)

    def _stored(self, stored: Stored) -> None:
        """Called by the worker when a checkpoint has been stored."""
        self._replicate(lambda: self._replication.stored(stored.checkpoint))

    def _replicate(self, do: Callable[[], None]) -> None:
        """What concerns the sinks; whatever fails must not end the watch."""
        try:
            do()
        except Exception as e:
            self._ledger.event("agent", f"what is to go to the sinks could not be queued: {e}")

    def begin(self) -> None:
        """Take over what an earlier agent left, and see to it that everything is watched."""
        self._tracker.places += places_of(self._workspace.home, self._job.id)[1:]
        for decision in self._tracker.recover(self._lookout.began_ns):
            if decision.candidate.commit is not None:
                self._recovered.add(decision.candidate.commit.id)
            self._hand_over(decision)
        self._lookout.wait_ready()
        self._see(self._lookout.read())
        self._tracker.look(self._lookout.sync)
        self._account_for_earlier()

    def run(self) -> None:
        """Watch until the end, then capture what is left; returns when all is stored."""
        with self._lookout, self._worker:
            end = self._listen(0.0)
            while end is None:
                self._turn()
                end = self._pause()
            self._finish(end)

    def _turn(self, **ended: Any) -> None:
        """One round: what is there, what was said, what is decided, what came of it."""
        self._see(self._lookout.read())
        self._look(bool(ended))
        self._lookout.is_poked = False
        for commit in self._reports.commits():  # those of contents before what was seen now come first
            self._see(self._lookout.sync())
            self._take(commit)
        for decision in self._tracker.decide(**ended):
            self._hand_over(decision)
        self._tracker.release()
        self._make_room(bool(ended))
        for lost in (*self._tracker.overwritten.lost(), *self._tracker.resaved.lost()):
            self._ledger.written_over(lost.name, lost.size_bytes, lost.lifetime_s, "the next version came at once")
        for outcome in self._worker.outcomes():
            self._note(outcome)
        self._ledger.catch_up()
        self._reports.take()
        self._pausing.look(self._worker.paused)
        self._board.show(self._in_hand(), self._worker.paused, self._headroom.save_bytes)
        self._turned = time.monotonic()

    def _make_room(self, ended: bool) -> None:
        """See to it that what we hold and write is not what the trainer lacks."""
        self._headroom.is_ended = ended
        unstored = self._worker.unstored()
        self._headroom.watch(self._tracker.watched, [candidate for _, candidate, _ in unstored])
        self._lookout.spare(self._headroom.spare_bytes())
        if ended:  # nobody deletes or writes any more: what is pinned can wait
            self._worker.is_hurried = False
            return
        pinned = [Pinned(candidate, f.state == VERIFIED, is_at_work) for f, candidate, is_at_work in unstored]
        lost, given_up = self._loose.look(pinned), self._pressure.relieve([*self._stuck, *pinned])
        for one in (*lost, *given_up):
            stuck = [s for s in self._stuck if s.candidate is not one.candidate]
            if len(stuck) < len(self._stuck):
                self._stuck = stuck
                self._give_up(one.candidate, one.reason)
            else:
                self._worker.give_up(one.candidate, one.reason)
        if not given_up:
            self._loose.let_go(pinned)
        self._worker.is_hurried = self._pressure.is_high

    def _give_up(self, candidate: Candidate, reason: str) -> None:
        """Free what a checkpoint holds that is not stored, and say so."""
        candidate.discard()
        self._ledger.given_up(candidate, reason)
        self._headroom.stored()

    def _in_hand(self) -> list[InHand]:
        """What was seen and is not stored yet."""
        stored = ((c, STORING if is_begun else SETTLED) for c, is_begun in self._worker.in_hand())
        return [*(_shown(c, WRITING) for c in self._tracker.watched), *(_shown(c, state) for c, state in stored)]

    def _account_for_earlier(self) -> None:
        """Tell what an earlier agent had in its hands and is lost: deleted after its death, before this one began."""
        here = [*self._tracker.watched, *(c for c, _ in self._worker.in_hand())]
        names, prints = {c.name for c in here}, {fingerprint_of(c.members) for c in here}
        inodes = {c.found.inode for c in here if not c.found.is_loose}
        for one in self._board.before.in_hand:
            is_there = os.path.isdir(one.path) if one.fingerprint else os.path.lexists(one.path) or one.name in names
            is_there = is_there or (not one.fingerprint and tuple(one.inode) in inodes)  # it was renamed meanwhile
            if not (is_there or one.fingerprint in prints or self._ledger.has(one.name, one.seen_ns, one.fingerprint)):
                self._ledger.lost(one, self._board.before.time_ns)

    def _see(self, sightings: Iterable[Sighting]) -> None:
        """Take in what the sentry saw and said."""
        self._tracker.take(sightings)
        for text in self._lookout.notices():
            self._ledger.event("agent", text)
        for place in self._lookout.places():
            note_place(self._workspace.home, self._job.id, place)
            self._tracker.places.append(place)
            self._headroom.also_on(place)
            self._rescan.also_on(place)
        self._drained = time.monotonic()

    def _look(self, ended: bool) -> None:
        """Look at what has been told; and at the disk itself, when it is time or nothing more will be told."""
        if not ended and self._rescan.left_s > 0:
            self._tracker.glance()
            return
        began = time.monotonic()
        was_news = self._tracker.look(self._lookout.sync)
        self._rescan.done(time.monotonic() - began, was_news=was_news)

    def _pause(self) -> End | None:
        """Wait for what is to be done next; how the job ended when it did.

        What the sentry tells is taken in as it comes, as it is cheap; a round comes at most every `scan_s`, unless
        something is urgent, and without any news only when something may have become due.
        """
        scan_s = self._settings.scan_s
        busy = self._tracker.watched or self._worker.is_busy or self._ledger.is_behind or self._rescan.is_polling
        until = self._turned + (scan_s if busy else max(scan_s, min(IDLE_S, self._rescan.left_s)))
        while True:
            end = self._listen(max(0.0, min(until, self._drained + DRAIN_S) - time.monotonic()))
            if end is not None or time.monotonic() >= until:
                return end
            if self._wait_for_news(until):
                self._see(self._lookout.read())
                until = min(until, self._turned + scan_s)
                if self._tracker.is_urgent:
                    return None

    def _wait_for_news(self, until: float) -> bool:
        """Wait for the sentry or the runner; whether the sentry has something to tell."""
        poll = select.poll()
        for source in (self._lookout.fileno(), self._lifeline and self._lifeline.fileno()):
            if source is not None:
                poll.register(source, select.POLLIN)
        ready = poll.poll(max(0.0, until - time.monotonic()) * 1000)
        return any(fd == self._lookout.fileno() for fd, _ in ready)

    def _take(self, commit: Commit) -> None:
        if commit.id and commit.id in self._recovered:
            return
        decision = self._tracker.take_commit(commit)
        if decision is not None:
            if not decision.waits:
                self._hand_over(decision)
        elif self._ledger.has(name_at(commit.path, self._tracker.root), commit.time_ns):  # an earlier agent did
            self._reports.answer(commit)
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
            candidate.first_seen_ns, time.time_ns(),
        )  # fmt: skip
        if finished.proof != EXPLICIT and self._ledger.is_known(finished):
            candidate.discard()
        else:
            self._worker.put(finished, candidate)

    def _note(self, outcome: Outcome) -> None:
        """Keep the books on what came of storing a checkpoint."""
        candidate, result = outcome.candidate, outcome.result
        if isinstance(result, Stored):
            self._ledger.stored(outcome.finished, result)
            self._reports.answer(candidate.commit)
            self._headroom.stored()
            if result.is_new:
                self._foresight.look()
        elif isinstance(result, GivenUp):
            self._give_up(candidate, str(result))
            self._reports.answer(candidate.commit, str(result))
        elif isinstance(result, SourceChanged):
            self._tracker.look_again(candidate)
            if outcome.finished.state == VERIFIED:
                self._ledger.written_over(candidate.name, candidate.size_bytes, candidate.lifetime_s, str(result))
                self._reports.answer(candidate.commit, str(result))
        elif outcome.final:
            self._ledger.event(
                "agent", f"storing {candidate.name} failed {outcome.attempt} times and is given up: {result!r}; "
                f"what was pinned of it stays in {candidate.pin}", name=candidate.name,
            )  # fmt: skip
            self._reports.answer(candidate.commit, f"storing it failed {outcome.attempt} times: {result!r}")
            self._stuck.append(Pinned(candidate, outcome.finished.state == VERIFIED))
        elif outcome.attempt == 1:
            kind = "storage" if isinstance(result, StorageFull) else "agent"
            self._ledger.event(kind, f"storing {candidate.name} failed and is tried again: {result}")

    def _listen(self, timeout_s: float) -> End | None:
        """Wait a moment for the runner's word; how the job ended when it did, or when the runner did."""
        if self._lifeline is None:
            return self._last_word() or self._as_written() or self._lost("its runner is gone")
        for word in self._lifeline.listen(timeout_s):
            if "job" in word:
                self._pid, self._pid_start = word["job"]["pid"], word["job"]["pid_start"]
            if "end" in word:
                return End(word["end"])
        if not self._lifeline.is_cut:
            return None
        return self._last_word() or self._lost("its runner died")

    def _last_word(self) -> End | None:
        """How the job ended, as its runner noted before it died itself."""
        try:
            return End(json.loads((self._workspace.home.control(self._job.id) / END_FILE).read_text()))
        except (OSError, ValueError):
            return None

    def _as_written(self) -> End | None:
        """How the job ended by its row, for an agent that comes after its end for what is still pinned."""
        job = self._workspace.jobs.get(self._job.id) or self._job
        return None if job.is_live else End({"status": job.status, "exit_code": job.exit_code})

    def _processes(self) -> set[int]:
        return set() if self._pid is None else processes_of(self._pid)

    def _lost(self, reason: str) -> End:
        """End what is left of the job's processes; without a runner nobody reads what they print."""
        job = self._workspace.jobs.get(self._job.id) or self._job
        pid, began = self._pid or job.pid, self._pid_start or job.pid_start
        if pid is not None and (job.boot_id not in (boot_id(), "") or start_time(pid) not in (None, began)):
            pid = None  # another process has that number by now
        end_job(pid, job.id, self._workspace.config.run.interrupt_grace_s, self._turn)
        self._ledger.event("ended", f"the job is lost: {reason}")
        return End({"status": "lost", "ended_ns": time.time_ns(), "reason": reason})

    def _finish(self, end: End) -> None:
        """The last capture: look until there is nothing left to decide, to store or to write down."""
        lived_ns = self._lived_ns() if end.is_lost else 0
        while True:
            self._turn(ended=True, clean_end=end.is_clean, lived_ns=lived_ns)
            busy = self._worker.is_busy or self._ledger.is_behind or self._reports.has_commits()
            if end.is_lost:  # a runner may have died in the middle of starting the command
                end_job(None, self._job.id, self._workspace.config.run.interrupt_grace_s)
            if not (busy or self._tracker.watched) and self._close(end):
                self._tracker.clear()
                return
            self._worker.wait(self._settings.scan_s)

    def _close(self, end: End) -> bool:
        """Write the last rows; whether there was room for them."""
        try:
            self._reports.take(now=True)
            self._ledger.close(end.fields)
            self._upkeep.ended()
            self._reports.take(now=True)
            self._replicate(self._replication.ended)
        except StorageFull:
            time.sleep(self._settings.scan_s)
            return False
        return True

    def _lived_ns(self) -> int:
        """When the job last gave a sign of life; what had come to rest well before that was finished.

        When the machine went down, what was written shortly before may never have reached the disk.
        """
        went_down = self._job.boot_id not in (boot_id(), "")
        return self._last_sign_ns() - (UNFLUSHED_NS if went_down else 0)

    def _last_sign_ns(self) -> int:
        """When the job last printed or reported something."""
        logs = self._workspace.home.logs(self._job.id)
        times = [0]
        for name in ("stdout.log", "metrics.jsonl"):
            try:
                times.append((logs / name).stat().st_mtime_ns)
            except OSError:
                continue
        return max(times)


def _shown(candidate: Candidate, state: str) -> InHand:
    return InHand(
        candidate.name, state, candidate.first_seen_ns, path=candidate.found.path, size_bytes=candidate.size_bytes,
        is_pinned=candidate.is_held, fingerprint="" if state == WRITING else fingerprint_of(candidate.members),
        inode=candidate.found.inode,
    )  # fmt: skip
