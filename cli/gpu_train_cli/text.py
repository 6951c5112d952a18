"""Values as a person reads them, and text that cannot harm the terminal it is shown on."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from pathlib import PurePath
from typing import Literal

SURROGATE_FIRST, SURROGATE_LAST = 0xDC80, 0xDCFF  # how os.fsdecode carries bytes that are not UTF-8
# Characters that move or reorder what is around them: controls, formats (bidi overrides), separators, lone
# surrogates, private use.
HOSTILE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZONE_S = 900
_AS_THEY_ARE = frozenset((str, int, bool))
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: str) -> str:
    r"""The text with control, escape and reordering characters shown as `\n`, `\x1b`, `\u202e`, `\xff`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(c) if unicodedata.category(c) in HOSTILE_CATEGORIES else c for c in text)


def _visible(character: str) -> str:
    code = ord(character)
    if SURROGATE_FIRST <= code <= SURROGATE_LAST:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def size(size_bytes: int | None) -> str:
    """Bytes in binary units with three figures: `812 B`, `1.21 GiB`; `-` when not known."""
    if size_bytes is None:
        return "-"
    value = float(size_bytes)
    for unit in UNITS:
        if abs(value) < 1023.5 or unit == UNITS[-1]:
            break
        value /= 1024
    if unit == "B":
        return f"{size_bytes} B"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def moment(ns: int | None) -> datetime | None:
    """A count of nanoseconds since 1970 as a UTC datetime; None stays None."""
    return None if ns is None else _EPOCH + timedelta(microseconds=ns // 1000)


def iso(time: datetime) -> str:
    """ISO-8601 in UTC with a `Z`."""
    there = time if time.tzinfo is UTC else time.astimezone(UTC)
    return there.isoformat().replace("+00:00", "Z")


def local(time: datetime | None) -> str:
    """The local time with its zone, to the second."""
    if time is None:
        return "-"
    here = time.astimezone(_zone(int(time.timestamp()) // _ZONE_S))
    return f"{here.replace(tzinfo=None).isoformat(' ', 'seconds')} {here.tzname()}"


@lru_cache
def _zone(part: int) -> tzinfo | None:
    """The local zone, as it is in that quarter of an hour: no clock is put forward or back within one."""
    return datetime.fromtimestamp(part * _ZONE_S, UTC).astimezone().tzinfo


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that matter: `0.4s`, `48s`, `3m 05s`, `2h 10m`, `3d 4h`."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def count(number: int, noun: str) -> str:
    """`1 file`, `2 files`, `12,345 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def plain(value: object) -> str:
    """Any value of a row as one line for a table, safe to show."""
    if type(value) is str:  # by far the most, of thousands
        return printable(value) or "-"
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case datetime():
            return local(value)
        case PurePath() | str():
            return printable(str(value)) or "-"
        case Mapping():
            return printable(" ".join(f"{k}={plain(v)}" for k, v in value.items())) or "-"
        case list() | tuple():
            return ", ".join(plain(v) for v in value) or "-"
        case _:
            return printable(str(value))


def machine(value: object) -> object:
    """A value of a row as JSON has it: ISO-8601 UTC times, integers as they are, paths as text."""
    if value is None or type(value) in _AS_THEY_ARE:
        return value
    match value:
        case datetime():
            return iso(value)
        case float() if not math.isfinite(value):
            return str(value)  # JSON has no NaN; parsers fail on Python's bare word
        case Mapping():
            return {str(k): machine(v) for k, v in value.items()}
        case list() | tuple():
            return [machine(v) for v in value]
        case bytes():
            return value.hex()
        case PurePath():
            return str(value)
        case _:
            return value


def as_json(value: object, *, indent: Literal[2] | None = None) -> str:
    """JSON in ASCII: the same in any locale, and names that are not UTF-8 survive as escapes."""
    try:
        return (_SPREAD if indent else _COMPACT).encode(value)
    except (ValueError, TypeError):  # a NaN, or a key that is no text: rare, and slower to write
        return json.dumps(machine(value), indent=indent, ensure_ascii=True, allow_nan=False)


def _foreign(value: object) -> object:
    """What `machine` makes of a value that JSON has no form for."""
    made = machine(value)
    if made is value:
        raise TypeError(f"{type(value).__name__} has no form in JSON")
    return made


_COMPACT = json.JSONEncoder(allow_nan=False, default=_foreign)
_SPREAD = json.JSONEncoder(allow_nan=False, default=_foreign, indent=2)
