"""The reference part of docs/guides/cli.md, written from the commands themselves.

    python -m gpu_train_cli.reference docs/guides/cli.md

rewrites what follows the marker in that file; a test fails when the file is not what this would write.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from gpu_train_cli.command import Command, Group
from gpu_train_cli.main import cli

MARKER = "<!-- From here on written by `python -m gpu_train_cli.reference`; change the commands' help instead. -->\n"


def reference() -> str:
    """All commands in the order of the help, as Markdown."""
    return "\n".join(_group(cli, "gpu-train"))


def updated(text: str) -> str:
    """The guide with a fresh reference.

    Raises:
        ValueError: for a text without the marker.
    """
    before, marker, _ = text.partition(MARKER)
    if not marker:
        raise ValueError(f"the guide has no line {MARKER.strip()!r}")
    return before + marker + "\n" + reference()


def _group(group: Group, path: str) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        words = f"{path} {name}"
        yield f"## {words}" if path == "gpu-train" else f"### {words}"
        yield ""
        yield from _command(command, words)
        if isinstance(command, Group):
            yield from _group(command, words)


def _command(command: click.Command, words: str) -> Iterator[str]:
    context = click.Context(command, info_name=words)
    yield "```"
    yield f"{words} {' '.join(command.collect_usage_pieces(context))}"
    yield "```"
    yield ""
    yield inspect.cleandoc(command.help or "")
    yield ""
    records = (
        parameter.get_help_record(context)
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and "--help" not in parameter.opts
    )
    rows = [f"- `{record[0]}`: {record[1]}" for record in records if record is not None]
    yield from rows
    if rows:
        yield ""
    if isinstance(command, Group):
        if command.default:
            yield f"Without a command: `{command.default}`."
        for flag, name in command.flags.items():
            yield f"`{flag}` is another way to write `{name}`."
        yield ""
    elif isinstance(command, Command):
        yield command.exit_line
        yield ""


if __name__ == "__main__":
    guide = Path(sys.argv[1])
    guide.write_text(updated(guide.read_text()))
