"""What a sink holds, as far as its journals have been read: where each block lies there.

Kept in the registry so that a push knows what to leave out and a read where to look, without asking the sink. It is
made again from the journals whenever it is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpu_train.sinks.journal import new_home
from gpu_train.sinks.key import pack_key
from gpu_train_cas.codecs import Codec
from gpu_train_cas.digest import Digest, Kind
from gpu_train_cas.frame import FrameHeader
from gpu_train_cas.index import Location
from gpu_train_cas.manifest import Manifest
from gpu_train_cas.pack import PackEntry
from gpu_train_cas.registry import Registry, Txn
from gpu_train_cas.remote import Place

_TABLES = ("sinks", "sink_packs", "sink_blocks", "sink_records")
_NUMBER = struct.Struct(">I")
_PLAIN = 1 << 31
"""Numbers from here on are those of plain files."""

_HOME = b"\0home"
_VERSION = 1


class Holdings:
    """The tables of one sink. What changes them is part of a write transaction; nothing in them is durable.

    Attributes:
        number: its number in this registry.
    """

    def __init__(self, registry: Registry, address: str) -> None:
        self._registry = registry
        self._address = address.encode(errors="surrogateescape")
        self._sinks, self._packs, self._blocks, self._records = (registry.table(name) for name in _TABLES)
        self._number_known: int | None = None

    def state(self, txn: Txn) -> dict[str, Any]:
        """What is known of the sink: `number`, `homes` (id -> entries read), `place` (among the homes)."""
        return dict(self._sinks.get(txn, self._address) or {})

    def ensure(self, txn: Txn) -> dict[str, Any]:
        """`state`, made when there is none."""
        state = self.state(txn)
        if not state:
            number = 1 + max((row["number"] for _, row in self._sinks.scan(txn)), default=0)
            state = {"v": _VERSION, "number": number, "homes": {}, "place": None}
            self._sinks.put(txn, self._address, state)
        return state

    def set_state(self, txn: Txn, state: Mapping[str, Any]) -> None:
        """Note what is known of the sink."""
        self._sinks.put(txn, self._address, dict(state))

    def home(self, txn: Txn) -> str:
        """The id under which this home writes to sinks, made when there is none; part of a write transaction."""
        row = self._sinks.get(txn, _HOME)
        return str(row["home"]) if row is not None else self.set_home(txn, new_home())

    def set_home(self, txn: Txn, home: str) -> str:
        """Write under another id from now on; that id."""
        self._sinks.put(txn, _HOME, {"v": _VERSION, "home": home, "number": 0})
        return home

    def find(self, txn: Txn, digest: Digest) -> Place | None:
        """Where a block or object lies; None when the sink has none."""
        number = self._number(txn)
        value = None if number is None else self._blocks.get_bytes(txn, _NUMBER.pack(number) + digest)
        if number is None or value is None:
            return None
        location = Location.decode(value)
        row = self._packs.get(txn, _NUMBER.pack(number) + _NUMBER.pack(location.pack))
        if row is None:
            return None
        header = FrameHeader(
            location.kind, location.codec, digest, location.length, location.stored_bytes, location.base,
            location.sibling,
        )  # fmt: skip
        if location.pack >= _PLAIN:
            return Place(row["key"], location.offset, location.stored_bytes, bare=header)
        return Place(row["key"], location.offset, header.size_bytes + location.stored_bytes, location.references)

    def in_pack(self, txn: Txn, digest: Digest) -> bool:
        """Whether a pack that stays holds a block or object; others must not be relied on."""
        number = self._number(txn)
        value = None if number is None else self._blocks.get_bytes(txn, _NUMBER.pack(number) + digest)
        if number is None or value is None:
            return False
        pack = Location.decode(value).pack
        row = None if pack >= _PLAIN else self._packs.get(txn, _NUMBER.pack(number) + _NUMBER.pack(pack))
        return row is not None and not row["dead"]

    def add_pack(
        self, txn: Txn, name: Digest, size_bytes: int, entries: Iterable[PackEntry], *, is_dead: bool = False
    ) -> None:
        """Enter a pack, and each of its frames that is in no other. A dead one is only read from, not relied on."""
        number = self.ensure(txn)["number"]
        at = self._next(txn, number, 0)
        prefix = _NUMBER.pack(number)
        row = {"v": _VERSION, "key": pack_key(name), "name": name, "size": size_bytes, "dead": is_dead}
        self._packs.put(txn, prefix + _NUMBER.pack(at), row)
        for entry in entries:
            if not (self.find(txn, entry.header.digest) if is_dead else self.in_pack(txn, entry.header.digest)):
                self._blocks.put_bytes(txn, prefix + entry.header.digest, Location.of(at, entry).encode())

    def add_plain(self, txn: Txn, key: str, manifest: Manifest) -> None:
        """Enter a plain file, and each of its blocks that is nowhere else."""
        number = self.ensure(txn)["number"]
        at = self._next(txn, number, _PLAIN)
        prefix = _NUMBER.pack(number)
        self._packs.put(txn, prefix + _NUMBER.pack(at), {"v": _VERSION, "key": key, "size": manifest.size_bytes})
        for ref in manifest.blocks():
            length = ref.end - ref.start
            if self._blocks.get_bytes(txn, prefix + ref.digest) is None:
                location = Location(at, ref.start, length, length, Codec.RAW, Kind.BLOCK)
                self._blocks.put_bytes(txn, prefix + ref.digest, location.encode())

    def add_record(self, txn: Txn, record: Mapping[str, Any]) -> None:
        """Enter a record that can be read from there, as the journal tells of it."""
        number = self.ensure(txn)["number"]
        digest = bytes.fromhex(record["record"])
        self._records.put(txn, _NUMBER.pack(number) + digest, {"v": _VERSION, **record})

    def records(self, txn: Txn) -> Iterator[Mapping[str, Any]]:
        """The records that can be read from there."""
        number = self._number(txn)
        if number is not None:
            for _, row in self._records.scan(txn, _NUMBER.pack(number)):
                yield row

    def forget(self, txn: Txn) -> None:
        """Forget all that it holds; the journals are read from their beginning then."""
        state = self.state(txn)
        if not state:
            return
        prefix = _NUMBER.pack(state["number"])
        for table in (self._packs, self._blocks, self._records):
            for key in list(table.keys(txn, prefix)):
                table.delete(txn, key)
        self.set_state(txn, state | {"homes": {}})

    def _number(self, txn: Txn) -> int | None:
        if self._number_known is None:
            row = self._sinks.get(txn, self._address)
            if row is None:
                return None
            if txn.writing:  # it may not be committed
                return int(row["number"])
            self._number_known = int(row["number"])
        return self._number_known

    def _next(self, txn: Txn, number: int, least: int) -> int:
        """The next free number of a pack, or of a plain file."""
        prefix = _NUMBER.pack(number)
        most = 2 * _PLAIN - 1 if least else _PLAIN - 1
        for key, _ in self._packs.scan_bytes(txn, prefix, reverse=True):
            found = int(_NUMBER.unpack(key[len(prefix) :])[0])
            if found <= most:
                return max(found + 1, least)
        return least
