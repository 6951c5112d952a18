"""Reading everything back and hashing it: what is damaged, and which records and files that hits.

One bad frame never stops the rest. A ledger says of each pack when all of it was last read, so that a check with
a limit goes on where the one before it stopped (cas/spec/gc.md, Checking).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from gpu_train_cas.affected import AffectedWalk, Hit
from gpu_train_cas.blocksource import LocalPacks
from gpu_train_cas.compaction import PackUse, usage
from gpu_train_cas.digest import Digest, Kind
from gpu_train_cas.errors import Damaged, TooNew
from gpu_train_cas.folders import Folders
from gpu_train_cas.frame import HEADER_BYTES, FetchBlock, open_frame
from gpu_train_cas.index import Location
from gpu_train_cas.pack import PackReader, pack_path
from gpu_train_cas.progress import Meter, OnProgress
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Registry, Row, Txn, decode_row, encode_row
from gpu_train_cas.transaction import Tables

CHECKS = "checks"
"""The ledger: pack name -> when it was checked, frames, how many of them were damaged."""

RUN_BYTES = 4 << 20
"""Frames that one task reads at most; memory is bounded by this, the tasks in flight and the longest frame."""

NOTE_EVERY_S = 1.0
"""How often the ledger is written: each time costs a synced transaction."""

_CACHE_BYTES = 64 << 20
Frames = list[tuple[Digest, Location]]


@dataclass(frozen=True, slots=True)
class FrameDamage:
    """A block or object whose frame is broken: where it is and what is wrong."""

    digest: Digest
    kind: Kind
    pack: Digest
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class PackDamage:
    """A pack file that is missing or whose own index is broken (which only a rebuild would miss)."""

    pack: Digest
    reason: str


@dataclass(slots=True)
class VerifyReport:
    """What was read, and what was wrong.

    Attributes:
        frames: frames read and hashed.
        stored_bytes: what they take.
        packs: packs of which all live frames were read.
        packs_total: packs there are.
        records: records walked.
        frames_damaged: broken frames; those found by an earlier check and not read again are among them.
        packs_damaged: broken pack files.
        missing: digests that records need and the store does not have or cannot read, with the reason.
        hits: what of which records cannot be read back for these reasons.
        mended: blocks that an earlier check found damaged and that were read well now.
        elsewhere: blocks that records need and that only a place outside has.
    """

    frames: int = 0
    stored_bytes: int = 0
    packs: int = 0
    packs_total: int = 0
    records: int = 0
    frames_damaged: list[FrameDamage] = field(default_factory=list)
    packs_damaged: list[PackDamage] = field(default_factory=list)
    missing: dict[Digest, str] = field(default_factory=dict)
    hits: list[Hit] = field(default_factory=list)
    mended: int = 0
    elsewhere: int = 0

    @property
    def damaged(self) -> bool:
        """Whether anything was wrong."""
        return bool(self.frames_damaged or self.packs_damaged or self.missing or self.hits)

    @property
    def complete(self) -> bool:
        """Whether everything was read."""
        return self.packs == self.packs_total


def verify(
    registry: Registry, tables: Tables, folders: Folders, *, sample: float | None = None,
    max_duration_s: float | None = None, records: Sequence[Digest] | None = None,
    progress: OnProgress | None = None, threads: int | None = None,
    is_elsewhere: Callable[[Digest], bool] = lambda digest: False,
) -> VerifyReport:  # fmt: skip
    """Read frames back and compare them with their names; walk the records and find what they need.

    Broken frames are marked, so that a writer that meets their content stores it anew, which mends every
    record that needs it. On a store opened for reading only nothing is noted.

    Args:
        registry, tables, folders: the store's parts.
        sample: read this share (0 to 1) of all stored bytes: the packs whose last check is the longest ago.
        max_duration_s: begin no further pack after so many seconds.
        records: read only what these records need, and walk only them.
        progress: told of stored bytes read.
        threads: how many decode.
        is_elsewhere: whether a place outside is known to have a block that is not here; it is not read.
    """
    check = _Check(registry, tables, folders, Meter("verifying", progress), threads or os.cpu_count() or 1)
    try:
        if records is None:
            check.packs(sample, max_duration_s)
        else:
            check.records(records)
        check.walk(records, is_elsewhere)
    finally:
        check.close()
    return check.report


class _Check:
    """One verification."""

    def __init__(self, registry: Registry, tables: Tables, folders: Folders, meter: Meter, threads: int) -> None:
        self._registry = registry
        self._tables = tables
        self._index = tables.index
        self._folders = folders
        self._meter = meter
        self._ledger = registry.table(CHECKS)
        self._source = LocalPacks(registry, self._index, folders.packs)
        self._reader = Reader([self._source], _CACHE_BYTES)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="verify")
        self._window = 2 * threads
        self._bad: dict[Digest, FrameDamage] = {}
        self._good: set[Digest] = set()
        self._marked: set[Digest] = set()
        self._to_note: list[tuple[Digest, Row]] = []
        self._noted_at = time.monotonic()
        self.report = VerifyReport()
        with registry.read() as txn:
            self._marked = {Digest(key) for key, _ in self._index.damaged.scan_bytes(txn)}

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._source.close()

    # What is read

    def packs(self, sample: float | None, max_duration_s: float | None) -> None:
        """Read packs, the one checked longest ago first, up to the limits (but one at least)."""
        ends = None if max_duration_s is None else time.monotonic() + max_duration_s
        uses = self._oldest_first()
        total = sum(use.live_bytes for use in uses)
        budget = total if sample is None else int(total * sample)
        self._meter.progress.total_bytes = budget
        self.report.packs_total = len(uses)
        done = 0
        for use in uses:
            if done and (done >= budget or (ends is not None and time.monotonic() >= ends)):
                break
            done += use.live_bytes
            self._pack(use)
        self._note(last=True)
        self._meter.tick(last=True)

    def _oldest_first(self) -> list[PackUse]:
        with self._registry.read() as txn:
            uses = usage(txn, self._index, (location for _, location in self._index.scan(txn)))
            checked = {key: row["checked_ns"] for key, row in self._ledger.scan(txn)}
        return sorted(uses.values(), key=lambda use: (checked.get(use.name, 0), use.number))

    def records(self, records: Sequence[Digest]) -> None:
        """Read what these records need."""
        walk = AffectedWalk(self._registry, self._index, self._reader, {}, collect=True)
        for digest, row in self._rows(records):
            list(walk.record(digest, row))
        by_pack: dict[int, Frames] = {}
        with self._registry.read() as txn:
            names = {number: name for number, name, _ in self._index.all_packs(txn)}
            left, seen = list(walk.needed or ()), walk.needed or set()
            while left:
                digest = left.pop()
                location = self._index.get(txn, digest)
                if location is not None:
                    by_pack.setdefault(location.pack, []).append((digest, location))
                    left += [d for d in location.references if d not in seen]
                    seen |= set(location.references)
        self._meter.progress.total_bytes = sum(
            HEADER_BYTES + location.stored_bytes for frames in by_pack.values() for _, location in frames
        )
        self.report.packs_total = len(by_pack)
        for number, frames in sorted(by_pack.items()):
            name = names.get(number)
            if name is None:
                self._spoil(frames, Digest(b""), "its pack is not in the registry")
            else:
                self._read_pack(number, name, frames)
                self.report.packs += 1
        self._note(last=True)
        self._meter.tick(last=True)

    def _pack(self, use: PackUse) -> None:
        """Read one pack's live frames and check its own index."""
        frames = self._listed(use)
        if frames is None or len(frames) != use.frames:  # the registry knows more than the pack says of itself
            frames = self._looked_for(use.number)
        before = len(self._bad)
        self._read_pack(use.number, use.name, frames)
        self.report.packs += 1
        row = {"v": 1, "checked_ns": time.time_ns(), "frames": len(frames), "damaged": len(self._bad) - before}
        self._to_note.append((use.name, row))
        self._note()

    def _listed(self, use: PackUse) -> Frames | None:
        """The live frames by the pack's own index; None when that is broken."""
        try:
            with PackReader(pack_path(self._folders.packs, use.name)) as reader:
                entries = reader.index()
        except (OSError, Damaged, TooNew) as e:
            with self._registry.read() as txn:
                gone = self._index.pack_name(txn, use.number) is None
            if not gone:  # or else gc has replaced it this moment
                self.report.packs_damaged.append(PackDamage(use.name, _said(e)))
            return None
        frames: Frames = []
        with self._registry.read() as txn:
            for entry in entries:
                digest = entry.header.digest
                location = self._index.get(txn, digest)
                if location is not None and (location.pack, location.offset) == (use.number, entry.offset):
                    frames.append((digest, location))
        return frames

    def _looked_for(self, number: int) -> Frames:
        """The frames that the registry looks for in a pack."""
        with self._registry.read() as txn:
            return [(digest, location) for digest, location in self._index.scan(txn) if location.pack == number]

    def _read_pack(self, number: int, name: Digest, frames: Frames) -> None:
        try:
            reader = PackReader(pack_path(self._folders.packs, name))
        except OSError as e:
            self._spoil(frames, name, _said(e))
            return
        with reader:
            waiting: deque[Future[list[FrameDamage]]] = deque()
            for run in _runs(sorted(frames, key=lambda frame: frame[1].offset)):
                if len(waiting) >= self._window:
                    self._found(waiting.popleft().result())
                waiting.append(self._pool.submit(_read, reader, name, run, self._reader.block))
                self._count(run)
            while waiting:
                self._found(waiting.popleft().result())
        self._good.update(digest for digest, _ in frames if digest in self._marked and digest not in self._bad)

    def _count(self, run: Frames) -> None:
        self.report.frames += len(run)
        size = sum(HEADER_BYTES + location.stored_bytes for _, location in run)
        self.report.stored_bytes += size
        self._meter.progress.done_bytes += size
        self._meter.tick()

    def _spoil(self, frames: Frames, name: Digest, reason: str) -> None:
        self._found([FrameDamage(d, location.kind, name, location.offset, reason) for d, location in frames])

    def _found(self, damages: list[FrameDamage]) -> None:
        """Take note of damage, unless gc has moved the frame since and so has read it whole."""
        for damage in damages:
            with self._registry.read() as txn:
                location = self._index.get(txn, damage.digest)
                name = None if location is None else self._index.pack_name(txn, location.pack)
            if location is not None and (name or b"", location.offset) == (damage.pack, damage.offset):
                self._bad[damage.digest] = damage

    # What is said about it

    def _note(self, *, last: bool = False) -> None:
        """Write the ledger and the marks of damage, from time to time and at the end."""
        if self._registry.read_only or not (last or time.monotonic() - self._noted_at >= NOTE_EVERY_S):
            return
        self._noted_at = time.monotonic()
        fresh = [damage for digest, damage in self._bad.items() if digest not in self._marked]
        if not (fresh or self._good or self._to_note):
            return
        with self._registry.write() as txn:
            for name, row in self._to_note:
                self._ledger.put(txn, name, row)
            for damage in fresh:
                self._mark(txn, damage)
            for digest in self._good:
                self._index.damaged.delete(txn, digest)
            if last:
                self._prune(txn)
        self.report.mended += len(self._good)
        self._marked |= {damage.digest for damage in fresh}
        self._marked -= self._good
        self._to_note, self._good = [], set()

    def _mark(self, txn: Txn, damage: FrameDamage) -> None:
        location = self._index.get(txn, damage.digest)
        if location is not None and location.offset == damage.offset:
            row = {"v": 1, "found_ns": time.time_ns(), "reason": damage.reason}
            self._index.damaged.put_bytes(txn, damage.digest, encode_row(row))

    def _prune(self, txn: Txn) -> None:
        """Forget checks of packs that are gone."""
        names = {name for _, name, _ in self._index.all_packs(txn)}
        for key in [key for key, _ in self._ledger.scan_bytes(txn) if key not in names]:
            self._ledger.delete(txn, key)

    def walk(self, records: Sequence[Digest] | None, is_elsewhere: Callable[[Digest], bool]) -> None:
        """Walk the records and tell what of them is hit."""
        self._recall()
        self.report.frames_damaged = sorted(self._bad.values(), key=lambda damage: (damage.pack, damage.offset))
        bad = {digest: damage.reason for digest, damage in self._bad.items()}
        walk = AffectedWalk(self._registry, self._index, self._reader, bad, is_elsewhere=is_elsewhere)
        for digest, row in self._rows(records):
            self.report.hits += walk.record(digest, row)
            self.report.records += 1
        self.report.missing = walk.missing
        self.report.elsewhere = len(walk.elsewhere)
        if records is None:
            with self._registry.read() as txn:
                for _, frame in self._tables.row_frames.scan_bytes(txn):
                    if not self._index.has(txn, Digest(frame)):
                        self.report.missing[Digest(frame)] = "the frame of a durable row is not in the store"

    def _recall(self) -> None:
        """Add what earlier checks found and this one did not read again."""
        with self._registry.read() as txn:
            for key, value in self._index.damaged.scan_bytes(txn):
                digest = Digest(key)
                location = self._index.get(txn, digest)
                if digest in self._bad or digest in self._good or location is None:
                    continue
                name = self._index.pack_name(txn, location.pack) or Digest(b"")
                reason = str(decode_row(value)["reason"])
                self._bad[digest] = FrameDamage(digest, location.kind, name, location.offset, reason)

    def _rows(self, records: Sequence[Digest] | None) -> list[tuple[Digest, Row]]:
        with self._registry.read() as txn:
            rows = [(Digest(key), row) for key, row in self._tables.records.scan(txn)]
        return rows if records is None else [(digest, row) for digest, row in rows if digest in set(records)]


def _runs(frames: Frames) -> Iterator[Frames]:
    run: Frames = []
    size = 0
    for frame in frames:
        run.append(frame)
        size += HEADER_BYTES + frame[1].stored_bytes
        if size >= RUN_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run


def _read(reader: PackReader, name: Digest, frames: Frames, blocks: FetchBlock) -> list[FrameDamage]:
    """Read frames and prove each; those that fail. A delta fails when what it needs does."""
    bad = []
    for digest, location in frames:
        try:
            header, payload = reader.frame(location.offset, location.stored_bytes)
            if (header.digest, header.kind) != (digest, location.kind):
                raise Damaged("another frame lies where the registry points")
            open_frame(header, payload, blocks)
        except (OSError, Damaged, TooNew) as e:
            bad.append(FrameDamage(digest, location.kind, name, location.offset, _said(e)))
    return bad


def _said(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
