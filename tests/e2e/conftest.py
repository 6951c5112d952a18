"""The product from a person's chair: a shell with this environment's programs, and trees compared fact by fact."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Shell:
    """Runs bash scripts in one folder, with `python` and `gpu-train` of this environment first on PATH."""

    folder: Path

    def __call__(self, script: str, *, code: int = 0, timeout_s: float = 240) -> str:
        """What a script wrote to standard output; insists on its exit code."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
                "NO_COLOR": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        out, err = os.fsdecode(done.stdout), os.fsdecode(done.stderr)
        assert done.returncode == code, f"exit {done.returncode} from: {script}\n{out}\n{err}"
        return out


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell in an empty folder; GPU_TRAIN_HOME is the test's own."""
    folder = tmp_path / "work"
    folder.mkdir()
    return Shell(folder)


class Facts(NamedTuple):
    """What has to come back of a path."""

    kind: str
    mode: int
    mtime_ns: int
    size_bytes: int
    content: bytes


def facts_of(root: Path) -> dict[bytes, Facts]:
    """The facts of everything below a folder, by relative path; of links their targets, of folders no size."""
    result = {}
    top = os.fsencode(root)
    for base, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(base, name)
            status = os.lstat(path)
            if os.path.islink(path):
                facts = Facts("link", 0, status.st_mtime_ns, 0, os.readlink(path))
            elif name in folders:
                facts = Facts("folder", status.st_mode, status.st_mtime_ns, 0, b"")
            else:
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").digest()
                facts = Facts("file", status.st_mode, status.st_mtime_ns, status.st_size, digest)
            result[os.path.relpath(path, top)] = facts
    return result


@pytest.fixture
def facts() -> Callable[[Path], dict[bytes, Facts]]:
    """The function that tells a tree's facts: equal facts mean an equal tree."""
    return facts_of


@pytest.fixture
def program() -> Path:
    """This environment's `gpu-train`."""
    return BIN / "gpu-train"


@pytest.fixture
def project() -> Path:
    """The project's own folder."""
    return PROJECT
