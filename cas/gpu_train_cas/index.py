"""Where each block and object lies: digest -> pack, offset, lengths, codec, base (cas/spec/registry.md, Index)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, Self

from gpu_train_cas.codecs import Codec
from gpu_train_cas.digest import DIGEST_BYTES, Digest, Kind
from gpu_train_cas.frame import HEADER_BYTES, NO_DIGEST
from gpu_train_cas.pack import ENTRY_BYTES, PackEntry, SealedPack
from gpu_train_cas.registry import Registry, Txn

_VALUE = struct.Struct("<IQIIBB")
_ID = struct.Struct(">I")
_COUNTER = struct.Struct(">Q")
_BARE = _VALUE.size


class Location(NamedTuple):
    """Where a frame lies and what it takes to decode it.

    Attributes:
        pack: number of the pack in this registry (`Index.pack_name` gives its name).
        offset: where the frame's header starts.
        stored_bytes: payload bytes.
        length: original bytes.
        base: the block a delta is taken against.
        sibling: the block beside it that helps to decode it.
    """

    pack: int
    offset: int
    stored_bytes: int
    length: int
    codec: Codec
    kind: Kind
    base: Digest | None = None
    sibling: Digest | None = None

    @property
    def references(self) -> tuple[Digest, ...]:
        """The blocks that it takes to decode this one."""
        return tuple(d for d in (self.base, self.sibling) if d is not None)

    @property
    def frame_bytes(self) -> int:
        """What its frame takes in a pack: header, payload and index entry."""
        return HEADER_BYTES + self.stored_bytes + ENTRY_BYTES + (2 * DIGEST_BYTES if self.sibling else 0)

    def encode(self) -> bytes:
        """The value of the tables `blocks` and `dead`."""
        bare = _VALUE.pack(self.pack, self.offset, self.stored_bytes, self.length, self.codec, self.kind)
        if self.sibling is not None:
            return bare + (self.base or NO_DIGEST) + self.sibling
        return bare + (self.base or b"")

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read a value back."""
        pack, offset, stored, length, codec, kind = _VALUE.unpack_from(value)
        base, sibling = value[_BARE : _BARE + DIGEST_BYTES], value[_BARE + DIGEST_BYTES :]
        return cls(
            pack, offset, stored, length, Codec(codec), Kind(kind),
            Digest(base) if base and base != NO_DIGEST else None, Digest(sibling) if sibling else None,
        )  # fmt: skip

    @classmethod
    def of(cls, pack: int, entry: PackEntry) -> Self:
        """The location of a pack's entry."""
        h = entry.header
        return cls(pack, entry.offset, h.stored_bytes, h.length, h.codec, h.kind, h.base, h.sibling)


class Index:
    """The tables `blocks` (live), `dead` (tombstoned, bytes still there), `damaged` and `packs`."""

    def __init__(self, registry: Registry) -> None:
        self.blocks = registry.table("blocks")
        self.dead = registry.table("dead")
        self.damaged = registry.table("damaged")
        self.packs = registry.table("packs")
        self._numbers = registry.table("pack_numbers")
        self._meta = registry.table("meta")

    def get(self, txn: Txn, digest: Digest) -> Location | None:
        """Where a live block or object is."""
        value = self.blocks.get_bytes(txn, digest)
        return None if value is None else Location.decode(value)

    def has(self, txn: Txn, digest: Digest) -> bool:
        """Whether a block or object is live."""
        return self.blocks.get_bytes(txn, digest) is not None

    def usable(self, txn: Txn, digest: Digest) -> bool:
        """Whether a block or object is live, not known to be damaged, and so is all that it takes to decode it.

        If not, a writer stores it anew.
        """
        seen: set[Digest] = set()
        left = [digest]
        while left:
            at = left.pop()
            value = self.blocks.get_bytes(txn, at)
            if value is None or self.damaged.get_bytes(txn, at) is not None:
                return False
            if len(value) > _BARE:
                seen.add(at)
                left += [d for d in Location.decode(value).references if d not in seen]
        return True

    def needed_by(self, txn: Txn, digest: Digest) -> dict[Digest, Location] | None:
        """Where a block is and all that it takes to decode it; None unless it is usable."""
        found: dict[Digest, Location] = {}
        left, whole = [digest], self.damaged.is_empty(txn)
        while left:
            at = left.pop()
            if at in found:
                continue
            location = self.get(txn, at)
            if location is None or not (whole or self.damaged.get_bytes(txn, at) is None):
                return None
            found[at] = location
            left += location.references
        return found

    def find(self, txn: Txn, digest: Digest) -> Location | None:
        """Where a block or object is, live or tombstoned."""
        value = self.blocks.get_bytes(txn, digest) or self.dead.get_bytes(txn, digest)
        return None if value is None else Location.decode(value)

    def put(self, txn: Txn, digest: Digest, location: Location) -> None:
        """Make a block or object live at a place; any tombstone of it ends, and any mark of damage."""
        self.blocks.put_bytes(txn, digest, location.encode())
        self.dead.delete(txn, digest)
        self.damaged.delete(txn, digest)

    def revive(self, txn: Txn, digest: Digest) -> bool:
        """Make sure that something found usable earlier still is, lifting tombstones set meanwhile.

        Those of the blocks that it takes to decode it are lifted too.
        """
        seen: set[Digest] = set()
        left = [digest]
        while left:
            at = left.pop()
            location = self.find(txn, at)
            if location is None or self.damaged.get_bytes(txn, at) is not None:
                return False
            if not self.has(txn, at):
                self.put(txn, at, location)
            seen.add(at)
            left += [d for d in location.references if d not in seen]
        return True

    def bury(self, txn: Txn, digest: Digest) -> None:
        """Tombstone a live block: lookups no longer find it, its bytes stay until its pack is rewritten."""
        value = self.blocks.get_bytes(txn, digest)
        if value is not None:
            self.dead.put_bytes(txn, digest, value)
            self.blocks.delete(txn, digest)

    def forget_dead(self, txn: Txn, digest: Digest, pack: int) -> None:
        """Forget a tombstoned block whose bytes in that pack are about to go."""
        value = self.dead.get_bytes(txn, digest)
        if value is not None and Location.decode(value).pack == pack:
            self.dead.delete(txn, digest)
            self.damaged.delete(txn, digest)

    def scan(self, txn: Txn) -> Iterator[tuple[Digest, Location]]:
        """All live blocks and objects, in digest order."""
        for key, value in self.blocks.scan_bytes(txn):
            yield Digest(key), Location.decode(value)

    def scan_dead(self, txn: Txn) -> Iterator[tuple[Digest, Location]]:
        """All tombstoned ones, in digest order."""
        for key, value in self.dead.scan_bytes(txn):
            yield Digest(key), Location.decode(value)

    def add_pack(self, txn: Txn, sealed: SealedPack) -> int:
        """Enter a pack that is already in its place, and every frame of it that is not usable elsewhere."""
        known = self.pack_number(txn, sealed.name)
        number = self.next(txn, b"pack") if known is None else known
        row = {"v": 1, "name": sealed.name, "size": sealed.size_bytes, "frames": len(sealed.entries)}
        self.packs.put(txn, _ID.pack(number), row)
        self._numbers.put_bytes(txn, sealed.name, _ID.pack(number))
        for entry in sealed.entries:
            if not self.usable(txn, entry.header.digest):
                self.put(txn, entry.header.digest, Location.of(number, entry))
        return number

    def drop_pack(self, txn: Txn, number: int) -> None:
        """Forget a pack; its frames must have been moved or forgotten before."""
        name = self.pack_name(txn, number)
        if name is not None:
            self._numbers.delete(txn, name)
        self.packs.delete(txn, _ID.pack(number))

    def pack_name(self, txn: Txn, number: int) -> Digest | None:
        """The name of a pack by its number."""
        row = self.packs.get(txn, _ID.pack(number))
        return None if row is None else Digest(row["name"])

    def all_packs(self, txn: Txn) -> Iterator[tuple[int, Digest, int]]:
        """Number, name and size in bytes of every pack."""
        for key, row in self.packs.scan(txn):
            yield _ID.unpack(key)[0], Digest(row["name"]), int(row["size"])

    def generation(self, txn: Txn) -> int:
        """How many times blocks have been tombstoned; see Leases in the spec."""
        return self._counter(txn, b"generation")

    def next(self, txn: Txn, counter: bytes, *, at_least: int = 0) -> int:
        """Count a named counter of the registry up by one, or to `at_least` if that is more, and return it."""
        value = max(self._counter(txn, counter) + 1, at_least)
        self._meta.put_bytes(txn, b"counter:" + counter, _COUNTER.pack(value))
        return value

    def _counter(self, txn: Txn, counter: bytes) -> int:
        value = self._meta.get_bytes(txn, b"counter:" + counter)
        return 0 if value is None else int(_COUNTER.unpack(value)[0])

    def pack_number(self, txn: Txn, name: Digest) -> int | None:
        """The number of a pack by its name; None for one that is not in the index."""
        value = self._numbers.get_bytes(txn, name)
        return None if value is None else int(_ID.unpack(value)[0])
