"""Numbers of bytes as people write them: `500 MB`, `20GiB`, `1.5T`; and as settings that may be left to the program."""

from __future__ import annotations

import re
from typing import Any, NewType

Size = NewType("Size", str)
AUTO = Size("auto")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_LETTERS = "KMGTP"
_TEXT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kKmMgGtTpP])([iI]?[bB])?|[bB])?")
EXPECTED = 'a number of bytes, a text such as "20 GiB", or "auto" is expected'


def size_of(value: Any) -> Size:
    """The setting of a size: a number of bytes, a text such as "20 GiB", or "auto".

    Raises:
        ValueError: saying what is expected.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Size(str(value))
    if not isinstance(value, str):
        raise ValueError(EXPECTED)
    if value.strip().lower() == AUTO:
        return AUTO
    parse_size(value)
    return Size(value.strip())


def bytes_of(size: Size) -> int | None:
    """The bytes that a setting says; None when it leaves them to the program."""
    return None if size == AUTO else parse_size(size)


def parse_size(text: str) -> int:
    """The bytes that a text means. KB, MB, GB count by thousands; K, KiB and so on by 1024.

    Raises:
        ValueError: for anything else, saying what is expected.
    """
    said = _TEXT.fullmatch(text.strip())
    if said is None:
        raise ValueError(EXPECTED)
    number, letter, rest = said.groups()
    base = 1000 if (rest or "").lower() == "b" else 1024
    return int(float(number) * base ** (1 + _LETTERS.index(letter.upper()))) if letter else int(float(number))


def size_text(size_bytes: float) -> str:
    """In binary units, with one decimal: `812 B`, `1.2 GiB`."""
    value = float(size_bytes)
    for unit in UNITS:
        if value < 1024 or unit == UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} B" if unit == UNITS[0] else f"{value:.1f} {unit}"
