"""The frame: help, version, unknown words, broken pipes."""

import os
import subprocess
import sys

import click
import pytest

from gpu_train_cli.command import Command, Group
from gpu_train_cli.main import ALIASES, BROKEN_PIPE, COMMANDS, cli, main


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """Every command of the tree with its words."""
    found: list[tuple[tuple[str, ...], click.Command]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


TREE = commands(cli)
IDS = [" ".join(path) for path, _ in TREE]


@pytest.mark.parametrize(("path", "command"), TREE, ids=IDS)
def test_every_command_has_help_that_ends_with_its_exit_codes(
    path: tuple[str, ...], command: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(command, Command | Group)
    assert command.help, f"{path} has no help"
    assert main([*path, "--help"]) == 0
    *_, last = capsys.readouterr().out.strip().split("\n\n")
    assert last.strip().startswith("Exit codes: ")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path} {parameter.opts} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_of_a_command_that_is_not_loaded_is_its_own(name: str) -> None:
    command = COMMANDS[name].load()
    assert command.name == name
    assert COMMANDS[name].short_help.rstrip(".") == command.get_short_help_str(limit=120).rstrip(".")


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases(alias: str, name: str) -> None:
    context = click.Context(cli)
    assert cli.get_command(context, alias) is cli.get_command(context, name)


def test_the_console_script_answers(program) -> None:
    assert program.spawned("--help").stdout.startswith("Usage: gpu-train ")
    assert program.spawned().stdout == program("--help").stdout
    assert program.spawned("--version").stdout.startswith("gpu-train 0.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jbos"], "no command 'jbos', did you mean jobs"),
        (["checkpoints", "lst"], "no command 'lst', did you mean list?; see `gpu-train checkpoints --help`"),
        (["--frobnicate"], "No such option '--frobnicate'; see `gpu-train --help`"),
        (["jobs", "show"], "Missing argument 'JOB'; see `gpu-train jobs show --help`"),
        (["jobs", "-o", "xml"], "'xml' is not one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_and_exit_2(program, arguments: list[str], said: str) -> None:
    done = program(*arguments, code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("gpu-train: error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_leaves_early_is_no_error(program) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [program.script, "--help"], env=program.environment(), stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert done.stderr == b""
    assert done.returncode == BROKEN_PIPE


def test_the_shell_can_complete(program) -> None:
    asked = {"_GPU_TRAIN_COMPLETE": "bash_complete", "COMP_WORDS": "gpu-train check", "COMP_CWORD": "1"}
    assert program.spawned(**asked).stdout == "plain,checkpoints\n"


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_no_file_takes_the_place_of_a_closed_stream(program, closed: tuple[int, ...]) -> None:
    """The registry must not become what a command reads and prints to."""
    places = [program.cwd / f"fd{fd}" for fd in range(3)]
    look = "; ".join(f"readlink /proc/$PPID/fd/{fd} > {place}" for fd, place in enumerate(places))
    inner = [program.script, "run", "--", "sh", "-c", look + "; cat; echo out; echo err >&2"]
    redirections = " ".join(f"{fd}>&-" for fd in closed)
    subprocess.run(
        ["sh", "-c", f'"$@" {redirections}', "sh", *inner],
        env=program.environment(), cwd=program.cwd, stdin=subprocess.DEVNULL, capture_output=True,
        check=True, timeout=60,
    )  # fmt: skip
    assert {places[fd].read_text() for fd in closed} == {"/dev/null\n"}
    listed = subprocess.run(
        ["sh", "-c", f'"$@" {redirections}', "sh", program.script, "jobs"],
        env=program.environment(), cwd=program.cwd, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (listed.returncode, listed.stderr) == (0, b"")


def test_a_working_directory_that_is_gone(program) -> None:
    def from_nowhere(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", sys.executable, program.script,
             *arguments],
            env=program.environment(), cwd=program.cwd, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    assert from_nowhere("jobs").returncode == 0
    done = from_nowhere("run", "--", "true")
    assert done.returncode == 1
    assert done.stderr.startswith("gpu-train: error: the working directory is gone; go to a folder that is there")
    assert done.stderr.count("\n") == 1
