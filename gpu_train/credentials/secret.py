"""Secret texts that do not show themselves: not in `print`, not in a log, not in an exception, not in a traceback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

MASK = "********"


class Secret:
    """A secret text. Only `reveal` gives it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return MASK

    def __bool__(self) -> bool:
        return bool(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written anywhere")


class Secrets(Mapping[str, str]):
    """Named secret texts, such as `aws_access_key_id`; their names show, their values only when one is asked for."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> str:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._fields)})"

    __str__ = __repr__

    def __hash__(self) -> int:
        return hash(frozenset(self._fields.items()))

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Mapping) and self._fields == dict(other)

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets are not written anywhere")
