"""Completion in real shells, as far as they are installed, and what is offered where."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import gpu_train

PATIENCE_S = 60


@pytest.fixture
def stocked(trained):
    """Beside the trained job two of almost one name, a sink, data, code, and a checkpoint with a space in its name."""
    program = trained.program
    (program.cwd / "gpu-train.toml").write_text('[[sinks.checkpoints]]\ntype = "local"\nname = "nas"\ndest = "/nas"\n')
    (program.cwd / "data").mkdir()
    (program.cwd / "data" / "a").write_text("1")
    program("data", "register", "data", "--name", "words")
    with gpu_train.Workspace.open(program.home) as workspace:
        workspace.jobs.put(gpu_train.Job("twin-aaaaaa", "twin", project="apart"))
        workspace.jobs.put(gpu_train.Job("twig-bbbbbb", "twig"))
        workspace.code.snapshot(program.cwd)
        with workspace.store.transaction() as txn:
            workspace.checkpoints.add_in(txn, gpu_train.Checkpoint("twin-aaaaaa", "my best one", step=7))
    return program


def asked(program, line: str) -> list[str]:
    """What a bash with our script has for a line, the cursor at its end."""
    words = re.split(r"[\s@:=]", line)  # what readline takes words apart at
    script = f"""
        eval "$(gpu-train completion bash)"
        complete -p gpu-train > /dev/null || exit 3
        COMP_LINE={shlex.quote(line)} COMP_POINT={len(line.encode())}
        _gpu_train_completion gpu-train {shlex.quote(words[-1])} ""
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=program.environment(), cwd=program.cwd, capture_output=True, text=True,
        check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return [found for found in done.stdout.splitlines() if found]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("gpu-train check", ["checkpoints"]),
        ("gpu-train checkpoints im", ["import"]),
        ("gpu-train checkpoints list --colu", ["--columns"]),
        ("gpu-train jobs show tw", ["twin-aaaaaa", "twig-bbbbbb", "twin", "twig"]),
        ("gpu-train jobs diff demo-abcdef twig-", ["twig-bbbbbb"]),
        ("gpu-train logs demo-", ["demo-abcdef"]),
        (
            "gpu-train checkpoints show demo@",
            ["latest", "best", "step:", "checkpoint-500", "checkpoint-1000", "checkpoint-200"],
        ),
        ("gpu-train checkpoints show demo@checkpoint-1", ["checkpoint-1000"]),
        ("gpu-train checkpoints show demo@step:", ["500", "1000", "200"]),
        ("gpu-train checkpoints show demo@step:1", ["1000"]),
        ("gpu-train checkpoints rm demo@step:500 demo@checkpoint-2", ["checkpoint-200"]),
        ("gpu-train checkpoints show twin@my", [r"my\ best\ one"]),
        ("gpu-train run --resume-from demo@checkpoint-2", ["checkpoint-200"]),
        ("gpu-train run --resume-from=demo@checkpoint-2", ["checkpoint-200"]),
        ("gpu-train pull n", ["nas"]),
        ("gpu-train sinks push demo --sink n", ["nas"]),
        ("gpu-train data show w", ["words"]),
        ("gpu-train projects rm a", ["apart"]),
        ("gpu-train checkpoints list --sort met", ["metric:", "metrics"]),
        ("gpu-train checkpoints show nothing@", []),
        ("gpu-train completion ", ["bash", "zsh", "fish"]),
    ],
)  # fmt: skip
def test_what_bash_offers(stocked, line: str, found: list[str]) -> None:
    assert asked(stocked, line) == found


def test_versions_of_code_and_data(stocked) -> None:
    [version] = asked(stocked, "gpu-train code show ")
    assert stocked("code", "-q").stdout == f"{version}\n"
    found = asked(stocked, "gpu-train data show words@")
    assert [f"words@{version}" for version in found] == stocked("data", "-q").stdout.split()


def test_paths_are_left_to_the_shell(stocked) -> None:
    environment = {"_GPU_TRAIN_COMPLETE": "bash_complete", "COMP_LINE": "gpu-train mount demo ", "COMP_POINT": "21"}
    assert stocked.spawned(**environment).stdout == "dir,\n"


def test_without_a_home_nothing_is_offered_and_nothing_is_made(program) -> None:
    assert asked(program, "gpu-train jobs show ") == []
    assert not program.home.exists()


def test_settings_that_cannot_be_read_are_no_words(stocked) -> None:
    (stocked.cwd / "gpu-train.toml").write_text("broken [")
    assert asked(stocked, "gpu-train jobs show t") == []


def test_another_home_by_option(stocked, tmp_path: Path) -> None:
    assert asked(stocked, f"gpu-train --home {tmp_path}/none jobs show t") == []


@contextmanager
def terminal(words: list[str], environment: dict[str, str], cwd: Path) -> Iterator[int]:
    """A shell on a terminal of its own; it is gone when the block ends."""
    pid, fd = pty.fork()
    if pid == 0:
        try:
            os.chdir(cwd)
            os.execvpe(words[0], words, environment)
        finally:
            os._exit(127)
    try:
        yield fd
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(fd)


def until(fd: int, wanted: str) -> str:
    """What a terminal shows until that appears in it."""
    shown, end = b"", time.monotonic() + PATIENCE_S
    while wanted.encode() not in shown:
        left = end - time.monotonic()
        assert left > 0 and select.select([fd], [], [], left)[0], f"no {wanted!r} in {shown!r}"
        shown += os.read(fd, 4096)
    return shown.decode(errors="replace")


def start_of(shell: str, folder: Path) -> list[str]:
    """How a shell is started without anybody's settings but ours, which end with a prompt that says "ready"."""
    if shell == "bash":
        (folder / "bashrc").write_text('eval "$(gpu-train completion bash)"\nPS1="rea""dy> "\n')
        return ["bash", "--noprofile", "--rcfile", str(folder / "bashrc"), "-i"]
    (folder / ".zshrc").write_text(
        'autoload -Uz compinit; compinit -u -D\neval "$(gpu-train completion zsh)"\nPS1="rea""dy> "\n'
    )
    return ["zsh", "-i"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tabulator(stocked, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = start_of(shell, tmp_path)
    environment = stocked.environment(TERM="dumb", ZDOTDIR=str(tmp_path), HOME=str(tmp_path))
    with terminal(words, environment, stocked.cwd) as fd:
        until(fd, "ready> ")
        os.write(fd, b"gpu-train checkpoints show demo@checkpoint-1\t")
        until(fd, "checkpoint-1000")
        os.write(fd, b"\n")
        assert "0.1" in until(fd, "record ")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(stocked, tmp_path: Path) -> None:
    script = 'gpu-train completion fish | source; complete -C "gpu-train checkpoints show demo@checkpoint-"'
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], env=stocked.environment(HOME=str(tmp_path)), cwd=stocked.cwd,
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert sorted(done.stdout.split()) == [f"demo@checkpoint-{step}" for step in (1000, 200, 500)]
