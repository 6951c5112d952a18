"""What a terminal gets: a laid-out table, and never a name's own escape sequences."""

import os
import pty
import select
import signal
import subprocess
import time

import pytest

import gpu_train

DEADLINE_S = 60.0


def on_terminal(program, *arguments: str, columns: int = 200, **extra: str) -> str:
    """Run with a terminal as stdout and stderr; what it was sent."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [program.script, *arguments],
        env=program.environment(**{"COLUMNS": str(columns), "TERM": "xterm", **extra}),
        cwd=program.cwd,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        said = b""
        deadline = time.monotonic() + DEADLINE_S
        while select.select([ours], [], [], deadline - time.monotonic())[0]:
            try:
                said += os.read(ours, 65536)
            except OSError:  # EIO: nobody has the other end any more
                break
        assert process.wait(DEADLINE_S) == 0
    os.close(ours)
    return os.fsdecode(said).replace("\r\n", "\n")


def test_a_name_cannot_act_on_the_terminal(trained) -> None:
    with gpu_train.Workspace.open(trained.program.home) as workspace:
        known, _ = workspace.checkpoints.resolve("demo@latest")
        with workspace.store.transaction() as txn:
            row = gpu_train.Checkpoint(
                "demo-abcdef", "\x1b]0;pwned\x07[red]\n", committed_ns=time.time_ns(), record=known.record
            )
            workspace.checkpoints.add_in(txn, row)
    for arguments in (["checkpoints"], ["checkpoints", "-q"], ["checkpoints", "show", "demo@latest"]):
        assert "\x1b]" not in on_terminal(trained.program, *arguments)
    shown = on_terminal(trained.program, "checkpoints")
    assert "\\x1b]0;pwned\\x07[red]\\n" in shown


def test_colour_unless_no_color_says_otherwise(trained) -> None:
    assert "\x1b[1m" in on_terminal(trained.program, "jobs", NO_COLOR="")
    assert "\x1b" not in on_terminal(trained.program, "jobs")
    assert "\x1b" not in on_terminal(trained.program, "jobs", NO_COLOR="", TERM="dumb")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_names_stay_whole_on_a_narrow_terminal(trained, columns: int) -> None:
    shown = on_terminal(trained.program, "checkpoints", "list", "demo", columns=columns)
    assert "checkpoint-1000" in shown
    assert max(len(line) for line in shown.splitlines()) <= columns + len("\x1b[1m\x1b[0m") * 20


def test_ctrl_c_is_no_error_and_exit_130(trained) -> None:
    program = trained.program
    with gpu_train.Workspace.open(program.home) as workspace:
        workspace.jobs.put(
            gpu_train.Job("live-abcdef", "live", status="queued", created_ns=time.time_ns(), command=("x",))
        )
        logs = workspace.home.logs("live-abcdef")
    logs.mkdir(parents=True)
    (logs / "stdout.log").write_text("begun\n")
    with program.started("logs", "-f", "live") as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert b"Traceback" not in err
