"""Rewriting packs that hold too much that nobody needs; and removing pack files that nobody knows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpu_train_cas.blocksource import LocalPacks
from gpu_train_cas.codecs import Encoded
from gpu_train_cas.digest import DIGEST_BYTES, Digest
from gpu_train_cas.errors import Damaged, GpuTrainError, TooNew, mapped_os_errors
from gpu_train_cas.filesystem import remove_if_there, size_if_there
from gpu_train_cas.frame import open_frame
from gpu_train_cas.index import Index, Location
from gpu_train_cas.pack import (
    FRAME_LESS_BYTES,
    PACK_BYTES,
    SUFFIX,
    PackEntry,
    PackReader,
    SealedPack,
    pack_path,
)
from gpu_train_cas.packer import Packer
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Registry, Txn

DEAD_SHARE = 0.25
"""A pack is rewritten when at least this share of it is dead: three bytes are then copied to free one, at most,
and at most a third more than what is needed stays on the disk. (borg rewrites from 10 % on, which copies nine
bytes to free one.)"""

LENT = 4
"""Which part of the room that others need a copy may take, until its old pack has gone: gc is what makes room."""

SMALL_PACK_BYTES = 4 << 20
_CACHE_BYTES = 64 << 20
MANY_SMALL_PACKS = 32
"""Small packs are merged once there are so many: each commit of a job's row leaves one of a few hundred bytes."""


@dataclass(frozen=True, slots=True)
class PackUse:
    """How much of a pack is needed.

    Attributes:
        frames: live frames in it.
        live_bytes: what a pack of these alone would take; 0 when there are none.
    """

    number: int
    name: Digest
    size_bytes: int
    frames: int = 0
    live_bytes: int = 0

    @property
    def dead_bytes(self) -> int:
        """What rewriting would free."""
        return self.size_bytes - self.live_bytes

    @property
    def wasteful(self) -> bool:
        """Whether enough of it is dead to rewrite it."""
        return self.dead_bytes >= DEAD_SHARE * self.size_bytes


def usage(txn: Txn, index: Index, live: Iterable[Location]) -> dict[int, PackUse]:
    """The use of every pack, given where all live frames are."""
    frames: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for location in live:
        frames[location.pack] = frames.get(location.pack, 0) + 1
        sizes[location.pack] = sizes.get(location.pack, FRAME_LESS_BYTES) + location.frame_bytes
    return {
        number: PackUse(number, name, size, frames.get(number, 0), sizes.get(number, 0))
        for number, name, size in index.all_packs(txn)
    }


def worth_rewriting(packs: Iterable[PackUse]) -> list[PackUse]:
    """The packs to rewrite, those first that free the most for the least copying."""
    packs = list(packs)
    chosen = {p.number: p for p in packs if p.wasteful}
    small = [p for p in packs if p.size_bytes < SMALL_PACK_BYTES and p.number not in chosen]
    if len(small) >= MANY_SMALL_PACKS:
        chosen |= {p.number: p for p in small}
    return sorted(chosen.values(), key=lambda p: (p.live_bytes / p.size_bytes, p.number))


@dataclass(slots=True)
class Rewritten:
    """What a compaction did.

    Attributes:
        packs: packs that were replaced or dropped.
        moved_bytes: stored bytes copied.
        kept: packs that were left although they are wasteful, each with the reason.
    """

    packs: int = 0
    moved_bytes: int = 0
    kept: list[str] = field(default_factory=list)


class Compaction:
    """Replaces packs, a group at a time: new packs, fsync, one transaction, then unlink.

    A frame is decoded and compared with its name before its old copy may go; of a pack with anything wrong
    in it that part stays, for `verify` and `repair`. Only one may run at a time (gc holds a lock).
    """

    def __init__(self, registry: Registry, index: Index, packer: Packer, packs: Path, spare_bytes: int = 0) -> None:
        """`spare_bytes` are what others are about to need; packs whose copies would take too much of it are left."""
        self._registry = registry
        self._index = index
        self._packer = packer
        self._packs = packs
        self._spare_bytes = spare_bytes
        self.done = Rewritten()

    def run(self, chosen: list[PackUse]) -> Rewritten:
        """Rewrite the packs.

        Raises:
            StorageFull: when there is no room for the copies; groups finished before stay done.
        """
        source = LocalPacks(self._registry, self._index, self._packs)
        self._blocks = Reader([source], _CACHE_BYTES).block
        try:
            for group in self._groups(chosen):
                moved = {pack: found for pack in group if (found := self._copy(pack)) is not None}
                self._packer.sync()
                with self._registry.write() as txn:
                    self._switch(txn, moved)
                source.close()  # it may hold packs open that are about to go
                remove_orphans(self._registry, self._index, self._packs)
        finally:
            source.close()
        return self.done

    def _groups(self, chosen: list[PackUse]) -> Iterator[list[PackUse]]:
        """As many packs as leave one full new pack, fewer where the disk is nearly full."""
        group: list[PackUse] = []
        size = 0
        for pack in chosen:
            if group and size + pack.live_bytes > min(PACK_BYTES, self._room() // 2):
                yield group
                group, size = [], 0
            if self._spare_bytes and pack.frames and size + pack.live_bytes > self._room():
                self._keep(pack, "running jobs need the room that its copy would take; run gc again later")
                continue
            group.append(pack)
            size += pack.live_bytes
        if group:
            yield group

    def _room(self) -> int:
        """What copies may take before their old packs go: of what others need only a part, and that for a moment."""
        disk = os.statvfs(self._packs)
        return disk.f_bavail * disk.f_frsize - self._spare_bytes + self._spare_bytes // LENT

    def _copy(self, pack: PackUse) -> list[PackEntry] | None:
        """Append a pack's live frames to the new one; all its entries, or None when they cannot be told."""
        path = pack_path(self._packs, pack.name)
        if pack.frames == 0 and not path.exists():
            return []
        try:
            with PackReader(path) as reader:
                entries = reader.index()
                for entry in self._live(pack, entries):
                    self._copy_frame(pack, reader, entry)
        except (Damaged, TooNew) as e:
            self._keep(pack, str(e))
            return None
        except OSError as e:
            if isinstance(e, GpuTrainError):  # the new pack cannot be written
                raise
            self._keep(pack, str(e))
            return None
        return entries

    def _copy_frame(self, pack: PackUse, reader: PackReader, entry: PackEntry) -> None:
        try:
            header, payload = reader.frame(entry.offset, entry.header.stored_bytes)
            if header != entry.header:
                raise Damaged(f"at {entry.offset}: another frame than the index says")
            open_frame(header, payload, self._blocks)
        except Damaged as e:
            self._keep(pack, str(e))
            return
        self._packer.add(
            header.kind, header.digest, header.length, Encoded(header.codec, payload), header.base, header.sibling
        )
        self.done.moved_bytes += header.stored_bytes

    def _keep(self, pack: PackUse, reason: str) -> None:
        self.done.kept.append(f"pack {pack.name.hex()[:16]} of {pack.size_bytes} bytes stays: {reason}")

    def _live(self, pack: PackUse, entries: list[PackEntry]) -> list[PackEntry]:
        with self._registry.read() as txn:
            live = [e for e in entries if self._at(txn, pack.number, e)]
        if len(live) < pack.frames:
            raise Damaged(f"{pack.frames} frames are looked for in it and its index has {len(live)} of them")
        return sorted(live, key=lambda e: e.offset)

    def _at(self, txn: Txn, number: int, entry: PackEntry) -> bool:
        """Whether lookups of an entry's digest lead to this pack."""
        location = self._index.get(txn, entry.header.digest)
        return location is not None and (location.pack, location.offset) == (number, entry.offset)

    def _switch(self, txn: Txn, moved: dict[PackUse, list[PackEntry]]) -> None:
        """Enter the new packs, point what was copied to them, and forget the old ones."""
        new: dict[Digest, Location] = {}
        for sealed in self._packer.publish(self._packs):
            new |= self._enter(txn, sealed)
        for pack, entries in moved.items():
            for entry in entries:
                digest = entry.header.digest
                if digest in new and self._at(txn, pack.number, entry):
                    self._index.put(txn, digest, new[digest])
            if self._forget(txn, pack, entries):
                self.done.packs += 1

    def _enter(self, txn: Txn, sealed: SealedPack) -> dict[Digest, Location]:
        number = self._index.add_pack(txn, sealed)
        return {e.header.digest: Location.of(number, e) for e in sealed.entries}

    def _forget(self, txn: Txn, pack: PackUse, entries: list[PackEntry]) -> bool:
        """Drop a pack unless something in it was taken up again since it was copied."""
        if any(self._at(txn, pack.number, entry) for entry in entries):
            self._keep(pack, "something in it is still looked for")
            return False
        for entry in entries:
            self._index.forget_dead(txn, entry.header.digest, pack.number)
        self._index.drop_pack(txn, pack.number)
        return True


def remove_orphans(registry: Registry, index: Index, packs: Path, *, dry_run: bool = False) -> int:
    """Remove pack files without an entry; how many bytes they had.

    Writers move packs into place and enter them inside one write transaction, so that under the write lock
    a file without an entry is one whose commit failed, or one that was replaced.
    """
    if not packs.is_dir():
        return 0
    if dry_run:
        with registry.read() as txn:
            return sum(map(size_if_there, _orphans(txn, index, packs)))
    freed = 0
    with registry.write() as txn, mapped_os_errors(f"removing packs in {packs}"):
        for path in _orphans(txn, index, packs):
            freed += size_if_there(path)
            remove_if_there(path)
    return freed


def _orphans(txn: Txn, index: Index, packs: Path) -> list[Path]:
    found = []
    for path in sorted(packs.glob(f"??/*{SUFFIX}")):
        try:
            name = bytes.fromhex(path.stem)
        except ValueError:
            continue
        if len(name) == DIGEST_BYTES and index.pack_number(txn, Digest(name)) is None:
            found.append(path)
    return found
