"""What the library's tests share: an open workspace, and a way to see which files are opened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pushers import end_pusher

from gpu_train.workspace import Workspace

WatchOpens = Callable[[], AbstractContextManager[list[str]]]
_opened: list[str] | None = None


def _note_open(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_note_open)  # for good, as an audit hook cannot be taken off again


@contextmanager
def _watch_opens() -> Iterator[list[str]]:
    global _opened
    _opened = found = []
    try:
        yield found
    finally:
        _opened = None


@pytest.fixture
def watch_opens() -> WatchOpens:
    """A context that lists the names, as they were given, of all files that this process opens in it."""
    return _watch_opens


@pytest.fixture
def workspace(home: Path, tmp_path: Path) -> Iterator[Workspace]:
    """The test's own home, open."""
    with Workspace.open(home, cwd=tmp_path) as opened:
        yield opened


KIT = Path(__file__).parents[1] / "kit"
PATIENCE_S = 60.0
SLOW = b"NOTICE the job has ended; the last capture is still running\n"


def _eventually(condition: Callable[[], object], what: str = "it") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} never came"
        time.sleep(0.02)


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Waits until a condition holds, a minute at most; the second argument says what is waited for."""
    return _eventually


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes file systems of so many MiB, where that is allowed."""
    points: list[Path] = []

    def make(mib: int) -> Path:
        point = tmp_path / f"disk{len(points)}"
        point.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", point]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("needs the right to mount a tmpfs")
        points.append(point)
        return point

    yield make
    for point in points:
        subprocess.run(["umount", "-l", point], check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(os.urandom(size))
            except OSError:
                continue


@pytest.fixture
def fill() -> Callable[[Path], None]:
    """Takes up all the room of a disk with a file."""
    return _fill


BATCH = 40
"""Kill points per start of a process."""


def _sweep(child: Path, work: Path, scenario: str, step: int) -> Iterator[int]:
    path = os.pathsep.join(filter(None, [str(KIT), os.environ.get("PYTHONPATH")]))
    first = 1
    while True:
        points = list(range(first, first + BATCH * step, step))
        for point in points:
            subprocess.run(["cp", "-a", work / "template", work / str(point)], check=True)  # hard links stay links
        command = [sys.executable, child, "profile", scenario, "0", work, *map(str, points)]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=280, env={**os.environ, "PYTHONPATH": path}
        )
        assert done.returncode == 0, done.stderr
        statuses = list(map(int, done.stdout.split()))
        assert set(statuses) <= {-9, 0}, done.stderr
        yield from points[: statuses.count(-9)]
        if statuses[-1] == 0:
            yield points[len(statuses) - 1]
            return
        first += BATCH * step


@pytest.fixture
def sweep() -> Callable[..., Iterator[int]]:
    """Kills a child (kit/kill_points.py) that works on a copy of `work/template` at every step-th point until one gets
    through: `sweep(child, work, scenario, step)`. Gives the points, each as soon as `work/POINT` can be checked.
    """
    return _sweep


@dataclass
class Launched:
    """A job that a runner process of its own runs."""

    process: subprocess.Popen[bytes]
    id_file: Path
    home: Path

    @property
    def job_id(self) -> str:
        """The job's id, once it runs."""
        _eventually(lambda: self.id_file.exists() or self.process.poll() is not None, "the job's start")
        assert self.id_file.exists(), self.process.communicate()[1].decode()
        return self.id_file.read_text()

    def finish(self, patience_s: float = PATIENCE_S) -> tuple[int, bytes, bytes]:
        """Exit code, stdout and stderr at its end; that it just takes its time on a busy machine is left out."""
        out, err = self.process.communicate(timeout=patience_s)
        return self.process.returncode, out, err.replace(SLOW, b"")


class Launcher:
    """Starts jobs in runner processes, each in a process group of its own, as a shell does."""

    def __init__(self, home: Path, cwd: Path) -> None:
        self.home = home
        self.cwd = cwd
        self.launched: list[Launched] = []
        self.env: dict[str, str] = {}

    def __call__(self, *command: str | Path, **arguments: object) -> Launched:
        """Start `gpu_train.run` with a command and keyword arguments."""
        id_file = self.cwd / f"job-id-{len(self.launched)}"
        task = {"command": [str(word) for word in command]}
        process = subprocess.Popen(
            [sys.executable, KIT / "run_job.py", id_file, json.dumps({"task": task, **arguments})], cwd=self.cwd,
            env={**os.environ, **self.env}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            process_group=0,
        )  # fmt: skip
        self.launched.append(Launched(process, id_file, self.home))
        return self.launched[-1]

    def trainer(self, name: str, **arguments: object) -> Launched:
        """Start one of the fake trainers."""
        return self(sys.executable, KIT / "trainers" / f"{name}.py", **arguments)

    def script(self, text: str, **arguments: object) -> Launched:
        """Start a Python script given as text."""
        path = self.cwd / f"script{len(self.launched)}.py"
        path.write_text(textwrap.dedent(text))
        return self(sys.executable, path, **arguments)

    def close(self) -> None:
        """Leave nothing running, whatever the test did."""
        for one in self.launched:
            if one.process.poll() is None:
                one.process.kill()
            one.process.communicate()
        end_pusher(self.home)


@pytest.fixture
def launch(home: Path, tmp_path: Path) -> Iterator[Launcher]:
    """Starts jobs in a working directory of the test's own, which looks for new checkpoints often."""
    cwd = tmp_path / "project"
    cwd.mkdir()
    launcher = Launcher(home, cwd)
    launcher.env = {
        "GPU_TRAIN_CAPTURE_SCAN_S": "0.02",
        "GPU_TRAIN_CAPTURE_SETTLE_S": "0.5",
        # So that scripts can import `writing`, and the gpu_train that is under test.
        "PYTHONPATH": os.pathsep.join([str(KIT / "trainers"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    yield launcher
    launcher.close()
