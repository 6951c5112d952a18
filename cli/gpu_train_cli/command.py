"""The two click classes of this program: commands that tell their exit codes, groups that load late."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from gpu_train.spelling import near
from gpu_train_cli.invocation import Invocation

EXIT_CODES = {
    0: "ok",
    1: "failed",
    2: "wrong usage",
    3: "not found",
    4: "incomplete or damaged",
    5: "a sink failed",
    6: "busy or locked",
    130: "interrupted",
}
ALWAYS = (0, 1, 2, 130)  # any command can give these
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def _set_home(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Invocation).home = Path(value).expanduser()


def _set_debug(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Invocation).debug = True


def common_options(*, hidden: bool) -> list[click.Parameter]:
    """`--home` and `--debug`: shown on the program, taken by every command so that they can stand last."""
    return [
        click.Option(
            ["--home"],
            metavar="DIR",
            expose_value=False,
            callback=_set_home,
            hidden=hidden,
            help="The folder everything is kept in. [default: $GPU_TRAIN_HOME or ~/.gpu-train]",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            callback=_set_debug,
            hidden=hidden,
            help="Show the traceback of an error.",
        ),
    ]


class Command(click.Command):
    """A command whose help ends with its exit codes: those any command has and the `exits` it names itself.

    `exit_note` says in words what is not one of ours, as for `run`.
    """

    def __init__(self, *args: Any, exits: Sequence[int] = (), exit_note: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", CONTEXT_SETTINGS)
        super().__init__(*args, **kwargs)
        self.exits = sorted({*ALWAYS, *exits})
        self.exit_note = exit_note
        self.params.extend(common_options(hidden=True))

    @property
    def exit_line(self) -> str:
        """The exit codes in one sentence."""
        codes = ", ".join(f"{code} {EXIT_CODES[code]}" for code in self.exits)
        return f"Exit codes: {f'{self.exit_note}: ' if self.exit_note else ''}{codes}."

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The exit codes, as the last words of the help."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(self.exit_line)


class Lazy(NamedTuple):
    """A command that is not loaded yet: where it is (`module:attribute`) and the line help shows for it."""

    where: str
    short_help: str
    section: str = "Commands"

    def load(self) -> click.Command:
        """The command, its module imported."""
        module, _, attribute = self.where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


class Group(click.Group):
    """A group of commands, with other names for some of them and forms that stand for a subcommand.

    `lazy`     name -> `Lazy`: listed without being imported.
    `aliases`  other name -> name; accepted, not listed.
    `default`  the subcommand that options alone (or nothing) mean: `jobs -o json` is `jobs list -o json`.
    `flags`    option -> subcommand: `code --restore V` is `code restore V`.
    """

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, Lazy] | None = None,
        aliases: Mapping[str, str] | None = None,
        default: str | None = None,
        flags: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("context_settings", CONTEXT_SETTINGS)
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})
        self.aliases = dict(aliases or {})
        self.default = default
        self.flags = dict(flags or {})
        self.command_class = Command
        self.group_class = Group

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the subcommand in where a flag or nothing but options stands for it."""
        completing = ctx.resilient_parsing and not args  # what a shell asks for then are the subcommands
        return super().parse_args(ctx, args if completing else self._spelled_out(args))

    def _spelled_out(self, args: list[str]) -> list[str]:
        if any(arg in ("-h", "--help") for arg in args[:1]):
            return args
        for i, arg in enumerate(args):
            flag, equals, value = arg.partition("=")
            if flag in self.flags and args[0].startswith("-"):
                return [self.flags[flag], *args[:i], *([value] if equals else []), *args[i + 1 :]]
        if self.default is not None and (not args or args[0].startswith("-")):
            return [self.default, *args]
        return args

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names that help lists, in the order they were given."""
        return [*self.commands, *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command under that name or alias, loaded when it was not."""
        name = self.aliases.get(cmd_name, cmd_name)
        if name in self.lazy and name not in self.commands:
            return self.lazy[name].load()
        return self.commands.get(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with the names that come near."""
        name = args[0]
        command = self.get_command(ctx, name)
        if command is None and not name.startswith("-"):
            meant = near(name, [*self.list_commands(ctx), *self.aliases], 2)
            hint = f", did you mean {' or '.join(meant)}?" if meant else ""
            ctx.fail(f"no command {name!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands under their sections, without loading one."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            if name in self.lazy:
                lazy = self.lazy[name]
                sections.setdefault(lazy.section, []).append((name, lazy.short_help))
            elif not self.commands[name].hidden:
                line = self.commands[name].get_short_help_str(limit=90)
                sections.setdefault("Commands", []).append((name, line))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The forms that stand for a subcommand, and the exit codes of a group as such."""
        super().format_epilog(ctx, formatter)
        if self.default is not None:
            formatter.write_paragraph()
            formatter.write_text(f"Without a command: {self.default}.")
        for flag, name in self.flags.items():
            formatter.write_paragraph()
            formatter.write_text(f"{flag} is another way to write {name}.")
        formatter.write_paragraph()
        formatter.write_text("Exit codes: each command's help ends with its own.")
