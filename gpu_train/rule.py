"""One framework's way to write a checkpoint, as data: the known ones (`capture.frameworks`) and the user's.

Light: the settings import it. What a rule means for files is told by `capture.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """One framework's way to write a checkpoint. Patterns are those of `capture.pattern`, on paths below it.

    Attributes:
        name: what the record calls this proof.
        names: patterns (of a shell) of the checkpoint's own name, its last component.
        having: patterns that must each match some file, so that the rule applies.
        complete: what must be there when it is whole; `a | b` is one of both. A named part that it shares with
            `having` makes it one for each: `{folder}.metadata` for the folder of each `{folder}*.distcp`.
        writing: files that are there only while it is being written; with `../` they lie beside it, and
            `{name}` and `{stem}` are its name with and without an ending.
        temporary: the name it has until it is whole; `{name}` is its later one.
        named_in: text files that must name it, or a later one, when it is whole; with `../` they lie beside it.
        ranks: files of which each rank writes one; a number missing between others is missing. With `~` before it
            not each rank writes one: such files only tell which ranks there are. `{world}` is how many there are.
        parts: folders that are a part of what lies around them, never checkpoints themselves. With `~` before it only
            where another part or a file of `complete` lies beside it.
        together: files with a common `{stem}` that are one checkpoint of that name, though they lie among others.
        rest_s: seconds without any change that must follow its signs, or that stand in for them.
    """

    name: str
    names: tuple[str, ...] = ("*",)
    having: tuple[str, ...] = ()
    complete: tuple[str, ...] = ()
    writing: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()
    named_in: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    rest_s: float = 0.0

    @property
    def is_marked(self) -> bool:
        """Whether it has a sign that the checkpoint is whole."""
        return bool(self.complete or self.named_in)

    @property
    def decides(self) -> bool:
        """Whether it says of a checkpoint when that is whole; others only tell names from each other."""
        return bool(self.is_marked or self.ranks or self.rest_s)

    def to_row(self) -> dict[str, Any]:
        """As JSON types: what is set, and nothing else."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self._asdict().items()
            if value != self._field_defaults.get(name)
        }

    def __str__(self) -> str:
        import json  # noqa: PLC0415  most settings have no rules

        return json.dumps(self.to_row())


def rules_of(value: Any) -> tuple[Rule, ...]:
    """The setting `capture.rules`: a list of tables, or its text, which is JSON.

    Raises:
        ValueError: naming the table, by its place in the list, and what is wrong with it.
    """
    if isinstance(value, str):
        import json  # noqa: PLC0415

        try:
            value = json.loads(value if value.lstrip().startswith("[") else f"[{value}]")
        except (ValueError, RecursionError) as e:
            raise ValueError(f"a list of tables as JSON is expected: {e}") from e
    if not isinstance(value, Sequence) or not all(isinstance(table, Mapping | Rule) for table in value):
        raise ValueError("a list of tables is expected, [[capture.rules]]")
    return tuple(_rule_of(table, f"table {at}") for at, table in enumerate(value, 1))


def _rule_of(table: Mapping[str, Any] | Rule, where: str) -> Rule:
    from gpu_train.capture.rules import check  # noqa: PLC0415  most settings have no rules

    given = table._asdict() if isinstance(table, Rule) else dict(table)
    for name, value in given.items():
        if name not in Rule._fields:
            raise ValueError(f"{where}: there is no field {name!r}; known are {', '.join(Rule._fields)}")
        given[name] = _field_of(name, value, where)
    if "name" not in given:
        raise ValueError(f"{where}: it needs a name")
    try:
        return check(Rule(**given))
    except ValueError as e:
        raise ValueError(f"{where} ({given['name']}): {e}") from None


def _field_of(name: str, value: Any, where: str) -> Any:
    """A field of its type."""
    if name == "name" and isinstance(value, str):
        return value
    if name == "rest_s" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    texts = isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
    if name not in ("name", "rest_s") and texts:
        return tuple(value)
    expected = {"name": "a string", "rest_s": "a number"}.get(name, "a list of strings")
    raise ValueError(f"{where}: {name} must be {expected}, not {value!r}")
