"""The capture agent's process, as its runner sees it: started, told, started again when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpu_train.config import Config
from gpu_train.environment import JOB_ID, current
from gpu_train.home import Home
from gpu_train.process import let_go, module_command, module_environment

READY = b"ready\n"
READY_TIMEOUT_S = 30.0
SOON_S = 5.0
"""An agent that dies sooner than this after its start is started again ever more slowly."""

MAX_DELAY_S = 30.0
LOG_LIMIT_BYTES = 4 << 20


class Watcher:
    """One agent at a time for one job. The pipe it holds (`lifeline`) is how it learns of the runner's death."""

    def __init__(self, home: Home, config: Config, job_id: str, cwd: Path, event: Callable[[str], None]) -> None:
        self._home = home
        self._config = config
        self._job_id = job_id
        self._cwd = cwd
        self._event = event
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._words: list[Mapping[str, Any]] = []
        self._began = 0.0
        self._delay_s = 0.0
        self._due: float | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The agent's process."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start an agent and tell it all that was told before."""
        self.leave()
        read, write = os.pipe()
        command = module_command(
            "gpu_train.capture", "--home", str(self._home.root), "--job", self._job_id, "--lifeline", str(read)
        )
        env = {k: v for k, v in module_environment(current()).items() if k != JOB_ID}
        env.update(self._config.as_environment())
        try:
            with self._log() as log:
                self._process = subprocess.Popen(
                    command, cwd=self._cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                    pass_fds=(read,), start_new_session=True,
                )  # fmt: skip
        except BaseException:
            os.close(write)
            raise
        finally:
            os.close(read)
        self._lifeline = write
        self._began = time.monotonic()
        self._due = None
        self.starts += 1
        for word in self._words:
            self._send(word)

    def wait_ready(self) -> bool:
        """Wait until the agent watches; False when it died or took too long."""
        if self._process is None or self._process.stdout is None:
            return False
        ready, _, _ = select.select([self._process.stdout], [], [], READY_TIMEOUT_S)
        return bool(ready) and os.read(self._process.stdout.fileno(), len(READY)) == READY

    def tell(self, word: Mapping[str, Any]) -> None:
        """Give the agent, and every later one, a word."""
        self._words.append(word)
        self._send(word)

    def is_running(self) -> bool:
        """Whether there is a living agent."""
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        """The agent's exit code, None while it lives."""
        return None if self._process is None else self._process.poll()

    def look_after(self) -> bool:
        """Start a dead agent again when it is time; whether that was done."""
        if self.is_running():
            return False
        now = time.monotonic()
        if self._due is None:
            quick = now - self._began < SOON_S
            self._delay_s = min(MAX_DELAY_S, max(0.1, self._delay_s * 2)) if quick else 0.0
            self._due = now + self._delay_s
        if now < self._due:
            return False
        code = self.exit_code()
        self.start()
        self._event(f"the capture agent ended ({code}) and was started again; its log is agent.log")
        return True

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the agent's end; its exit code, None when it still lives."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def leave(self) -> None:
        """Let the agent go on by itself."""
        self._close()
        if self._process is not None:
            if self._process.stdout is not None:
                self._process.stdout.close()
            let_go(self._process)

    def _send(self, word: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a dead agent: the next one is told again
            os.write(self._lifeline, json.dumps(word).encode() + b"\n")

    def _close(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _log(self) -> Any:
        path = self._home.logs(self._job_id) / "agent.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        too_long = path.exists() and path.stat().st_size > LOG_LIMIT_BYTES
        return open(path, "wb" if too_long else "ab")
