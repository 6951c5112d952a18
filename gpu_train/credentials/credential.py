"""One credential of the settings, a table `[[credentials]]`: which secret is for which sinks.

Light: the settings import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_train.credentials.reference import Reference

TYPES = ("s3", "gcs", "hf")
SCHEMES = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "hf": "hf"}
"""The type of backend behind an address's scheme."""

_REFERENCES = ("secret_ref", "token_ref")
_FIELDS = ("name", "type", *_REFERENCES, "sinks")


class Wanted(NamedTuple):
    """For what credentials are wanted: one sink.

    Attributes:
        address: the sink's address, such as "s3://bucket/prefix".
        type: "s3", "gcs" or "hf"; "" for that of the address.
        sink: the sink's name, "" when it has none.
        reference: the sink's own `secret_ref` or `token_ref`, None when it has none.
    """

    address: str
    type: str = ""
    sink: str = ""
    reference: str | None = None

    @property
    def kind(self) -> str:
        """The type of backend."""
        return self.type or type_of(self.address)


class Credential(NamedTuple):
    """Where a secret is and what it is for.

    Attributes:
        name: what people call it.
        type: "s3", "gcs" or "hf".
        reference: where the secret is.
        sinks: names of sinks, addresses or beginnings of addresses; none: all sinks of its type.
    """

    name: str
    type: str
    reference: Reference
    sinks: tuple[str, ...] = ()

    def fit(self, wanted: Wanted, use: Iterable[str] = ()) -> int:
        """How well it fits a sink, 0 not at all; see `fit`."""
        return fit(self.type, self.sinks or (self.type,), wanted, chosen=self.name in use)

    def to_row(self) -> dict[str, Any]:
        """As JSON types, all of it: for another process of ours."""
        return {"name": self.name, "type": self.type, "secret_ref": self.reference.text, "sinks": list(self.sinks)}

    def __str__(self) -> str:
        """As it may be shown."""
        return f"{self.type} from {self.reference} for {', '.join(self.sinks) or f'all {self.type} sinks'}"


def type_of(address: str) -> str:
    """The type of backend that an address leads to, "" when its scheme is none of them."""
    scheme, found, _ = address.partition("://")
    return SCHEMES.get(scheme, "") if found else ""


def fit(kind: str, sinks: Iterable[str], wanted: Wanted, *, chosen: bool = False) -> int:
    """How well what is for those `sinks` fits one that is wanted: the higher the better, 0 not at all.

    A sink's name is best, then the longest beginning of its address, which ends where a part of the address ends,
    then what was `chosen` in `use`, then the type's own name, which is for all of that type.
    """
    if kind != wanted.kind:
        return 0
    best = 2 if chosen else 0
    address = _bare(wanted.address)
    for sink in sinks:
        start = _bare(sink)
        if sink == kind or start == wanted.address.partition("://")[0] + ":":
            best = max(best, 1)
        elif "://" in sink and (address == start or address.startswith(start + "/")):
            best = max(best, 2 + len(start))
        elif sink == wanted.sink:
            best = 1 << 20
    return best


def _bare(address: str) -> str:
    """An address without what does not tell whose it is: a repository is written with its kind or without."""
    address = address.partition("?")[0].rstrip("/")
    for kind in ("datasets", "models", "spaces"):
        address = address.replace(f"hf://{kind}/", "hf://", 1)
    return address


def credentials_of(value: Any) -> tuple[Credential, ...]:
    """The setting `credentials`, a list of tables.

    Raises:
        ValueError: naming the table and what is wrong with it; no value is repeated, it may be a secret.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(v, Mapping) for v in value):
        raise ValueError("a list of tables is expected, [[credentials]]")
    found = [_credential_of(table, f"table {at}") for at, table in enumerate(value, 1)]
    names = [one.name for one in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"there are two of the name {twice}")
    return tuple(found)


def _credential_of(table: Mapping[str, Any], where: str) -> Credential:
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f'{where}: it needs a name, name = "..."')
    where = f"{where} ({name})"
    if unknown := next((key for key in table if key not in _FIELDS), None):
        known = ", ".join(_FIELDS)
        raise ValueError(f"{where}: there is no field {unknown!r}, known are {known}; a secret itself is not set there")
    sinks = table.get("sinks", ())
    if not isinstance(sinks, list | tuple) or not all(isinstance(sink, str) and sink for sink in sinks):
        raise ValueError(f"{where}: sinks must be a list of names and addresses")
    kind = table.get("type") or next(iter({type_of(sink) for sink in sinks} - {""}), "")
    if kind not in TYPES:
        raise ValueError(f"{where}: its type must be one of {', '.join(TYPES)}")
    given = [key for key in _REFERENCES if key in table]
    if len(given) != 1:
        raise ValueError(f"{where}: it needs one of {' and '.join(_REFERENCES)}")
    try:
        reference = Reference.parse(table[given[0]])
    except ValueError as e:
        raise ValueError(f"{where}: {given[0]}: {e}") from None
    return Credential(name, kind, reference, tuple(sinks))
