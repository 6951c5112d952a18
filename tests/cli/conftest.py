"""The program as a person runs it: the console script of this environment, with a home of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).with_name("gpu-train")


@dataclass
class Program:
    """Runs `gpu-train` with one home and a plain environment."""

    home: Path
    cwd: Path
    env: dict[str, str] = field(default_factory=dict)
    script: Path = SCRIPT

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPU_TRAIN", "BT_"))}
        return {**kept, "GPU_TRAIN_HOME": str(self.home), "NO_COLOR": "1", **self.env, **(extra or {})}

    def __call__(
        self, *arguments: str | Path, code: int = 0, env: Mapping[str, str] | None = None, **kwargs: object
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end and insist on the exit code."""
        done = subprocess.run(
            [self.script, *map(str, arguments)],
            env=self.environment(env),
            cwd=self.cwd,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=120,
            check=False,
            **kwargs,
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *arguments: str | Path, **kwargs: object) -> subprocess.Popen[str]:
        """Start in the background; the caller waits for it."""
        return subprocess.Popen(
            [self.script, *map(str, arguments)],
            env=self.environment(),
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **kwargs,
        )


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A program whose home does not exist yet, in an empty folder."""
    cwd = tmp_path / "work"
    cwd.mkdir()
    return Program(tmp_path / "home", cwd)
