"""Listings and details on stdout: tables for people, JSON, JSON lines and CSV for programs, ids for pipes.

A row is a mapping from the machine's key to a plain value (text, int, float, bool, datetime, list, mapping).
The same row feeds every format, so no format can say something the others do not.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import click

from gpu_train_cli.text import as_json, machine, plain, printable

SCHEMA_VERSION = 1
FORMATS = ("table", "json", "jsonl", "csv")
SPREAD_ROWS = 200  # longer listings are one row a line in JSON: spread out, writing them takes longer than reading them
RICH_ROWS = 200  # laying out more rows than this with rich takes longer than reading the store did

Row: TypeAlias = Mapping[str, object]
F = TypeVar("F", bound=Callable[..., Any])


class Column(NamedTuple):
    """One column: the key for programs, the heading for people, how a value is worded, its side.

    `wrap` says that it may be broken over lines where the terminal is narrow.
    """

    key: str
    heading: str
    text: Callable[[Any], str] = plain
    right: bool = False
    wrap: bool = False


class Listing(NamedTuple):
    """Rows under a name; `head` stands beside them in JSON, `empty` is said when there are none."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    identity: Callable[[Row], str]
    empty: str
    head: Mapping[str, object] = MappingProxyType({})


class Details(NamedTuple):
    """One thing: all its fields for programs, chosen lines for people."""

    fields: Row
    identity: str
    lines: Sequence[tuple[str, str]]


class Output(NamedTuple):
    """The format that was asked for with `-o` and `-q`."""

    format: str = "table"
    ids_only: bool = False

    @property
    def for_people(self) -> bool:
        """Whether a person reads this: words, hints and empty states are welcome."""
        return self.format == "table" and not self.ids_only

    @property
    def takes_columns(self) -> bool:
        """Whether it is written in columns, of which some can be chosen: JSON always has all fields."""
        return self.format in ("table", "csv") and not self.ids_only

    def listing(self, listing: Listing) -> None:
        """Write all rows of a listing."""
        if self.ids_only:
            _write_ids(listing.identity(row) for row in listing.rows)
        elif self.format == "json":
            _write_json({"schema_version": SCHEMA_VERSION, **listing.head}, listing.name, listing.rows)
        elif self.format == "jsonl":
            lines = (as_json({"schema_version": SCHEMA_VERSION, **row}) for row in listing.rows)
            click.echo("".join(f"{line}\n" for line in lines), nl=False)
        elif self.format == "csv":
            keys = list(listing.rows[0]) if listing.rows else [column.key for column in listing.columns]
            _write_csv(keys, listing.rows)
        elif not listing.rows:
            note(listing.empty)
        else:
            _write_table(listing.columns, listing.rows)

    def details(self, details: Details) -> None:
        """Write one thing."""
        if self.ids_only:
            _write_ids([details.identity])
        elif self.format in ("json", "jsonl"):
            click.echo(
                as_json(
                    {"schema_version": SCHEMA_VERSION, **details.fields}, indent=2 if self.format == "json" else None
                )
            )
        elif self.format == "csv":
            _write_csv(list(details.fields), [details.fields])
        else:
            width = max((len(name) for name, _ in details.lines), default=0)
            for name, value in details.lines:
                click.echo(f"{name:<{width}}  {value}".rstrip())


def reading(command: F) -> F:
    """Give a command `-o` and `-q`; it receives them as one `Output` named `output`."""

    @click.option(
        "-o",
        "--output",
        "output_format",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How to write the result.",
    )
    @click.option("-q", "--quiet", "ids_only", is_flag=True, help="Write ids only, one a line.")
    @functools.wraps(command)
    def wrapper(*args: Any, output_format: str, ids_only: bool, **kwargs: Any) -> Any:
        return command(*args, output=Output(output_format, ids_only), **kwargs)

    return wrapper  # type: ignore[return-value]  # click reads the options from the wrapper, the signature is F's


def note(message: str) -> None:
    """Say something to the person on stderr, where no program reads it as a result."""
    click.echo(printable(message), err=True)


def warn(message: str) -> None:
    """A warning on stderr, in the same form as errors."""
    note(f"gpu-train: warning: {message}")


def _write_ids(ids: Iterable[str]) -> None:
    if sys.stdout.isatty():
        click.echo("".join(f"{printable(identity)}\n" for identity in ids), nl=False)
    else:
        # A pipe gets the name's own bytes, so that `-q | xargs` finds what is not UTF-8 as well.
        click.echo(b"".join(os.fsencode(identity) + b"\n" for identity in ids), nl=False)


def _write_json(head: Row, name: str, rows: Sequence[Row]) -> None:
    if len(rows) <= SPREAD_ROWS:
        click.echo(as_json({**head, name: list(rows)}, indent=2))
        return
    top = as_json({**head, name: []}, indent=2)
    lines = ",\n".join(f"    {as_json(row)}" for row in rows)
    click.echo(f"{top.removesuffix(']' + chr(10) + '}')}\n{lines}\n  ]\n}}")


def _write_csv(keys: Sequence[str], rows: Iterable[Row]) -> None:
    import csv  # noqa: PLC0415  only `-o csv` needs them
    import io  # noqa: PLC0415

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(keys)
    for row in rows:
        writer.writerow([_csv_cell(row.get(key)) for key in keys])
    click.echo(buffer.getvalue().encode("utf-8", "surrogateescape"), nl=False)


def _csv_cell(value: object) -> object:
    if isinstance(value, str | int):
        return value
    if isinstance(value, list | tuple | Mapping):
        return as_json(value)
    return "" if value is None else machine(value)


def _write_table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    cells = [[column.text(row.get(column.key)) for column in columns] for row in rows]
    if sys.stdout.isatty() and len(rows) <= RICH_ROWS and os.environ.get("TERM") != "dumb":
        _write_rich_table(columns, cells)
        return
    widths = [max(len(column.heading), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    whole = zip([column.heading for column in columns], *cells, strict=True)
    padded = [
        [cell.rjust(width) for cell in column_cells] if column.right else [cell.ljust(width) for cell in column_cells]
        for column_cells, width, column in zip(whole, widths, columns, strict=True)
    ]
    lines = ["  ".join(line).rstrip() for line in zip(*padded, strict=True)]
    click.echo("\n".join(lines))  # at once: echo flushes each time


def _write_rich_table(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415  a terminal's table alone pays for importing rich
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="" if os.environ.get("NO_COLOR") else "bold")
    for column in columns:
        table.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=not column.wrap,
            overflow="fold",
        )
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))  # Text: a name with [markup] in it stays a name
    Console(highlight=False).print(table)
