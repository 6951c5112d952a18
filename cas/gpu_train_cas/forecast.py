"""What removing records would free, told before it is done: a walk over all records that changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import compress

from gpu_train_cas.batch import batches
from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import UNREADABLE
from gpu_train_cas.mark import Marks, mark_bases, mark_entry, mark_records
from gpu_train_cas.progress import Meter, OnProgress
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Registry
from gpu_train_cas.transaction import Tables
from gpu_train_cas.tree import Entry


@dataclass(slots=True)
class Forecast:
    """What the frames of some records take, by what would become of them.

    Attributes:
        freed_bytes: nothing else needs them: gc can free them once the records have left the trash. At the most: packs
            of which little is dead are left as they are.
        shared_bytes: other records need them as well.
        held_bytes: other records do not hold them, but have deltas that cannot be decoded without them.
        unknown: records that cannot be read; gc removes no block while there are such.
    """

    freed_bytes: int = 0
    shared_bytes: int = 0
    held_bytes: int = 0
    unknown: list[str] = field(default_factory=list)


def forecast(
    registry: Registry, tables: Tables, reader: Reader, records: Collection[Digest], instead: Iterable[Entry] = (),
    blocks: bytes = b"", progress: OnProgress | None = None,
) -> Forecast:  # fmt: skip
    """What would be freed if these records went, and `instead` (files, directories) and `blocks` (digests) stayed.

    Records that are in the trash already count as gone.
    """
    meter = Meter("counting", progress)
    found, wanted = Forecast(), set(records)
    with registry.read() as txn:
        rows = [(Digest(key), row) for key, row in tables.records.scan(txn)]
    own, others = Marks(), Marks()
    for digest, row in rows:
        if digest not in wanted and row["trashed_ns"] is not None:
            continue
        try:
            mark_records(reader, [digest], own if digest in wanted else others)
        except UNREADABLE as e:
            found.unknown.append(f"record {digest.hex()[:16]} ({row['owner']}/{row['name']}) cannot be read: {e}")
        meter.progress.files_done += 1
        meter.tick()
    for entry in instead:
        mark_entry(reader, entry, others)
    others.add_all(blocks)
    _add_up(registry, tables, own, others, found)
    meter.tick(last=True)
    return found


def _add_up(registry: Registry, tables: Tables, own: Marks, others: Marks, found: Forecast) -> None:
    """Count the frames of `own` by whether `others` need them, themselves or for the sake of deltas."""
    with registry.read() as txn:
        alone: list[tuple[Digest, int]] = []
        for batch in batches(tables.index.scan(txn)):
            digests = [digest for digest, _ in batch]
            mine = own.has(digests)
            shared = others.has(digests) & mine
            found.shared_bytes += sum(location.frame_bytes for _, location in compress(batch, shared))
            alone += [(digest, location.frame_bytes) for digest, location in compress(batch, mine & ~shared)]
        mark_bases(txn, tables.index, others)
    for held, (_, frame_bytes) in zip(others.has([digest for digest, _ in alone]), alone, strict=True):
        if held:
            found.held_bytes += frame_bytes
        else:
            found.freed_bytes += frame_bytes
