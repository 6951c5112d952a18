"""Checkpoints that live for 50 ms, in whole runs of the program: each is kept bit for bit, or reported by its name.

The writers keep lists of their own of what they finished. Nothing but that is ever the latest checkpoint.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rotation import Account, Written, account, latest_of

from gpu_train import Workspace

KIT = Path(__file__).parents[1] / "kit"
KINDS = ("folder", "single", "move", "replace", "in_place", "again")
SENTRY = "gpu_train.capture.watch"
PATIENCE_S = 240
WATCHES = 3
"""Of a sentry that is ready: the folder with the root, the root and the control folder."""


class Job:
    """A command under `gpu-train run`, and the writers in it."""

    def __init__(self, program: Path, home: Path, folder: Path, script: str) -> None:
        self.home, self.folder = home, folder
        self.process = subprocess.Popen(
            [program, "run", "--", "bash", "-euo", "pipefail", "-c", script], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
            env={**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"},
        )  # fmt: skip

    @property
    def id(self) -> str:
        with Workspace.open(self.home) as workspace:
            (job,) = workspace.jobs.list()
            return job.id

    def finish(self) -> None:
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, out.decode()

    def written(self) -> Written:
        return Written.of(sorted(path.parent for path in self.folder.rglob("written.jsonl")))

    def account(self, written: Written, unseen: tuple[float, float] | None = None) -> Account:
        with Workspace.open(self.home) as workspace:
            return account(workspace, self.id, written, unseen)

    def events(self) -> str:
        with Workspace.open(self.home) as workspace:
            return "\n".join(event.text for event in workspace.events.list(self.id))

    def pid(self, module: str) -> int:
        """The process of the job's agent or sentry."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if module.encode() in words and self.id.encode() in words:
                return int(folder.name)
        return 0

    def sees(self) -> bool:
        """Whether the job's sentry has set its watches."""
        try:
            infos = list(Path(f"/proc/{self.pid(SENTRY)}/fdinfo").iterdir())
            return sum(info.read_text().count("inotify wd:") for info in infos) >= WATCHES
        except OSError:
            return False

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def job(home: Path, project: Path, tmp_path: Path, program: Path) -> Iterator[Callable[[str], Job]]:
    jobs = []

    def start(script: str) -> Job:
        jobs.append(Job(program, home, tmp_path / "work", script))
        return jobs[-1]

    (tmp_path / "work").mkdir()
    yield start
    for one in jobs:
        one.close()


def writers(kinds: tuple[str, ...], versions: int, lifetime_ms: int = 50) -> str:
    """A script in which writers of some kinds work at the same time, each in a folder of its own."""
    words = f"python {KIT / 'trainers' / 'rotating.py'}"
    begun = [f"(mkdir {kind}; cd {kind}; exec {words} {kind} {versions} {lifetime_ms}) & all+=($!)" for kind in kinds]
    return "\n".join(["all=()", *begun, 'for one in "${all[@]}"; do wait "$one"; done'])


def test_writers_of_all_kinds(job, home: Path) -> None:
    with latest_of(home) as latest:
        running = job(writers(KINDS, 12))
        running.finish()
    written = running.written()
    result = running.account(written)
    assert len(written.versions) == 12 * len(KINDS)
    assert result.captured > len(written.versions) // 2
    assert (result.silent, result.wrong) == ([], [])
    assert latest
    assert latest <= set(written.versions)


@pytest.mark.parametrize("framework", ["transformers", pytest.param("lightning", marks=pytest.mark.long)])
def test_real_frameworks_that_keep_one(job, home: Path, framework: str) -> None:
    with latest_of(home) as latest:
        running = job(f"python {KIT / 'frameworks' / 'rotation.py'} {framework} 8")
        running.finish()
    written = running.written()
    result = running.account(written)
    assert len(written.versions) == 8
    assert result.captured > 4
    assert (result.silent, result.wrong) == ([], [])
    assert latest
    assert latest <= set(written.versions)


MOUNTS = {
    "bindfs": "bindfs {source} {point}",  # with links
    "rclone": "rclone mount --daemon --vfs-cache-mode writes --config /dev/null :local:{source} {point}",  # without
}


@pytest.fixture
def artifacts_on(home: Path, tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Puts a home's artifacts on a FUSE file system; where that has them itself."""
    source, point = tmp_path / "source", home / "artifacts"
    source.mkdir()
    point.mkdir(parents=True)

    def put(program: str) -> Path:
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
        command = MOUNTS[program].format(source=source, point=point).split()
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"{program} cannot mount here: {done.stderr.decode()}")
        eventually(lambda: os.path.ismount(point))
        return source

    yield put
    if os.path.ismount(point):
        subprocess.run(["fusermount3", "-u", "-z", point], check=True)


@pytest.mark.parametrize("mounted", ["bindfs", pytest.param("rclone", marks=pytest.mark.long)])
def test_checkpoints_on_fuse(job, home: Path, artifacts_on, mounted: str) -> None:
    """Where files cannot be linked they are not held, as that would be in the trainer's way."""
    artifacts_on(mounted)
    kinds = ("folder", "single", "replace", "in_place")
    with latest_of(home) as latest:
        running = job(writers(kinds, 8))
        running.finish()
    written = running.written()
    result = running.account(written)
    assert len(written.versions) == 8 * len(kinds)
    assert result.wrong == []
    if mounted == "bindfs":  # with rclone each file changes once more, when it has been uploaded
        assert result.captured > 0
        assert result.silent == []
    assert latest <= set(written.versions)


def test_what_another_machine_writes(job, home: Path, artifacts_on) -> None:
    """Nobody tells of it, as on a network file system: the job's folder has to be looked at."""
    source = artifacts_on("bindfs")
    script = f"export GPU_TRAIN_CHECKPOINT_DIR={source}/$GPU_TRAIN_JOB_ID/checkpoints"
    running = job(f"{script}\n{writers(('folder', 'single', 'replace'), 2, 2500)}")
    running.finish()
    written = running.written()
    result = running.account(written)
    assert (result.silent, result.wrong, result.captured) == ([], [], 6)


@pytest.mark.parametrize("module", [SENTRY, "gpu_train.capture"])
def test_a_sentry_or_agent_that_is_killed(job, home: Path, module: str) -> None:
    """Only what lived while nobody watched may be missed; and that is in the log."""
    kinds = ("folder", "replace", "in_place")
    with latest_of(home) as latest:
        running = job(writers(kinds, 0))
        eventually(lambda: all((running.folder / kind / "written.jsonl").exists() for kind in kinds))
        eventually(lambda: len(running.written().versions) >= 15)
        sentry, killed, at = running.pid(SENTRY), running.pid(module), time.monotonic()
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: running.pid(SENTRY) not in (0, sentry) and running.sees())
        again, before = time.monotonic(), len(running.written().versions)
        eventually(lambda: len(running.written().versions) >= before + 15)
        for kind in kinds:
            (running.folder / kind / "stop").touch()
        running.finish()
    written = running.written()
    result = running.account(written, (at, again))
    assert (result.silent, result.wrong) == ([], [])
    assert "started again" in running.events()
    assert latest <= set(written.versions)


def test_more_events_than_the_kernel_keeps_while_the_sentry_stands_still(job, home: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    kinds = ("folder", "in_place")
    with latest_of(home) as latest:
        running = job(writers(kinds, 0))
        eventually(lambda: all((running.folder / kind / "written.jsonl").exists() for kind in kinds))
        eventually(lambda: len(running.written().versions) >= 10)
        sentry, at = running.pid(SENTRY), time.monotonic()
        os.kill(sentry, signal.SIGSTOP)
        scratch = running.home / "artifacts" / running.id / "checkpoints" / "scratch.txt"
        for _ in range(limit // 4 + 500):
            scratch.write_bytes(b"")
            scratch.unlink()
        os.kill(sentry, signal.SIGCONT)
        eventually(lambda: "the kernel dropped file events" in running.events())
        again, before = time.monotonic(), len(running.written().versions)
        eventually(lambda: len(running.written().versions) >= before + 10)
        for kind in kinds:
            (running.folder / kind / "stop").touch()
        running.finish()
    written = running.written()
    result = running.account(written, (at, again))
    assert (result.silent, result.wrong) == ([], [])
    assert latest <= set(written.versions)
