"""The entry point: the tree of commands, and the one place where errors become a line and a code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from gpu_train.collector import at_ease
from gpu_train_cli.command import CONTEXT_SETTINGS, Group, Lazy, common_options
from gpu_train_cli.invocation import Invocation

INTERRUPTED = 130
COMPLETION = "_GPU_TRAIN_COMPLETE"
BROKEN_PIPE = 141  # what a shell reports for a program that SIGPIPE ended, as for git or cat

RUN, READ, INPUTS, CARE = "Train", "Look at checkpoints", "Code, data and models", "Care"
COMMANDS = {
    "run": Lazy("gpu_train_cli.run:run", "Run a training command and capture its checkpoints.", RUN),
    "jobs": Lazy("gpu_train_cli.jobs:jobs", "List, show, compare and remove jobs.", RUN),
    "projects": Lazy("gpu_train_cli.jobs:projects", "List projects and remove one.", RUN),
    "logs": Lazy("gpu_train_cli.logs:logs", "Show what a job printed, also while it runs.", RUN),
    "metrics": Lazy("gpu_train_cli.metrics:metrics", "Draw the numbers that a job reported.", RUN),
    "stop": Lazy("gpu_train_cli.stop:stop", "Ask a job to end and wait until its last checkpoints are captured.", RUN),
    "kill": Lazy("gpu_train_cli.stop:kill", "End jobs at once.", RUN),
    "status": Lazy("gpu_train_cli.status:status", "Show what of the running jobs is safe.", RUN),
    "reconcile": Lazy("gpu_train_cli.reconcile:reconcile", "Find jobs whose runner is gone and finish them.", RUN),
    "checkpoints": Lazy(
        "gpu_train_cli.checkpoints:checkpoints", "List, show, read, restore, import and remove checkpoints.", READ
    ),
    "mount": Lazy("gpu_train_cli.mount:mount", "Mount a job's checkpoints as a read-only folder.", READ),
    "umount": Lazy("gpu_train_cli.mount:umount", "Take mounts away.", READ),
    "code": Lazy("gpu_train_cli.code:code", "List, restore and export code versions.", INPUTS),
    "data": Lazy("gpu_train_cli.data:data", "Register, list and verify data versions.", INPUTS),
    "models": Lazy("gpu_train_cli.models:models", "Register, list and remove base models.", INPUTS),
    "sinks": Lazy("gpu_train_cli.sinks:sinks", "Replicate checkpoints and logs to other places.", CARE),
    "pull": Lazy("gpu_train_cli.sinks:pull", "Bring checkpoints back from a sink.", CARE),
    "clone": Lazy("gpu_train_cli.sinks:clone", "Make a new home of what a sink holds.", CARE),
    "stats": Lazy("gpu_train_cli.stats:stats", "Show how much space is taken and how much was saved.", CARE),
    "verify": Lazy("gpu_train_cli.verify:verify", "Re-read and re-hash what is stored.", CARE),
    "gc": Lazy("gpu_train_cli.gc:gc", "Free the space of what nothing needs any more.", CARE),
    "reclaim": Lazy("gpu_train_cli.reclaim:reclaim", "Delete plain files of checkpoints that are stored.", CARE),
    "repair": Lazy("gpu_train_cli.repair:repair", "Rebuild the registry from the packs.", CARE),
    "doctor": Lazy("gpu_train_cli.doctor:doctor", "Check that this machine has what gpu-train needs.", CARE),
    "config": Lazy("gpu_train_cli.config:config", "Show the settings and where each came from.", CARE),
    "credentials": Lazy(
        "gpu_train_cli.credentials:credentials", "Keep secrets for sinks: add, list, test and remove them.", CARE
    ),
    "completion": Lazy("gpu_train_cli.completion:completion", "Print the script that completes in a shell.", CARE),
    "debug": Lazy("gpu_train_cli.debug:debug", "Look inside packs, records and files.", CARE),
}
ALIASES = {
    "checkpoint": "checkpoints",
    "ckpt": "checkpoints",
    "model": "models",
    "job": "jobs",
    "project": "projects",
    "sink": "sinks",
}


def _show_version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from importlib.metadata import version  # noqa: PLC0415  30 ms that only --version needs

    click.echo(f"gpu-train {version('gpu-train')}")
    context.exit()


@click.pass_context
def _help_without_command(context: click.Context) -> None:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


cli = Group(
    "gpu-train",
    lazy=COMMANDS,
    aliases=ALIASES,
    context_settings=CONTEXT_SETTINGS,
    help="Keep training runs reproducible: the code that ran, the data it read, the checkpoints it wrote.",
    params=[
        *common_options(hidden=False),
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_show_version,
            help="Show the version and exit.",
        ),
    ],
    no_args_is_help=False,
    invoke_without_command=True,
    callback=_help_without_command,
)


def program() -> int:
    """The console script: `main` as a process of its own."""
    with at_ease():
        return main()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program with `arguments` (the command line's when None) and return its exit code."""
    _open_standard_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    invocation = Invocation()
    try:
        if instruction := os.environ.get(COMPLETION):
            return _complete(instruction)
        # Not cli.main(): click there turns a broken pipe into exit 1 and keeps interrupts to itself.
        with cli.make_context("gpu-train", words, obj=invocation) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as wanted:
        return wanted.exit_code
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        sys.stderr.write("\n")
        return INTERRUPTED
    except Exception as error:
        return _failed(error, debug=invocation.debug)
    return 0


def _open_standard_streams() -> None:
    # Where one was closed (`>&-`), the next file opened, such as the registry's, would take its number and
    # become what a child reads or writes.
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number, which is fd
    # None is what Python makes of a closed one, whatever its types say.
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def _complete(instruction: str) -> int:
    from gpu_train_cli.completion import complete  # noqa: PLC0415  only the shell asks for it

    return complete(cli, instruction)


def _failed(error: Exception, *, debug: bool) -> int:
    from gpu_train_cli import failure  # noqa: PLC0415  only an error pays for the words about it

    return failure.report(error, debug=debug)


def _drop_stdout() -> None:
    # Python flushes stdout once more at exit and would complain about the same broken pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(program())
