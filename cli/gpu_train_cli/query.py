"""What `--sort`, `--filter` and `--search` mean, over the rows of any listing.

    sort     KEY[:asc|:desc]        KEY a field, or metric:NAME
    filter   FIELD OP VALUE         OP: = != < <= > >= ~ (contains); sizes with units, ISO-8601 times
    search   TEXT                   every word must be in the row's text, whatever the case

A row without a value for the sort key comes last in either direction; a filter never matches it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import click

from gpu_train_cli.output import Row

METRIC = "metric:"
TAG = "tag:"
EXPRESSION = re.compile(r"\s*([A-Za-z_][\w:./-]*?)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """A field to sort and filter by: where it is in the row, how it compares, its first direction."""

    key: str
    kind: str = "text"  # text, number, size, time
    descending: bool = False
    order: Callable[[Any], Any] | None = None  # natural order of names, where text order is not it


Fields = Mapping[str, Field]


def field_of(name: str, fields: Fields) -> tuple[Field, Callable[[Row], Any]]:
    """The field of that name and the way to its value in a row.

    Raises:
        click.BadParameter: for a name that is none; the message lists those there are.
    """
    for prefix, key, kind in ((METRIC, "metrics", "number"), (TAG, "tags", "text")):
        if name.startswith(prefix) and f"{prefix}NAME" in fields:
            return Field(key, kind), partial(_inner, key=key, inner=name.removeprefix(prefix))
    if name not in fields or name.endswith(":NAME"):
        raise click.BadParameter(f"no field {name!r}; there are {', '.join(fields)}")
    found = fields[name]
    return found, lambda row: row.get(found.key)


def _inner(row: Row, key: str, inner: str) -> object:
    mapping = row.get(key)
    return mapping.get(inner) if isinstance(mapping, Mapping) else None


def _comparable(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def sort(rows: Iterable[Row], expression: str, fields: Fields) -> list[Row]:
    """The rows in the order of `KEY[:asc|:desc]`; equal ones stay as they came."""
    name, descending = expression, None
    for suffix, direction in ((":asc", False), (":desc", True)):
        if expression.endswith(suffix):
            name, descending = expression.removesuffix(suffix), direction
    found, value_of = field_of(name, fields)
    order = found.order or (lambda value: value)
    rows = list(rows)
    known = [row for row in rows if _comparable(value_of(row))]
    unknown = [row for row in rows if not _comparable(value_of(row))]
    known.sort(
        key=lambda row: order(value_of(row)),
        reverse=found.descending if descending is None else descending,
    )
    return known + unknown


def matcher(expressions: Sequence[str], fields: Fields) -> Callable[[Row], bool]:
    """Whether a row meets every filter expression."""
    tests = [_test(expression, fields) for expression in expressions]
    return lambda row: all(test(row) for test in tests)


def _test(expression: str, fields: Fields) -> Callable[[Row], bool]:
    match = EXPRESSION.fullmatch(expression)
    if match is None:
        raise click.BadParameter(f"{expression!r} is not FIELD OP VALUE, such as step>=500 or size<1GiB")
    name, sign, text = match.groups()
    found, value_of = field_of(name, fields)
    if sign == "~":
        return lambda row: text.casefold() in str(value_of(row) or "").casefold()
    wanted = _parse(text, found.kind, expression)
    if sign in ORDERS:
        compare = ORDERS[sign]
        return lambda row: value_of(row) is not None and compare(value_of(row), wanted)
    if sign == "=":
        return lambda row: value_of(row) is not None and bool(value_of(row) == wanted)
    return lambda row: bool(value_of(row) != wanted)


def _parse(text: str, kind: str, expression: str) -> object:
    try:
        match kind:
            case "number":
                return float(text)
            case "size":
                return parse_size(text)
            case "time":
                return datetime.fromisoformat(text).astimezone()
    except ValueError:
        example = {"number": "500", "size": "1.5GiB", "time": "2026-01-31T12:00"}[kind]
        raise click.BadParameter(f"{text!r} in {expression!r} is not a {kind}, such as {example}") from None
    return text


def parse_size(text: str) -> int:
    """Bytes of `500`, `1.5GiB`, `20k`; `GB` is 10^9 and `GiB` (or `G`) 2^30.

    Raises:
        ValueError: for anything else.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    number, unit, binary = match.groups()
    decimal = unit and not binary and text.strip().lower().endswith("b")
    factor: int = (1000 if decimal else 1024) ** POWERS[unit.lower()]
    return round(float(number) * factor)


def searcher(text: str | None, keys: Sequence[str]) -> Callable[[Row], bool]:
    """Whether every word of `text` is somewhere in the row's `keys`."""
    words = (text or "").casefold().split()
    if not words:
        return lambda _: True

    def found(row: Row) -> bool:
        hay = " ".join(str(row.get(key) or "") for key in keys).casefold()
        return all(word in hay for word in words)

    return found
