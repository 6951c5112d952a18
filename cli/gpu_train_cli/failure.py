"""Errors as a person and a script get them: one line on stderr and an exit code.

The codes are on the library's error classes; this module words what was not raised on purpose as well.
"""

from __future__ import annotations

import sys
import traceback

import click

from gpu_train_cas.errors import GpuTrainError
from gpu_train_cli.text import printable

FAILED = 1


def report(error: Exception, *, debug: bool) -> int:
    """Say what went wrong in one line and return the exit code; with `debug` the traceback comes first."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    message, code = _worded(error)
    sys.stderr.write(f"gpu-train: error: {printable(message)}\n")
    return code


def _worded(error: Exception) -> tuple[str, int]:
    match error:
        case GpuTrainError():
            return str(error) or type(error).__name__, error.exit_code
        case click.UsageError():
            where = error.ctx.command_path if error.ctx else "gpu-train"
            return f"{error.format_message().rstrip('.')}; see `{where} --help`", error.exit_code
        case click.ClickException():
            return error.format_message(), error.exit_code
        case FileNotFoundError() if error.filename is None and error.strerror:  # from getcwd(3)
            return "the working directory is gone; go to a folder that is there (`cd`) and try again", FAILED
        case OSError() if error.strerror:
            names = [str(name) for name in (error.filename, error.filename2) if name is not None]
            return ": ".join([" -> ".join(names), error.strerror] if names else [error.strerror]), FAILED
        case MemoryError():
            return "out of memory", FAILED
        case _:
            said = f": {error}" if str(error) else ""
            bug = f"unexpected {type(error).__name__}{said}"
            return f"{bug}; this is a bug, please report it with what --debug shows", FAILED
