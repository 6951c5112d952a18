"""What homes did in a sink, entry by entry (cas/spec/remote.md, Homes and Journal)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from gpu_train.errors import Corrupted, Taken
from gpu_train.sinks.key import FORMAT, entry_key, home_key
from gpu_train.sinks.objects.content import Held
from gpu_train.sinks.objects.objectstore import ObjectStore, Put
from gpu_train_cas.digest import DIGEST_BYTES, Digest
from gpu_train_cas.errors import NotFound, TooNew

VERSION = 1
LIMIT_BYTES = 64 << 20
"""No JSON object of ours is larger; what is, is not read."""

MOST_HOMES = 100_000


class SentPack(NamedTuple):
    """A pack that is there: its name, size in bytes, and how many frames it has."""

    name: Digest
    size_bytes: int
    frames: int


class SentRecord(NamedTuple):
    """A record that can be read from a sink.

    Attributes:
        record: its name. kind: what it is of; job, name, step, size_bytes, files, created_ns: the checkpoint's.
        rows: the frames of the job's row and its own. also: records that it refers to.
        layout: whether its leaves are in packs, or plain files.
    """

    record: Digest
    job: str
    name: str
    layout: str
    kind: str = "checkpoint"
    step: int | None = None
    size_bytes: int = 0
    files: int = 0
    created_ns: int = 0
    rows: tuple[Digest, ...] = ()
    also: tuple[Digest, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """As JSON types."""
        return {
            **self._asdict(), "record": self.record.hex(), "rows": [d.hex() for d in self.rows],
            "also": [d.hex() for d in self.also],
        }  # fmt: skip

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Read it back; fields that this version does not know are left aside."""
        known = {key: value for key, value in wire.items() if key in cls._fields}
        return cls(**{
            **known, "record": digest_in(wire["record"]), "rows": tuple(map(digest_in, wire.get("rows", ()))),
            "also": tuple(map(digest_in, wire.get("also", ()))),
        })  # fmt: skip


class Entry(NamedTuple):
    """One entry of a journal.

    Attributes:
        packs, records: what is there from now on.
        removed: records that can no longer be read: name and job of each.
        dead, alive, deleted: packs that must not be relied on, that may be again, that are gone.
    """

    packs: tuple[SentPack, ...] = ()
    records: tuple[SentRecord, ...] = ()
    removed: tuple[tuple[Digest, str], ...] = ()
    dead: tuple[Digest, ...] = ()
    alive: tuple[Digest, ...] = ()
    deleted: tuple[Digest, ...] = ()
    home: str = ""
    n: int = 0
    time_ns: int = 0

    def encode(self) -> bytes:
        """As it is written."""
        wire = {
            "v": VERSION, "home": self.home, "n": self.n, "time_ns": self.time_ns,
            "packs": [{"name": p.name.hex(), "size_bytes": p.size_bytes, "frames": p.frames} for p in self.packs],
            "records": [record.to_wire() for record in self.records],
            "removed": [{"record": record.hex(), "job": job} for record, job in self.removed],
            "dead": [d.hex() for d in self.dead], "alive": [d.hex() for d in self.alive],
            "deleted": [d.hex() for d in self.deleted],
        }  # fmt: skip
        return json.dumps(wire, sort_keys=True, ensure_ascii=True).encode()

    @classmethod
    def decode(cls, data: bytes, where: str) -> Self:
        """Read it back.

        Raises:
            Corrupted: when it is none.
            TooNew: for a later version.
        """
        try:
            wire = json.loads(data)
            if wire["v"] > VERSION:
                raise TooNew(f"{where} was written by a newer gpu-train; install that version")
            dead, alive, deleted = (tuple(map(digest_in, wire[name])) for name in ("dead", "alive", "deleted"))
            return cls(
                tuple(SentPack(digest_in(p["name"]), int(p["size_bytes"]), int(p["frames"])) for p in wire["packs"]),
                tuple(map(SentRecord.from_wire, wire["records"])),
                tuple((digest_in(r["record"]), str(r["job"])) for r in wire["removed"]),
                dead, alive, deleted, str(wire["home"]), int(wire["n"]), int(wire["time_ns"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise Corrupted(f"{where} is no entry of a journal: {e}") from e


class Journals:
    """The journals in one sink."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def claim(self, home: str, known: int | None) -> int:
        """The place of a home among those that write here; `known` is where it was. It is entered when it is not.

        Raises:
            TooNew: for a sink that a newer version writes to.
        """
        self._check_format()
        if known is not None and (self._home(known) or {}).get("home") == home:
            return known
        for k in range(MOST_HOMES):
            found = self._home(k)
            if found is None:
                mine = json.dumps({"home": home, "since_ns": time.time_ns()}, sort_keys=True).encode()
                try:
                    self._objects.put([Put(home_key(k), Held(mine), only_new=True)])
                except Taken:
                    continue
                return k
            if found.get("home") == home:
                return k
        raise Corrupted(f"{self._objects.address}: more homes write there than there can be")

    def homes(self) -> Iterator[str]:
        """The homes that write here."""
        for k in range(MOST_HOMES):
            found = self._home(k)
            if found is None:
                return
            yield str(found.get("home"))

    def after(self, home: str, n: int) -> Iterator[Entry]:
        """A home's entries from number n on.

        Raises:
            Corrupted, TooNew: when one cannot be read.
        """
        while (data := self._read(entry_key(home, n))) is not None:
            yield Entry.decode(data, f"{self._objects.address}: {entry_key(home, n)}")
            n += 1

    def write(self, home: str, n: int, entry: Entry) -> Entry:
        """Write a home's entry number n; it as it was written.

        Raises:
            Taken: when there is one already: another home has the same id.
        """
        entry = entry._replace(home=home, n=n, time_ns=time.time_ns())
        self._objects.put([Put(entry_key(home, n), Held(entry.encode()), only_new=True)])
        return entry

    def _check_format(self) -> None:
        data = self._read(FORMAT)
        if data is None:
            self._objects.put([Put(FORMAT, Held(b'{"format": 1}'), only_new=True)])
            return
        try:
            version = json.loads(data)["format"]
        except (ValueError, KeyError, TypeError) as e:
            raise Corrupted(f"{self._objects.address}: {FORMAT} cannot be read: {e}") from e
        if version != VERSION:
            raise TooNew(f"{self._objects.address} was written by a newer gpu-train; install that version")

    def _home(self, k: int) -> dict[str, Any] | None:
        data = self._read(home_key(k))
        if data is None:
            return None
        try:
            return dict(json.loads(data))
        except (ValueError, TypeError) as e:
            raise Corrupted(f"{self._objects.address}: {home_key(k)} cannot be read: {e}") from e

    def _read(self, key: str) -> bytes | None:
        try:
            data = self._objects.read(key, LIMIT_BYTES + 1)
        except NotFound:
            return None
        if len(data) > LIMIT_BYTES:
            raise Corrupted(f"{self._objects.address}: {key} is larger than it can be")
        return data


def new_home() -> str:
    """An id for a home."""
    return os.urandom(8).hex()


def digest_in(text: str) -> Digest:
    """A digest in hex.

    Raises:
        ValueError: for a text that is none.
    """
    digest = bytes.fromhex(text)
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"{text!r} is no digest")
    return Digest(digest)
