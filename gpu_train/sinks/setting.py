"""One sink as it is set: a table of gpu-train.toml, or an address such as `s3://bucket/prefix?layout=packs`.

Light: the settings import it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from gpu_train.credentials.reference import Reference
from gpu_train.size import parse_size
from gpu_train.spelling import near

LOCAL, S3, GCS, HF = "local", "s3", "gcs", "hf"
FILES, PACKS = "files", "packs"
LAYOUTS = (FILES, PACKS)

_ALL = ("type", "name", "prefix", "layout", "limit")
_KNOWN: Mapping[str, tuple[str, ...]] = {
    LOCAL: ("dest",),
    S3: ("bucket", "endpoint", "region", "secret_ref"),
    GCS: ("bucket", "endpoint", "secret_ref"),
    HF: ("repo_id", "bucket", "repo_type", "revision", "private", "endpoint", "token_ref"),
}
"""What can be set of each type, beside `_ALL`."""

_SCHEMES = {"s3": S3, "gs": GCS, "gcs": GCS, "hf": HF, "file": LOCAL}
_PARTS = ("endpoint", "region", "repo_type", "revision")
"""What is a part of the address where it is set, since other objects lie there then."""

_REFERENCES = ("secret_ref", "token_ref")
_OPTIONS = ("name", "layout", "limit", "private", *_REFERENCES)
"""What is no part of it."""


class SinkSetting(NamedTuple):
    """One destination.

    Attributes:
        type: "local", "s3", "gcs" or "hf".
        name: what people call it; "" where they use its address.
        layout: "files" (plain files) or "packs" (deduplicated, compressed).
        limit: bytes a second that are sent at most; None for no limit.
        dest: the folder, for type local. prefix: what all keys begin with, for the others; without slashes around it.
        bucket, endpoint, region: for s3 and gcs; a bucket also for hf, as "owner/name".
        repo_id, repo_type, revision, private: for hf.
        secret_ref, token_ref: where the credentials are (`env://NAME`, ...); "" for the usual places.
    """

    type: str
    name: str = ""
    layout: str = FILES
    limit: float | None = None
    dest: str = ""
    prefix: str = ""
    bucket: str = ""
    endpoint: str = ""
    region: str = ""
    repo_id: str = ""
    repo_type: str = ""
    revision: str = ""
    private: bool | None = None
    secret_ref: str = ""
    token_ref: str = ""

    @property
    def address(self) -> str:
        """What tells it from all others, without anything secret: `s3://bucket/prefix`."""
        if self.type == LOCAL:
            return self.dest
        if self.type == HF:
            place = f"buckets/{self.bucket}" if self.bucket else self.repo_id
            base = f"hf://{place}"
        else:
            base = f"{'s3' if self.type == S3 else 'gs'}://{self.bucket}"
        base += f"/{quote(self.prefix, safe='/')}" if self.prefix else ""
        told = {key: value for key in _PARTS if (value := getattr(self, key))}
        return f"{base}?{urlencode(told, safe=':/')}" if told else base

    def __str__(self) -> str:
        """All that is set, as an address."""
        return self._with_options({key: value for key, value in self.to_row().items() if key in _OPTIONS})

    @property
    def shown(self) -> str:
        """The same for people: of a command that gives credentials only the program."""
        told = {key: value for key, value in self.to_row().items() if key in _OPTIONS}
        told.update((key, str(Reference.parse(told[key]))) for key in _REFERENCES if key in told)
        return self._with_options(told)

    def _with_options(self, told: Mapping[str, Any]) -> str:
        if not told:
            return self.address
        base = f"file://{quote(self.dest, safe='/')}" if self.type == LOCAL else self.address
        return base + ("&" if "?" in base else "?") + urlencode({k: _word(v) for k, v in told.items()}, safe=":/")

    @property
    def called(self) -> str:
        """What people are told: its name, else its address."""
        return self.name or self.address

    def to_row(self) -> dict[str, Any]:
        """As a table: what is set, and nothing else."""
        return {key: value for key, value in self._asdict().items() if value != self._field_defaults.get(key)}

    @classmethod
    def of(cls, value: Any) -> Self:
        """From a table of a settings file, or an address.

        Raises:
            ValueError: saying what is expected.
        """
        if isinstance(value, str):
            return cls._of_table(_table_of(value))
        if not isinstance(value, Mapping):
            raise ValueError('a sink is {type = "s3", bucket = "b"}, or an address such as "s3://b/prefix"')
        return cls._of_table(value)

    @classmethod
    def _of_table(cls, table: Mapping[str, Any]) -> Self:
        kind = table.get("type", "")
        if kind not in _KNOWN:
            raise ValueError(f"type = {kind!r}: a sink's type is one of {', '.join(_KNOWN)}")
        known = (*_ALL, *_KNOWN[kind])
        for key, given in table.items():
            if key not in known:
                raise ValueError(f"{key}: no such setting of a sink of type {kind}{_nearest(key, known)}")
            wanted = bool if key == "private" else str
            if key != "limit" and not isinstance(given, wanted):
                raise ValueError(f"{key} = {given!r}: {'true or false' if wanted is bool else 'a text'} is expected")
            if key in _REFERENCES and given:
                _check_reference(key, given)
        setting = cls(**{**table, "limit": _limit(table.get("limit"))})
        setting = setting._replace(prefix=setting.prefix.strip("/"))
        if setting.layout not in LAYOUTS:
            raise ValueError(f"layout = {setting.layout!r}: files or packs is expected")
        if kind == LOCAL:
            if not setting.dest:
                raise ValueError('a sink of type local needs dest = "/folder"')
            dest = os.path.normpath(Path(setting.dest).expanduser().absolute() / setting.prefix)
            return setting._replace(dest=dest, prefix="")
        if kind == HF:
            if bool(setting.repo_id) == bool(setting.bucket):
                raise ValueError('a sink of type hf needs repo_id = "you/name", or bucket = "you/name"')
            if (setting.repo_id or setting.bucket).count("/") != 1:
                raise ValueError(f"{setting.repo_id or setting.bucket!r}: owner and name are expected, as in you/name")
        elif not setting.bucket:
            raise ValueError(f'a sink of type {kind} needs bucket = "name"')
        return setting


def sinks_of(value: Any) -> tuple[SinkSetting, ...]:
    """Several: a list of tables and addresses, or addresses in one text with commas between them.

    Raises:
        ValueError: saying what is expected.
    """
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, Sequence):
        raise ValueError("a list of sinks is expected")
    found = tuple(SinkSetting.of(one) for one in value)
    for at, one in enumerate(found):
        if any(other.address == one.address or (one.name and other.name == one.name) for other in found[:at]):
            raise ValueError(f"{one.called} is there twice")
    return found


def _table_of(text: str) -> dict[str, Any]:
    """An address as a table."""
    scheme, colon, _ = text.partition("://")
    if not colon:
        return {"type": LOCAL, "dest": text}
    if scheme not in _SCHEMES:
        raise ValueError(f"{text!r}: an address begins with s3://, gs://, hf://, file:// or is a folder")
    parts = urlsplit(text)
    if parts.username or parts.password:
        raise ValueError(f"{scheme}://...@{parts.hostname}: no credentials in an address; use secret_ref")
    table: dict[str, Any] = {"type": _SCHEMES[scheme], **dict(parse_qsl(parts.query, keep_blank_values=True))}
    if "private" in table:
        table["private"] = table["private"].lower() in ("1", "true", "yes")
    host, path = parts.netloc, unquote(parts.path)
    if table["type"] == LOCAL:
        return table | {"dest": path}
    if table["type"] != HF:
        return table | {"bucket": host, "prefix": path}
    names = [host, *path.strip("/").split("/")]
    if names[0] == "buckets":
        return table | {"bucket": "/".join(names[1:3]), "prefix": "/".join(names[3:])}
    if names[0] in ("datasets", "models", "spaces"):
        table["repo_type"] = names.pop(0).rstrip("s")
    return table | {"repo_id": "/".join(names[:2]), "prefix": "/".join(names[2:])}


def _check_reference(key: str, text: str) -> None:
    try:
        Reference.parse(text)
    except ValueError as e:  # it does not repeat the text: that may be the secret itself
        raise ValueError(f"{key}: {e}") from None


def _limit(value: Any) -> float | None:
    """Bytes a second: a number, or a text such as "20MB/s"."""
    if value is None:
        return None
    with suppress(ValueError):
        value = parse_size(value.strip().removesuffix("/s")) if isinstance(value, str) else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f'limit = {value!r}: bytes a second are expected, as in "20MB/s"')
    return float(value)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.0f}" if isinstance(value, float) else str(value)


def _nearest(key: str, known: Sequence[str]) -> str:
    found = near(key, known)
    return f"; did you mean {found[0]}?" if found else f"; known are {', '.join(known)}"
