"""`gpu-train completion`: the script by which a shell asks this program how a word goes on, and the answer.

click finds the command and the parameter; `suggestion` knows the values. bash takes words apart at `@`, `:` and `=`, so
it gets a script of its own: the whole line goes to the program, which answers with what is missing of the word.
"""

from __future__ import annotations

import os
import re
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    shell_complete,
    split_arg_string,
)

from gpu_train_cli.command import Command
from gpu_train_cli.suggestion import values

PROGRAM = "gpu-train"
VARIABLE = "_GPU_TRAIN_COMPLETE"
_SPECIAL = re.compile(r"([^\w@%+=:,./~-])")
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' kind value
    COMPREPLY=()
    while IFS=',' read -r kind value; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" COMP_WORD="$2" %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Suggesting(ShellComplete):
    """Completes with our values where a parameter takes one."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        from click.shell_completion import _resolve_context, _resolve_incomplete  # noqa: PLC0415  beside `complete`

        context = _resolve_context(self.cli, self.ctx_args, self.prog_name, args)
        asked, incomplete = _resolve_incomplete(context, args, incomplete)
        if isinstance(asked, click.Parameter):
            found = values(context, asked, incomplete)
            if found is not None:
                return [CompletionItem(value) for value in found if value.isprintable()]
        return asked.shell_complete(context, incomplete)


class Bash(_Suggesting, BashComplete):
    """bash 4.4 and later."""

    source_template = _BASH

    def source(self) -> str:
        """The script; it needs nothing of a bash that runs here."""
        return self.source_template % self.source_vars()

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words up to the cursor; the last one is what is to be completed."""
        if "COMP_LINE" not in os.environ:
            return super().get_completion_args()
        line = os.fsencode(os.environ["COMP_LINE"])[: int(os.environ["COMP_POINT"])]
        text = os.fsdecode(line)
        words = split_arg_string(text)
        self._whole = "" if not words or text[-1:].isspace() else words.pop()
        return words[1:], self._whole

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """A value without the part of the word that bash takes for words before."""
        value = str(item.value)
        word = os.environ.get("COMP_WORD")
        if word is not None and item.type == "plain":
            before = self._whole.removesuffix(word) if self._whole.endswith(word) else ""
            if before.startswith("-") and not value.startswith(before):
                before = before.partition("=")[2]  # of --option=VALUE
            value = _SPECIAL.sub(r"\\\1", value.removeprefix(before))
        return f"{item.type},{value}"


class Zsh(_Suggesting, ZshComplete):
    """zsh with its completion system loaded."""


class Fish(_Suggesting, FishComplete):
    """fish 3 and later."""


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def complete(cli: click.Command, instruction: str) -> int:
    """Answer a shell that asks by the environment; the exit code."""
    for name, shell in SHELLS.items():
        add_completion_class(shell, name)
    return shell_complete(cli, {}, PROGRAM, VARIABLE, instruction)


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes in a shell.

    It completes commands, options, jobs, refs, sinks and names. For bash put `eval "$(gpu-train completion bash)"` into
    ~/.bashrc, for zsh the same with zsh into ~/.zshrc, behind `compinit`. For fish:
    gpu-train completion fish > ~/.config/fish/completions/gpu-train.fish
    """
    click.echo(SHELLS[shell](context.find_root().command, {}, PROGRAM, VARIABLE).source(), nl=False)
