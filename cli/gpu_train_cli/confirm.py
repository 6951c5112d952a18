"""Asking before something is taken away."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Any)


def yes_option(command: F) -> F:
    """Give a command `--yes`; it receives it as `yes`."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Go on when the person agrees, or has with `--yes`.

    Raises:
        click.UsageError: without `--yes` where there is no terminal to ask at.
        click.Abort: when the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{question} There is no terminal to ask at: give --yes, or --dry-run to look first")
    click.confirm(question, abort=True, err=True)
