"""A folder as a page for browsers: names that lead on, sizes and times. No script, no style, no dependency."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple


class Line(NamedTuple):
    """One name in a folder: how it is shown, its address, its size in bytes (None for a folder), its time."""

    name: str
    href: str
    size_bytes: int | None
    mtime_s: int


def page(title: str, lines: Iterable[Line]) -> bytes:
    """The page, folders first; `title` is the folder's path."""
    known = sorted(lines, key=lambda line: (line.size_bytes is not None, line.name))
    rows = "".join(_row(line) for line in known)
    name = escape(title)
    return (
        f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>{name}</title></head>\n'
        f"<body><h1>{name}</h1>\n<table>\n{rows}</table></body></html>\n"
    ).encode()


def _row(line: Line) -> str:
    when = datetime.fromtimestamp(line.mtime_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    size = "" if line.size_bytes is None else f"{line.size_bytes:,} B"
    name = f'<a href="{escape(line.href)}">{escape(line.name)}</a>'
    return f'<tr><td>{name}</td><td align="right">{size}</td><td>{when}</td></tr>\n'
