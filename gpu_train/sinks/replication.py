"""What a running job wants of its sinks: each whole checkpoint as soon as it is stored, and its logs.

Light: the agent and the runner load it. The pushing is done by a process of its own (`pusher`).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable

from gpu_train.config import Config
from gpu_train.credentials.credential import Wanted
from gpu_train.environment import JOB_ID, current
from gpu_train.home import Home
from gpu_train.process import let_go, module_command, module_environment
from gpu_train.sinks.queue import LOGS, Item, Queue
from gpu_train.sinks.setting import HF, LOCAL, SinkSetting
from gpu_train.tables import Checkpoint
from gpu_train.tables.checkpoint import VERIFIED
from gpu_train.workspace import Workspace

LOGS_EVERY_S = 60.0


class Replication:
    """Queues what one job produces; does nothing where no sink is set."""

    def __init__(self, workspace: Workspace, job_id: str) -> None:
        self._workspace = workspace
        self._job_id = job_id
        self._checkpoints = chosen(workspace.config, "checkpoints")
        self._logs = chosen(workspace.config, "logs")
        self._logged = time.monotonic()

    @property
    def is_wanted(self) -> bool:
        """Whether any sink is set."""
        return bool(self._checkpoints or self._logs)

    def stored(self, checkpoint: Checkpoint) -> None:
        """A checkpoint was stored."""
        if not self.is_wanted:
            return
        queue = Queue(self._workspace.store.registry)
        if checkpoint.state == VERIFIED:
            for setting in self._checkpoints:
                if setting.address not in checkpoint.pushed:
                    queue.want(setting, self._job_id, [checkpoint.seq])
        if time.monotonic() - self._logged >= LOGS_EVERY_S:
            self._want_logs(queue)
        start_pusher(self._workspace.home, self._workspace.config)

    def ended(self) -> None:
        """The job has ended: whatever of it is not where it is to be is queued."""
        if not self.is_wanted:
            return
        queue = Queue(self._workspace.store.registry)
        for setting in self._checkpoints:
            want_missing(self._workspace, setting, [self._job_id])
        self._want_logs(queue)
        start_pusher(self._workspace.home, self._workspace.config)

    def _want_logs(self, queue: Queue) -> None:
        self._logged = time.monotonic()
        for setting in self._logs:
            queue.want(setting, self._job_id, [LOGS])


def want_missing(workspace: Workspace, setting: SinkSetting, job_ids: Iterable[str]) -> int:
    """Queue the whole checkpoints of some jobs that a sink does not hold; how many were not queued."""
    queue = Queue(workspace.store.registry)
    added = 0
    for job_id in job_ids:
        missing = [
            c.seq for c in reversed(workspace.checkpoints.list(job_id))
            if c.state == VERIFIED and c.record is not None and setting.address not in c.pushed
        ]  # fmt: skip
        added += queue.want(setting, job_id, missing) if missing else 0
    return added


def chosen(config: Config, what: str) -> tuple[SinkSetting, ...]:
    """The sinks that are set for "checkpoints" or "logs"; when `use` names some of them, those."""
    settings: tuple[SinkSetting, ...] = getattr(config.sinks, what)
    named = tuple(one for one in settings if config.use and (one.name in config.use or one.address in config.use))
    return tuple(_with_reference(config, one) for one in named or settings)


def _with_reference(config: Config, setting: SinkSetting) -> SinkSetting:
    """The setting with what `[[credentials]]` say of it: whoever pushes may know other settings."""
    if setting.secret_ref or setting.token_ref or setting.type == LOCAL:
        return setting
    wanted = Wanted(setting.address, setting.type, setting.name)
    best = max(config.credentials, key=lambda one: one.fit(wanted, config.use), default=None)
    if best is None or not best.fit(wanted, config.use):
        return setting
    text = best.reference.text
    return setting._replace(token_ref=text) if setting.type == HF else setting._replace(secret_ref=text)


def start_pusher(home: Home, config: Config) -> None:
    """See to it that a process works the queue. It goes on by itself, whatever becomes of this one."""
    lock = pusher_lock(home)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # there is one
    finally:
        os.close(lock)
    env = {k: v for k, v in module_environment(current()).items() if k != JOB_ID}
    env.update(config.as_environment())
    with (home.root / "store" / "sinks" / "pusher.log").open("ab") as log:
        child = subprocess.Popen(
            module_command("gpu_train.sinks", "--home", str(home.root)), env=env, stdin=subprocess.DEVNULL,
            stdout=log, stderr=log, start_new_session=True, cwd="/",
        )  # fmt: skip
    let_go(child)


def pusher_lock(home: Home) -> int:
    """The file, opened, whose lock the pusher of a home holds."""
    folder = home.root / "store" / "sinks"
    folder.mkdir(exist_ok=True)
    return os.open(folder / "pusher.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def wait_for_pushes(
    workspace: Workspace, job_id: str, is_over: Callable[[], bool], notify: Callable[[str], None],
    poll_s: float = 0.2,
) -> None:  # fmt: skip
    """Wait until all of a job is in its sinks, `sinks.drain_s` seconds at most, and tell what is left."""
    queue = Queue(workspace.store.registry)
    deadline = time.monotonic() + workspace.config.sinks.drain_s
    slow_at: float | None = time.monotonic() + 2.0
    while (waiting := queue.waiting(job_id=job_id)) and time.monotonic() < deadline and not is_over():
        if slow_at is not None and time.monotonic() > slow_at:
            slow_at = None
            notify(f"pushing {_in_words(waiting, queue)}")
        if all(item.attempts for item in waiting):
            break  # they fail; the queue keeps them
        time.sleep(poll_s)
    if waiting:
        failed = next((item.error for item in waiting if item.error), "")
        why = f" ({failed})" if failed else ""
        notify(
            f"not pushed yet: {_in_words(waiting, queue)}{why}; it is tried again in the background, "
            f"`gpu-train sinks status` shows how it goes"
        )


def _in_words(waiting: Iterable[Item], queue: Queue) -> str:
    settings = queue.settings()
    counts: Counter[tuple[str, bool]] = Counter((item.address, item.seq == LOGS) for item in waiting)
    words = []
    for (address, is_logs), count in sorted(counts.items()):
        called = settings[address].called if address in settings else address
        what = "the logs" if is_logs else f"{count} checkpoint{'s' * (count != 1)}"
        words.append(f"{what} to {called}")
    return ", ".join(words)
