"""A committed thing that names a tree: a checkpoint, a code version, a data version, a log set."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import msgpack

from gpu_train_cas.digest import Digest, Kind, digest_of
from gpu_train_cas.errors import Damaged, TooNew
from gpu_train_cas.tree import Entry

VERSION = 1


class Record(NamedTuple):
    """What was committed, by whom, when, and the directory it names (cas/spec/blocks.md, Records).

    Attributes:
        kind: "checkpoint", "code", "data" or "logs".
        owner: what it belongs to: a job id, a data set's name; "" for code.
        name: its name within the owner.
        created_ns: when it was committed, nanoseconds since the epoch.
        root: its directory, as an entry with an empty name.
        meta: facts that never change (step, metrics, proof, parent), msgpack types only.
    """

    kind: str
    owner: str
    name: str
    created_ns: int
    root: Entry
    meta: Mapping[str, Any] = MappingProxyType({})

    def encode(self) -> tuple[Digest, bytes]:
        """The record's name and bytes."""
        row = {
            "v": VERSION, "kind": self.kind, "owner": self.owner, "name": self.name,
            "created_ns": self.created_ns, "root": self.root.to_wire(), "meta": dict(self.meta),
        }  # fmt: skip
        data: bytes = msgpack.packb(row, unicode_errors="surrogateescape")
        return digest_of(data, Kind.RECORD), data

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a record back.

        Raises:
            Damaged: for bytes that are no record.
            TooNew: for a later version.
        """
        try:
            row = msgpack.unpackb(data, unicode_errors="surrogateescape")
            if row["v"] != VERSION:
                raise TooNew(f"a record of version {row['v']}: this gpu-train reads {VERSION}; install a newer one")
            return cls(
                str(row["kind"]), str(row["owner"]), str(row["name"]), int(row["created_ns"]),
                Entry.from_wire(row["root"], root=True), dict(row["meta"]),
            )  # fmt: skip
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as e:
            raise Damaged(f"a record cannot be read: {e!r}") from e
