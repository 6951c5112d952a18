"""Patterns of paths, in which a part can have a name, so that two patterns can speak of the same part.

`*` and `?` stand for anything but "/", `**` for anything, `[ab]` for one of these characters. `{folder}` is nothing or
a folder with its slash, `{name}` and `{stem}` a part of a name, any other `{word}` a number. So `{folder}*.distcp` and
`{folder}.metadata` speak of the same folder.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

FOLDER = "folder"
NAME = "name"
STEM = "stem"
Parts = Mapping[str, str]
"""What each named part of a pattern stood for in a path."""

_TOKEN = re.compile(r"\*\*|\*|\?|\[!?[^\]]+\]|\{[a-z_]+\}|(?P<wrong>[\[{}])|[^*?\[{}]+")
_ANYTHING = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
_MEANINGS = {FOLDER: "(?:.*/)?", NAME: "[^/]+", STEM: "[^/]+"}
_NUMBER = "[0-9]+"


class Pattern:
    """One pattern, ready to be matched.

    Attributes:
        text: as it was written.
        names: of its named parts, in the order in which they come.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        names: list[str] = []
        self._tokens = list(_tokens(text))
        try:
            self._regex = re.compile("".join(_translated(token, names) for token in self._tokens), re.DOTALL)
        except re.error as e:
            raise ValueError(f"{text!r} is no pattern: {e}") from e
        self.names = tuple(names)

    def match(self, path: str) -> Parts | None:
        """What its named parts stand for in a path; None when the path is another one."""
        found = self._regex.fullmatch(path)
        return found and found.groupdict()

    def matches(self, path: str) -> bool:
        """Whether the path is one of those it means."""
        return self._regex.fullmatch(path) is not None

    def filled(self, parts: Parts) -> str:
        """The pattern's text with what is known of its parts in their places."""
        return "".join(
            token if name is None else parts.get(name, token) for token in self._tokens for name in [_name_of(token)]
        )

    def among(self, parts: Parts, names: Collection[str]) -> str:
        """The first of the names that it means, with some of its parts known; empty when there is none."""
        literal = self.filled(parts)
        if literal in names:
            return literal
        if not any(token in _ANYTHING or token.startswith("[") for token in self._tokens):
            return ""
        known = {f"{{{name}}}": re.escape(value) for name, value in parts.items()}
        regex = re.compile("".join(known.get(t) or _translated(t, None) for t in self._tokens), re.DOTALL)
        return next((name for name in sorted(names) if regex.fullmatch(name)), "")


@cache
def pattern(text: str) -> Pattern:
    """The pattern of a text.

    Raises:
        ValueError: for a text that is none, saying why.
    """
    return Pattern(text)


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """One expression that matches what any of the patterns does; nothing without a pattern.

    A named part stands for anything that it could. No pattern is compiled for itself.
    """
    return _any_of(tuple(texts))


@cache
def _any_of(texts: tuple[str, ...]) -> re.Pattern[str]:
    each = ("".join(_translated(token, None) for token in _tokens(text)) for text in texts)
    return re.compile("|".join(each) or r"(?!)", re.DOTALL)


def occurrences(wanted: Pattern, paths: Iterable[str]) -> Iterator[tuple[str, Parts]]:
    """The paths that a pattern means, each with what its parts stand for."""
    for path in paths:
        parts = wanted.match(path)
        if parts is not None:
            yield path, parts


def key_of(parts: Parts, names: Sequence[str]) -> tuple[str, ...]:
    """What some of the parts stand for, to be compared."""
    return tuple(parts[name] for name in names)


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found["wrong"]:
            raise ValueError(
                f"{text!r} is no pattern: {text[at]!r} at its character {at + 1} is never closed or opened"
            )
        yield found[0]
        at = found.end()
    if not text:
        raise ValueError("an empty pattern matches nothing")


def _name_of(token: str) -> str | None:
    return token[1:-1] if token.startswith("{") else None


def _translated(token: str, names: list[str] | None) -> str:
    """A token as a regular expression; `names` are those of the parts before it, None to leave them out."""
    name = _name_of(token)
    if name is not None:
        meaning = _MEANINGS.get(name, _NUMBER)
        if names is None:
            return meaning
        if name in names:
            return f"(?P={name})"
        names.append(name)
        return f"(?P<{name}>{meaning})"
    if token in _ANYTHING:
        return _ANYTHING[token]
    if token.startswith("["):
        one, excluded = token[1:-1].removeprefix("!"), token.startswith("[!")
        return ("[^/" if excluded else "[") + re.sub(r"([\\^\[\]])", r"\\\1", one) + "]"
    return re.escape(token)
