"""Works the queue of pushes: one process for a home, one thread for each sink, until there is nothing left to do.

Best effort: a sink that fails is tried again, ever more slowly, and costs the training and the other sinks nothing.
"""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import IO

from gpu_train.active import append_line
from gpu_train.home import Home
from gpu_train.sinks.card import write_card
from gpu_train.sinks.logs import push_logs
from gpu_train.sinks.objects.objectstore import OnBytes
from gpu_train.sinks.objects.paced import Pace
from gpu_train.sinks.opening import open_sink
from gpu_train.sinks.push import push
from gpu_train.sinks.queue import LOGS, Item, Queue
from gpu_train.sinks.setting import SinkSetting
from gpu_train.sinks.sink import Sink
from gpu_train.tables import Checkpoint, Event
from gpu_train.tables.checkpoint import VERIFIED
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import Busy, Damaged, GpuTrainError, NotFound

EVENT = "sink"
POLL_S = 0.5
LINGER_S = 5.0
"""How long it waits for more before it ends."""

PATIENCE_S = 3600.0
"""How long it goes on trying what fails when no job runs; the next run, or `sinks push`, begins again."""

FEW_FILES_BATCH = 100
BATCH = 1

OnPushed = Callable[[Sequence[Item], int], None]
"""Told of what is there now, and how many bytes were sent for it."""


class Work:
    """Pushes what is queued for one sink; one thread at a time, and one process (`lock_sink`)."""

    def __init__(self, workspace: Workspace, setting: SinkSetting, on_bytes: OnBytes = lambda count: None) -> None:
        self._workspace = workspace
        self._setting = setting
        self._queue = Queue(workspace.store.registry)
        self._on_bytes = on_bytes
        self._pace = None if setting.limit is None else Pace(setting.limit)

    def due(self, job_id: str | None = None) -> list[Item]:
        """What is to be tried now, longest waiting first."""
        now_ns = time.time_ns()
        return [item for item in self._queue.waiting(self._setting.address, job_id) if item.next_ns <= now_ns]

    def do(self, items: Sequence[Item], on_pushed: OnPushed = lambda items, count: None) -> list[Item]:
        """Push what was queued; what is left, with the reasons noted in the queue.

        When the sink itself fails, nothing more of it is tried; when a checkpoint cannot be read, only that.
        """
        left: list[Item] = []
        try:
            with open_sink(self._workspace, self._setting) as sink:
                checkpoints = [item for item in items if item.seq != LOGS]
                size = FEW_FILES_BATCH if sink.objects.few_files else BATCH
                for at in range(0, len(checkpoints), size):
                    left += self._push(sink, checkpoints[at : at + size], on_pushed)
                for item in items:
                    if item.seq == LOGS:
                        sent = push_logs(self._workspace, sink.objects, item.job_id, self._on_bytes)
                        self._queue.done([item])
                        on_pushed([item], sent)
        except Exception as e:  # whatever it is must neither end the process nor be tried without a pause
            said = str(e) if isinstance(e, GpuTrainError) else f"{type(e).__name__}: {e}"
            waiting = {(i.job_id, i.seq) for i in self._queue.waiting(self._setting.address)}
            left = [item for item in items if (item.job_id, item.seq) in waiting]
            self._queue.failed(left, said)
            self._tell_failure(left, said)
        return left

    def _push(self, sink: Sink, items: Sequence[Item], on_pushed: OnPushed) -> list[Item]:
        wanted: dict[tuple[str, int], Item] = {(item.job_id, item.seq): item for item in items}
        found = self._found(items)
        gone = [item for key, item in wanted.items() if key not in {(c.job_id, c.seq) for c in found}]
        if gone:  # removed, or never whole: there is nothing to push
            self._queue.done(gone)
        if not found:
            return []
        there = [wanted[c.job_id, c.seq] for c in found]
        try:
            pushed = push(
                self._workspace, sink, found, again=any(item.attempts for item in there), pace=self._pace,
                on_bytes=self._on_bytes,
            )  # fmt: skip
        except (Damaged, NotFound) as e:
            if len(there) > 1:  # find out which of them
                return [left for item in there for left in self._push(sink, [item], on_pushed)]
            self._queue.failed(there, str(e))
            self._tell_failure(there, str(e))
            return there
        try:
            write_card(self._workspace, self._setting, sink.objects, sink.records())
        except GpuTrainError as e:  # the checkpoints are there; the card comes with the next push
            self._event(found[0].job_id, f"the model card in {self._setting.called} could not be written: {e}")
        # What got another content meanwhile stays, and is pushed with that.
        done = [wanted[c.job_id, c.seq] for c in pushed.checkpoints]
        self._queue.done(done)
        self._tell_success(there, pushed.checkpoints, pushed.sent_bytes)
        on_pushed(done, pushed.sent_bytes)
        return [wanted[c.job_id, c.seq] for c in pushed.skipped]

    def _found(self, items: Sequence[Item]) -> list[Checkpoint]:
        with self._workspace.store.registry.read() as txn:
            rows = [self._workspace.checkpoints.get_in(txn, item.job_id, item.seq) for item in items]
        return [row for row in rows if row is not None and row.record is not None and row.state == VERIFIED]

    def _tell_failure(self, items: Sequence[Item], error: str) -> None:
        """Once for each job and row of failures, in its event log."""
        for job_id in {item.job_id for item in items if not item.attempts}:
            text = f"pushing to {self._setting.called} failed and is tried again: {error}"
            self._event(job_id, text, sink=self._setting.address)

    def _tell_success(self, items: Sequence[Item], checkpoints: Sequence[Checkpoint], sent_bytes: int) -> None:
        for job_id in {item.job_id for item in items if item.attempts}:
            self._event(job_id, f"pushing to {self._setting.called} works again", sink=self._setting.address)
        for checkpoint in checkpoints:
            self._event(
                checkpoint.job_id, f"{checkpoint.name} is in {self._setting.called}", name=checkpoint.name,
                sink=self._setting.address, size_bytes=checkpoint.size_bytes,
                sent_bytes=sent_bytes if len(checkpoints) == 1 else None,
            )  # fmt: skip

    def _event(self, job_id: str, text: str, **fields: object) -> None:
        """Note it where the job's events go: the file that its agent reads, or the table when there is none."""
        now_ns = time.time_ns()
        job = self._workspace.jobs.get(job_id)
        if job is not None and job.is_live:
            line = {"time_ns": now_ns, "text": text, "kind": EVENT, "source": "gpu-train", "fields": fields}
            with suppress(OSError):
                append_line(self._workspace.home.logs(job_id) / "events.jsonl", line)
        else:
            self._workspace.events.add(job_id, [Event(now_ns, text, EVENT, fields=fields)])


@contextmanager
def lock_sink(home: Home, address: str, *, wait: bool) -> Iterator[None]:
    """Be the only one who pushes to a sink from this home.

    Raises:
        Busy: when another process does, and `wait` is False.
    """
    with _locked(home, blake2b(address.encode(errors="surrogateescape"), digest_size=8).hexdigest(), wait):
        yield


@contextmanager
def _locked(home: Home, name: str, wait: bool) -> Iterator[IO[str]]:
    folder = home.root / "store" / "sinks"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.lock").open("a", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise Busy("another process is pushing; it will be done soon") from None
        yield file


class Pusher:
    """The process of a home; see the module."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._queue = Queue(workspace.store.registry)
        self._threads: dict[str, threading.Thread] = {}

    def run(self) -> None:
        """Push until the queue has been empty for a while, or what is left fails and no job runs.

        It ends too when the home is gone.
        """
        idle_since = failing_since = time.monotonic()
        while self._workspace.home.packs.parent.is_dir():
            waiting = self._queue.waiting()
            settings = self._queue.settings()
            self._threads = {a: thread for a, thread in self._threads.items() if thread.is_alive()}
            for address in {item.address for item in waiting} & settings.keys():
                if address not in self._threads:
                    self._begin(settings[address])
            now = time.monotonic()
            live = bool(self._workspace.jobs.live())
            if waiting or self._threads or live:
                idle_since = now
            if live or any(not item.attempts for item in waiting):
                failing_since = now
            if now - idle_since > LINGER_S or now - failing_since > PATIENCE_S:
                break
            time.sleep(POLL_S)
        for thread in self._threads.values():
            thread.join()

    def _begin(self, setting: SinkSetting) -> None:
        work = Work(self._workspace, setting)
        if not work.due():
            return
        thread = threading.Thread(target=self._work, args=(work, setting), name=f"push {setting.called}", daemon=True)
        self._threads[setting.address] = thread
        thread.start()

    def _work(self, work: Work, setting: SinkSetting) -> None:
        with suppress(Busy), lock_sink(self._workspace.home, setting.address, wait=False):
            while (due := work.due()) and not work.do(due):
                pass
