"""The program as a person runs it: the console script of this environment, with a home of its own."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

import gpu_train
from gpu_train_cas import Record
from gpu_train_cli.main import main

NS = 1_000_000_000
SCRIPT = Path(sys.executable).with_name("gpu-train")


@dataclass(frozen=True)
class Done:
    """What a call printed; bytes that are no UTF-8 are surrogates."""

    stdout: str
    stderr: str


@dataclass
class Program:
    """Runs `gpu-train` with one home and a plain environment, in which `python` is this one (an activated venv)."""

    home: Path
    cwd: Path
    monkeypatch: pytest.MonkeyPatch
    script: Path = SCRIPT

    def environment(self, **extra: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPU_TRAIN", "BT_"))}
        path = os.pathsep.join([str(self.script.parent), os.environ["PATH"]])
        return {**kept, "PATH": path, "GPU_TRAIN_HOME": str(self.home), "NO_COLOR": "1", **extra}

    def __call__(self, *arguments: str | Path, code: int = 0) -> Done:
        """Run inside this process and insist on the exit code."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape") for _ in range(2))
        with self.monkeypatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setenv("GPU_TRAIN_HOME", str(self.home))
            patch.chdir(self.cwd)
            got = main([str(argument) for argument in arguments])
        for stream in (out, err):
            stream.flush()
        done = Done(*(os.fsdecode(stream.buffer.getvalue()) for stream in (out, err)))
        assert got == code, f"exit {got}\n{done.stdout}\n{done.stderr}"
        return done

    def spawned(self, *arguments: str | Path, code: int = 0, **extra: str) -> Done:
        """Run the console script to its end and insist on the exit code."""
        done = subprocess.run(
            [self.script, *map(str, arguments)],
            env=self.environment(**extra),
            cwd=self.cwd,
            capture_output=True,
            timeout=120,
            check=False,
        )
        said = Done(os.fsdecode(done.stdout), os.fsdecode(done.stderr))
        assert done.returncode == code, f"exit {done.returncode}\n{said.stdout}\n{said.stderr}"
        return said

    @contextmanager
    def started(self, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run the console script beside the test; it is gone when the block ends."""
        with subprocess.Popen(
            [self.script, *map(str, arguments)],
            env=self.environment(),
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program whose home does not exist yet, in an empty folder."""
    cwd = tmp_path / "work"
    cwd.mkdir()
    return Program(tmp_path / "home", cwd, monkeypatch)


@dataclass(frozen=True)
class Trained:
    """A home with one finished job of three checkpoints; `files` has what they hold by CHECKPOINT/path."""

    program: Program
    job_id: str
    files: dict[str, bytes]


def write_checkpoint(folder: Path, step: int) -> dict[str, bytes]:
    """A small checkpoint folder; what is in it by relative path."""
    files = {
        "model.safetensors": bytes([step % 251]) * 200_000,
        "trainer_state.json": b'{"global_step": %d}' % step,
        "sub/rng.pth": b"r" * 10,
    }
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("model.safetensors")
    return files


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A home as a run leaves it, made through the library, and what its checkpoints hold."""
    folder = tmp_path_factory.mktemp("finished")
    source, home = folder / "source", folder / "home"
    contents: dict[str, bytes] = {}
    with gpu_train.Workspace.open(home) as workspace:
        job = gpu_train.Job(
            id="demo-abcdef", name="demo", status="finished", exit_code=0, command=("python", "train.py"),
            cwd="/somewhere", created_ns=1_700_000_000 * NS, started_ns=1_700_000_001 * NS,
            ended_ns=1_700_000_061 * NS,
        )  # fmt: skip
        workspace.jobs.put(job)
        for order, step in enumerate((200, 1000, 500)):
            path = source / f"checkpoint-{step}"
            contents |= {f"{path.name}/{name}": data for name, data in write_checkpoint(path, step).items()}
            with workspace.store.writer("test") as writer:
                added = writer.add_tree(path)
                with writer.commit() as txn:
                    created_ns = (1_700_000_010 + order) * NS
                    record = txn.put_record(Record("checkpoint", job.id, path.name, created_ns, added.root))
                    workspace.checkpoints.add_in(
                        txn,
                        gpu_train.Checkpoint(
                            job.id, path.name, step=step, proof="trainer_state.json", created_ns=created_ns,
                            committed_ns=created_ns, size_bytes=added.size_bytes, files=added.files,
                            stored_bytes=added.stored_bytes, metrics={"loss": 100 / step}, record=record, kind="full",
                        ),
                    )  # fmt: skip
    return home, contents


@pytest.fixture
def trained(program: Program, finished: tuple[Path, dict[str, bytes]]) -> Trained:
    """A copy of the finished home for one test."""
    home, contents = finished
    shutil.copytree(home, program.home)
    return Trained(program, "demo-abcdef", contents)
