"""The runner of a job on this machine: starts the agent and the command, and sees both through to the end.

Signals to the runner: the first SIGINT goes to the job, which may save and end in its own time; so does the
first SIGTERM or SIGHUP, as SIGTERM, with `run.interrupt_grace_s` until SIGKILL. A second of any kind means
SIGTERM and that grace, a third SIGKILL at once. During the last capture a second one leaves the agent to
finish in the background.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from gpu_train.active import append_line
from gpu_train.capture.tail import Tail
from gpu_train.control import END_FILE, KILL_FILE
from gpu_train.delay import SLOW_S, reason_for_delay
from gpu_train.environment import current
from gpu_train.host import PythonFacts, host_facts
from gpu_train.process import identity_of, job_processes, let_go, module_command, module_environment, send, start_time
from gpu_train.provider.output import CHUNK_BYTES, Output
from gpu_train.provider.request import Request, job_environment
from gpu_train.provider.watcher import Watcher
from gpu_train.sinks.replication import Replication, wait_for_pushes
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import GpuTrainError, NotFound
from gpu_train_cas.filesystem import replacing

LEFTOVER_GRACE_S = 3.0
TICK_S = 0.2
FINAL_STARTS = 3
TOLD = ("gone", "storage")
"""Kinds of events that a person at the terminal is told at once."""

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Notify = Callable[[str], None]


class Run:
    """One job, from its start to its end, in this process."""

    def __init__(
        self, workspace: Workspace, job: Job, request: Request, *, attached: bool, notify: Notify = lambda text: None
    ) -> None:
        self.workspace = workspace
        self.job = job
        self.request = request
        self._attached = attached
        self._notify = notify
        home = workspace.home
        for folder in (home.checkpoints(job.id), home.logs(job.id), home.control(job.id)):
            folder.mkdir(parents=True, exist_ok=True)
        self._events = home.logs(job.id) / "events.jsonl"
        self._news = Tail(self._events)
        self._watcher = Watcher(home, workspace.config, job.id, Path(job.cwd), lambda text: self.event("agent", text))
        self._output = Output(home.logs(job.id) / "stdout.log", pass_on=attached)
        self._signals: deque[int] = deque()
        self._asked: list[int] = []
        self._kill_at: float | None = None
        self._selector = selectors.DefaultSelector()

    def event(self, kind: str, text: str, **fields: Any) -> None:
        """Note what happened in the job's event log; lost when the disk is full."""
        line = {"time_ns": time.time_ns(), "text": text, "kind": kind, "source": "gpu-train", "fields": fields}
        with suppress(OSError):
            append_line(self._events, line)

    def run(self, on_start: Callable[[Job], None] = lambda job: None) -> Job:
        """Run the job; returns its row when everything is captured."""
        with self._catching_signals():
            try:
                child = self._start()
            except BaseException as e:
                self._failed_to_start(e)
                if isinstance(e, OSError) and not isinstance(e, GpuTrainError):
                    raise GpuTrainError(f"command {self.job.command[0]!r} could not be started: {e}") from e
                raise
            try:
                on_start(self.job)
                code = self._supervise(child)
                ended_ns = time.time_ns()
                self._end_leftovers(child)
                self._drain(child)
            except BaseException:
                send(job_processes(child.pid, self.job.id), signal.SIGKILL)
                child.wait()
                self._drain(child)
                self._watcher.leave()  # the agent takes it from here
                raise
            finally:
                self._output.close()
            return self._finish(code, ended_ns)

    def _start(self) -> subprocess.Popen[bytes]:
        home, job = self.workspace.home, self.job
        env = job_environment(home, job, self.request, current())
        facts = PythonFacts(job.command, Path(job.cwd), env)
        self._watcher.start()
        host = host_facts()
        self._watcher.wait_ready()
        child = subprocess.Popen(
            job.command, cwd=job.cwd, env=env, stdin=self._stdin(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, bufsize=0,
        )  # fmt: skip
        try:
            self._announce(child, host, facts)
        except BaseException:
            send(job_processes(child.pid, job.id), signal.SIGKILL)
            child.communicate()
            raise
        return child

    def _announce(self, child: subprocess.Popen[bytes], host: dict[str, Any], facts: PythonFacts) -> None:
        """Tell the agent and the registry of the running command."""
        began = start_time(child.pid)
        self._watcher.tell({"job": {"pid": child.pid, "pid_start": began}})
        self.job = self.workspace.jobs.update(
            self.job.id, status="running", started_ns=time.time_ns(), pid=child.pid, pid_start=began,
            **identity_of(os.getpid()), agent_pid=self._watcher.pid, host=host, environment=facts.result(),
        )  # fmt: skip
        self.event("started", f"started {' '.join(self.job.command)}", pid=child.pid)

    def _failed_to_start(self, error: BaseException) -> None:
        self._output.close()
        reason = f"it could not be started: {error}"
        fields = {"status": "failed", "exit_code": 127, "ended_ns": time.time_ns(), "reason": reason}
        self.event("ended", reason)
        self._watcher.tell({"end": fields})
        self._watcher.wait(TICK_S * 50)
        self._watcher.leave()
        self._settle_row(fields)

    def _stdin(self) -> int | None:
        """Pass our input on when it is a file or a pipe. A terminal is not: the job is not its foreground group."""
        try:
            usable = self._attached and not os.isatty(0) and os.fstat(0) is not None
        except OSError:
            usable = False
        return None if usable else subprocess.DEVNULL

    # While it runs

    def _supervise(self, child: subprocess.Popen[bytes]) -> int:
        """Pass on output and signals, and keep an agent alive, until the command has ended."""
        assert child.stdout is not None
        assert child.stderr is not None
        self._selector.register(child.stdout, selectors.EVENT_READ, 0)
        self._selector.register(child.stderr, selectors.EVENT_READ, 1)
        with self._ending_of(child):
            while child.poll() is None:
                self._pump(TICK_S)
                while self._signals:
                    self._on_signal(child, self._signals.popleft())
                if self._kill_at is not None and time.monotonic() > self._kill_at:
                    send(job_processes(child.pid, self.job.id), signal.SIGKILL)
                    self._kill_at = None
                if self._watcher.look_after():
                    self.workspace.jobs.update(self.job.id, agent_pid=self._watcher.pid)
                self._tell_news()
        return child.returncode

    def _tell_news(self) -> None:
        """Pass on to the person at the terminal what gpu-train noted of the job and they should see to."""
        for line, _ in self._news.read():
            if line.get("source") == "gpu-train" and line.get("kind") in TOLD:
                self._notify(str(line.get("text")))

    @contextmanager
    def _ending_of(self, child: subprocess.Popen[bytes]) -> Iterator[None]:
        """Have the selector wake when the command ends, not only when its output does."""
        fd = -1
        with suppress(OSError, AttributeError):  # an old kernel: the next tick notices
            fd = os.pidfd_open(child.pid)
            self._selector.register(fd, selectors.EVENT_READ, None)
        try:
            yield
        finally:
            if fd >= 0:
                self._selector.unregister(fd)
                os.close(fd)

    def _pump(self, timeout_s: float) -> bool:
        """Pass on what was printed; whether anything was."""
        taken = False
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, int):
                stream: Any = key.fileobj
                data = os.read(stream.fileno(), CHUNK_BYTES)
                if data:
                    self._output.take(key.data, data)
                    taken = True
                else:
                    self._selector.unregister(stream)
            elif key.data == "signal":
                os.read(key.fd, 4096)
        return taken

    def _on_signal(self, child: subprocess.Popen[bytes], number: int) -> None:
        self._asked.append(number)
        grace_s = self.workspace.config.run.interrupt_grace_s
        name = signal.Signals(number).name
        if len(self._asked) > 2:
            self._notify("killing the job")
            send(job_processes(child.pid, self.job.id), signal.SIGKILL)
            return
        gently = len(self._asked) == 1 and number == signal.SIGINT
        forwarded = signal.SIGINT if gently else signal.SIGTERM
        with suppress(ProcessLookupError):
            os.killpg(child.pid, forwarded)
        if gently:
            self._notify("the job was interrupted and may save; interrupt again to end it")
        else:
            self._kill_at = time.monotonic() + grace_s
            self._notify(f"the job was told to end and will be killed in {grace_s:.0f} s; once more kills it now")
        self.event("signal", f"{name} to the runner: {forwarded.name} to the job")

    # When it has ended

    def _end_leftovers(self, child: subprocess.Popen[bytes]) -> None:
        """End what the command has left running, so that a job never leaves processes behind."""
        left = job_processes(child.pid, self.job.id)
        if not left:
            return
        self.event("ended", f"the command has ended; {len(left)} processes that it left are being ended")
        send(left, signal.SIGTERM)
        deadline = time.monotonic() + LEFTOVER_GRACE_S
        while left:
            self._pump(TICK_S / 4)
            left = job_processes(child.pid, self.job.id)
            if time.monotonic() > deadline:
                send(left, signal.SIGKILL)

    def _drain(self, child: subprocess.Popen[bytes]) -> None:
        """Take what is still in the pipes. All their writers are gone, so this ends."""
        streams: list[IO[bytes]] = [s for s in (child.stdout, child.stderr) if s is not None]
        deadline = time.monotonic() + LEFTOVER_GRACE_S
        while any(s in [k.fileobj for k in self._selector.get_map().values()] for s in streams):
            if not self._pump(TICK_S) and time.monotonic() > deadline:
                break  # a process that is none of the job's holds the pipe
        for stream in streams:
            with suppress(KeyError):
                self._selector.unregister(stream)
            stream.close()

    def _finish(self, code: int, ended_ns: int) -> Job:
        """Have the agent do the last capture, and make sure that the row says how the job ended."""
        fields = self._outcome(code) | {"ended_ns": ended_ns}
        self.event("ended", _in_words(fields), **{k: fields[k] for k in ("status", "exit_code", "signal")})
        if self._output.lost_bytes:
            self.event("storage", f"{self._output.lost_bytes} bytes of output are not in stdout.log: the disk was full")
        with suppress(OSError), replacing(self.workspace.home.control(self.job.id) / END_FILE, durable=False) as file:
            file.write(json.dumps(fields).encode())
        self._watcher.tell({"end": fields})
        self._wait_for_capture()
        row = self._settle_row(fields)
        self._wait_for_pushes()
        return row

    def _wait_for_capture(self) -> None:
        """Wait for the last capture, or leave it to the background when that is wanted."""
        asked = len(self._asked)
        starts = self._watcher.starts
        tell_at: float | None = time.monotonic() + SLOW_S
        while self._watcher.wait(TICK_S) != 0:
            self._tell_news()
            if tell_at is not None and time.monotonic() > tell_at:
                why = reason_for_delay(self.workspace.home, self.job.id)
                self._notify(f"the job has ended; the last capture is still running{why}")
                tell_at = None
            while self._signals:
                self._asked.append(self._signals.popleft())
                asked_now = len(self._asked) - asked
                self._notify("the last capture is running; interrupt again to leave it to the background")
                if asked_now > 1:
                    self._watcher.leave()
                    return
            if not self._watcher.is_running() and self._watcher.starts - starts >= FINAL_STARTS:
                self.event("agent", "the last capture failed; `gpu-train reconcile` tries it again")
                break
            self._watcher.look_after()
        self._tell_news()
        self._watcher.leave()

    def _wait_for_pushes(self) -> None:
        """Wait a while for the sinks to get what they lack, unless a person does not want to."""
        if self._watcher.is_running() or not Replication(self.workspace, self.job.id).is_wanted:
            return
        wait_for_pushes(self.workspace, self.job.id, lambda: bool(self._signals), self._notify)

    def _settle_row(self, fields: dict[str, Any]) -> Job:
        """The job's final row; the agent has written it unless it failed or goes on in the background."""
        job = self.workspace.jobs.get(self.job.id) or self.job
        if job.is_live and not self._watcher.is_running():
            try:
                job = self.workspace.jobs.update(job.id, **fields)
            except GpuTrainError as e:  # the exit code must reach the caller all the same
                self._notify(f"how the job ended could not be written down: {e}; `gpu-train reconcile` tries it again")
        return job if not job.is_live else job._replace(**fields)

    def _outcome(self, code: int) -> dict[str, Any]:
        number = -code if code < 0 else None
        exit_code = 128 - code if code < 0 else code
        killed = (self.workspace.home.control(self.job.id) / KILL_FILE).exists()
        reason = ""
        if killed:
            status = "killed"
        elif self._asked:
            status = "stopped"
        elif exit_code == 0:
            status = "finished"
        else:
            status = "failed"
            if number == signal.SIGKILL:
                reason = "ended by SIGKILL that gpu-train did not send; often the kernel ran out of memory"
        return {"status": status, "exit_code": exit_code, "signal": number, "reason": reason}

    # Signals

    @contextmanager
    def _catching_signals(self) -> Iterator[None]:
        """Collect signals for the loop; only the main thread can, elsewhere they stay as they are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(read, selectors.EVENT_READ, "signal")

        def catch(number: int, frame: object) -> None:
            self._signals.append(number)
            with suppress(OSError):
                os.write(write, b"!")

        before = {number: signal.signal(number, catch) for number in _FORWARDED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(read)
            os.close(write)


def spawn(workspace: Workspace, job: Job, request: Request) -> None:
    """Start the runner of a detached job: a process in a session of its own, without a terminal."""
    control, logs = workspace.home.control(job.id), workspace.home.logs(job.id)
    control.mkdir(parents=True, exist_ok=True)
    logs.mkdir(parents=True, exist_ok=True)
    request.save(control / "request.json")
    env = module_environment(current()) | workspace.config.as_environment()
    command = module_command("gpu_train.provider", "--home", str(workspace.home.root), "--job", job.id)
    if "PYTHONPATH" in current():
        command += ["--pythonpath", current()["PYTHONPATH"]]
    with open(logs / "runner.log", "ab") as log:
        runner = subprocess.Popen(
            command, cwd=job.cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    with suppress(NotFound):  # somebody removed the job just now
        workspace.jobs.update(job.id, **identity_of(runner.pid))
    let_go(runner)


def _in_words(fields: dict[str, Any]) -> str:
    how = f"exit code {fields['exit_code']}"
    if fields["signal"] is not None:
        how = f"{signal.Signals(fields['signal']).name}, {how}"
    return f"{fields['status']} ({how})" + (f": {fields['reason']}" if fields["reason"] else "")
