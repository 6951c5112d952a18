"""Garbage collection: mark from the records, tombstone the rest, and rewrite packs once no writer can mind.

Why it is safe beside running writers, readers and kills: cas/spec/gc.md.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpu_train_cas.batch import batches, by_batches
from gpu_train_cas.blocksource import LocalPacks
from gpu_train_cas.compaction import Compaction, PackUse, remove_orphans, usage, worth_rewriting
from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import UNREADABLE, Busy, StorageFull, mapped_os_errors
from gpu_train_cas.expiry import Expiry
from gpu_train_cas.filesystem import remove_if_there, size_if_there
from gpu_train_cas.folders import Folders
from gpu_train_cas.hold import remove_dead_holds
from gpu_train_cas.index import Location
from gpu_train_cas.lease import Lease, LeaseFacts, leases, remove_dead
from gpu_train_cas.mark import Marks, mark_bases, mark_records
from gpu_train_cas.packer import TEMPORARY, Packer
from gpu_train_cas.progress import Meter, OnProgress
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Registry, Row, Txn
from gpu_train_cas.reserve import Reserve
from gpu_train_cas.transaction import Tables, row_frame_key

LOCK = "gc.lock"
_CACHE_BYTES = 64 << 20


@dataclass(slots=True)
class CollectReport:
    """What a collection did; in a dry run, what it would do.

    Attributes:
        records: records that left the trash for good.
        blocks: blocks and objects tombstoned.
        block_bytes: what their frames take.
        held_bytes: what is kept only because deltas that are needed cannot be decoded without it.
        packs: packs replaced or dropped.
        moved_bytes: stored bytes copied for that.
        freed_bytes: what the disk got back.
        pending_bytes: dead bytes that packs still hold: too few to rewrite them, or for a reason below.
        waiting: writers for which no pack was rewritten; run gc again when they are done.
        kept: what could not be dealt with, and why.
    """

    dry_run: bool
    records: list[Digest] = field(default_factory=list)
    blocks: int = 0
    block_bytes: int = 0
    held_bytes: int = 0
    packs: int = 0
    moved_bytes: int = 0
    freed_bytes: int = 0
    pending_bytes: int = 0
    waiting: list[LeaseFacts] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def collect(
    registry: Registry, tables: Tables, folders: Folders, *, trash_days: float, dry_run: bool = False,
    spare_bytes: int = 0, progress: OnProgress | None = None,
) -> CollectReport:  # fmt: skip
    """Remove what no record needs any more. Readers and writers may go on meanwhile, also in other processes.

    Args:
        registry, tables, folders: the store's parts.
        trash_days: how long a record stays in the trash before it is removed.
        dry_run: change nothing, only report.
        spare_bytes: how much of the disk others are about to need: copies take a quarter of it at most, for a moment.
        progress: told of records marked and bytes moved.

    Raises:
        Busy: when another gc runs.
        ReadOnly, StorageFull: as the disk is; what was done until then stays done and is sound.
    """
    meter = Meter("collecting", progress)
    if dry_run:
        return _DryRun(registry, tables, folders, trash_days, meter).run()
    try:
        with _only_one(folders):
            collection = _Collection(registry, tables, folders, trash_days, meter)
            return collection.run(spare_bytes)
    except StorageFull as e:
        raise StorageFull(
            f"{str(e).partition(';')[0]}; gc itself needs a little: remove something else from that disk "
            "(`df -h` shows how full it is) and run it again"
        ) from e


@contextmanager
def _only_one(folders: Folders) -> Iterator[None]:
    """Hold the lock, and use up the reserve meanwhile."""
    path = folders.packs.parent / LOCK
    reserve = Reserve(folders.packs.parent)
    try:
        fd = _open_lock(path)
    except StorageFull:
        reserve.give_up()
        fd = _open_lock(path)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise Busy("another gc is running on this store; wait for it to end") from e
        with mapped_os_errors(f"removing {reserve.path}"):
            reserve.give_up()
        try:
            yield
        finally:
            reserve.make()
    finally:
        os.close(fd)


def _open_lock(path: Path) -> int:
    with mapped_os_errors(f"locking {path}"):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class _AllPacks(LocalPacks):
    """Also finds what is tombstoned: a record that names such a thing gets it back."""

    def locate(self, digest: Digest) -> Location | None:
        with self._registry.read() as txn:
            return self._index.find(txn, digest)


class _Survey:
    """What is needed and what is not, found without changing anything."""

    def __init__(self, registry: Registry, tables: Tables, folders: Folders, days: float, meter: Meter) -> None:
        self._registry = registry
        self._tables = tables
        self._index = tables.index
        self._folders = folders
        self._expiry = Expiry(registry, tables, folders, days)
        self._meter = meter
        self._marks = Marks()
        self._marked: set[Digest] = set()
        self.report = CollectReport(dry_run=False)

    def _to_mark(self, txn: Txn) -> list[tuple[Digest, Row]]:
        """The records to keep that are not marked yet; marks the frames of durable rows on the way."""
        records = self._tables.records
        expired = {row_frame_key(records.name, key) for key, row in records.scan(txn) if self._expiry.is_over(key, row)}
        for key, frame in self._tables.row_frames.scan_bytes(txn):
            if key not in expired:
                self._marks.add(Digest(frame))
        found = ((Digest(key), row) for key, row in records.scan(txn))
        return [(key, row) for key, row in found if key not in self._marked and not self._expiry.is_over(key, row)]

    def _mark(self, records: list[tuple[Digest, Row]], reader: Reader) -> bool:
        """Mark what the records need; whether all of them could be read."""
        sound = True
        for key, row in records:
            try:
                mark_records(reader, [key], self._marks)
            except UNREADABLE as e:
                sound = False
                self.report.kept.append(
                    f"record {key.hex()[:16]} ({row['owner']}/{row['name']}) cannot be read, so that what it needs "
                    f"is not known and no block was removed: {e}"
                )
            self._marked.add(key)
            self._meter.progress.files_done += 1
            self._meter.tick()
        return sound

    def _unmarked(self, txn: Txn) -> Iterator[tuple[Digest, Location]]:
        """The live blocks and objects that nothing needs."""
        for batch in batches(self._index.scan(txn)):
            alive = self._marks.has([digest for digest, _ in batch])
            yield from (item for item, is_alive in zip(batch, alive, strict=True) if not is_alive)

    def _leftovers(self) -> list[Path]:
        """Temporary files whose writers are gone."""
        # The files first: a lease is taken before its first file is made, and ends after its last one is gone.
        files = sorted(self._folders.tmp.glob("*" + TEMPORARY))
        alive = {lease.id for lease in leases(self._folders.leases) if lease.alive}
        return [path for path in files if path.name.split(".")[0] not in alive]

    def _waiting(self, generation: int, own: str) -> list[LeaseFacts]:
        """The writers that may rely on something tombstoned up to that generation."""
        return [
            lease
            for lease in leases(self._folders.leases)
            if lease.alive and lease.id != own and (lease.generation is None or lease.generation < generation)
        ]


class _DryRun(_Survey):
    """The numbers of a collection that is not done."""

    def run(self) -> CollectReport:
        report = self.report
        report.dry_run = True
        report.kept += self._expiry.spare_held(self._expiry.records())
        report.records = self._expiry.records()
        report.freed_bytes = sum(map(size_if_there, self._leftovers()))
        report.freed_bytes += remove_orphans(self._registry, self._index, self._folders.packs, dry_run=True)
        packs = _AllPacks(self._registry, self._index, self._folders.packs)
        try:
            with self._registry.read() as txn:
                records = self._to_mark(txn)
            sound = self._mark(records, Reader([packs], _CACHE_BYTES))
            with self._registry.read() as txn:
                self.report.held_bytes += mark_bases(txn, self._index, self._marks)
                gone = {digest for digest, _ in self._unmarked(txn)} if sound else set()
                live = (loc for digest, loc in self._index.scan(txn) if digest not in gone)
                uses = usage(txn, self._index, live)
                report.blocks = len(gone)
                report.block_bytes = sum(loc.stored_bytes for d in gone if (loc := self._index.get(txn, d)))
                generation = self._index.generation(txn) + 1
        finally:
            packs.close()
        report.waiting = self._waiting(generation, "")
        chosen = worth_rewriting(uses.values())
        report.packs = len(chosen)
        report.moved_bytes = sum(pack.live_bytes for pack in chosen)
        report.freed_bytes += sum(pack.dead_bytes for pack in chosen)
        report.pending_bytes = sum(p.dead_bytes for p in uses.values()) - sum(p.dead_bytes for p in chosen)
        self._meter.tick(last=True)
        return report


class _Collection(_Survey):
    """One collection, under the lock."""

    def run(self, spare_bytes: int = 0) -> CollectReport:
        """See `collect`."""
        self._spare_bytes = spare_bytes
        self._lease = Lease(self._folders.leases, "gc")
        packer = Packer(self._folders.tmp, self._lease.id)
        try:
            self._clean()
            self.report.records, kept = self._expiry.remove(packer)
            self.report.kept += kept
            if self._survey():
                self._tombstone()
            generation = self._next_generation()
            self._lease.announce(generation)
            self.report.waiting = self._waiting(generation, self._lease.id)
            self._compact(packer)
        finally:
            packer.discard()
            self._lease.release()
        self._meter.tick(last=True)
        return self.report

    def _clean(self) -> None:
        """Remove what killed writers left: first, since it needs no room and may make some."""
        with mapped_os_errors(f"cleaning {self._folders.tmp}"):
            for path in self._leftovers():
                self.report.freed_bytes += size_if_there(path)
                remove_if_there(path)
            remove_dead(self._folders.leases)
            remove_dead_holds(self._folders.holds)
        self.report.freed_bytes += remove_orphans(self._registry, self._index, self._folders.packs)

    def _survey(self) -> bool:
        """Find what is not needed; whether that is certain."""
        self._packs = _AllPacks(self._registry, self._index, self._folders.packs)
        self._reader = Reader([self._packs], _CACHE_BYTES)
        try:
            with self._registry.read() as txn:
                records = self._to_mark(txn)
            if not self._mark(records, self._reader):
                return False
        finally:
            self._packs.close()
        with self._registry.read() as txn:  # short ones: while a snapshot lives, the registry's file grows
            self.report.held_bytes += mark_bases(txn, self._index, self._marks)
            self._gone = [digest for digest, _ in self._unmarked(txn)]
        return True

    def _tombstone(self) -> None:
        """Bury what was found, less what has been committed since, some thousands at a time."""
        self._marks.fresh()
        if not by_batches(self._gone, self._bury_batch):
            return
        with self._registry.write() as txn:
            if self._mark_news(txn):
                self._lift(txn)

    def _bury_batch(self, batch: Sequence[Digest]) -> bool:
        buried: list[int] = []
        with self._registry.write() as txn:
            if not self._mark_news(txn):
                return False
            for digest, alive in zip(batch, self._marks.has(batch), strict=True):
                location = None if alive else self._index.get(txn, digest)
                if location is not None:
                    self._index.bury(txn, digest)
                    buried.append(location.stored_bytes)
        self.report.blocks += len(buried)
        self.report.block_bytes += sum(buried)
        return True

    def _mark_news(self, txn: Txn) -> bool:
        """Mark what records committed since the survey need; under the write lock nothing new can come."""
        try:
            if not self._mark(self._to_mark(txn), self._reader):
                return False
            news = self._marks.fresh()
            while news:
                for digest in news:
                    location = self._index.find(txn, digest)
                    if location is not None and location.references:
                        self._marks.add_all(b"".join(location.references))
                news = self._marks.fresh()
            return True
        finally:
            self._packs.close()

    def _lift(self, txn: Txn) -> None:
        """Lift tombstones from what is needed: someone committed a record of a root that was on its way out."""
        wanted = [
            digest
            for batch in batches(self._index.scan_dead(txn))
            for (digest, _), alive in zip(batch, self._marks.has([d for d, _ in batch]), strict=True)
            if alive
        ]
        for digest in wanted:
            self._index.revive(txn, digest)

    def _next_generation(self) -> int:
        with self._registry.write() as txn:
            return self._index.next(txn, b"generation")

    def _compact(self, packer: Packer) -> None:
        before = self._uses()
        if not self.report.waiting:
            chosen = worth_rewriting(before.values())
            done = Compaction(self._registry, self._index, packer, self._folders.packs, self._spare_bytes).run(chosen)
            self.report.packs, self.report.moved_bytes = done.packs, done.moved_bytes
            self.report.kept += done.kept
        after = self._uses()
        names = {pack.name for pack in before.values()}
        new = sum(pack.size_bytes for pack in after.values() if pack.name not in names)
        left = {pack.name for pack in after.values()}
        self.report.freed_bytes += sum(p.size_bytes for p in before.values() if p.name not in left) - new
        self.report.pending_bytes = sum(pack.dead_bytes for pack in after.values())

    def _uses(self) -> dict[int, PackUse]:
        with self._registry.read() as txn:
            return usage(txn, self._index, (location for _, location in self._index.scan(txn)))
