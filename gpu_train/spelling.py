"""What somebody may have meant who wrote a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable


def near(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The names that come nearest, the best first; none when all are far."""
    from difflib import get_close_matches  # noqa: PLC0415  only a wrong name pays for it

    return get_close_matches(word, list(dict.fromkeys(known)), most)
