"""Freeing room in a sink: taking checkpoints out of it, and deleting packs that nothing there needs any more
(cas/spec/remote.md, Removing)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpu_train.sinks.journal import Entry, SentPack, SentRecord
from gpu_train.sinks.key import checkpoint_prefix, escaped_path, pack_key
from gpu_train.sinks.setting import FILES
from gpu_train.sinks.shipment import Shipment
from gpu_train.sinks.sink import Sink
from gpu_train.workspace import Workspace
from gpu_train_cas.closure import Closure
from gpu_train_cas.digest import DIGEST_BYTES, HOLE, Digest, Kind
from gpu_train_cas.pack import PackEntry
from gpu_train_cas.reader import Reader
from gpu_train_cas.tree import EntryKind

GRACE_S = 7 * 86400.0
"""How long a dead pack stays: longer than any push that began before it was told dead may take."""

NEEDED_SHARE = 0.25
"""A pack of which no more than this is needed is replaced by one that has only that."""

DELETED_AT_ONCE = 500


class Swept(NamedTuple):
    """What came of it, or would.

    Attributes:
        dead: packs that nothing needs from now on, and their bytes. moved_bytes: what was sent again of them.
        deleted: packs that were deleted, and their bytes.
        waiting_bytes: of packs that are dead, but not for long enough.
        alive: dead packs that are needed after all.
    """

    dead: int = 0
    dead_bytes: int = 0
    moved_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    waiting_bytes: int = 0
    alive: int = 0


def take_out(workspace: Workspace, sink: Sink, records: Sequence[SentRecord]) -> int:
    """Take checkpoints out of a sink; how many plain files were deleted. Their packs go with a later `sweep`.

    Raises:
        SinkFailed: when the sink failed; the plain files of what its journal no longer names may be left.
    """
    going = {record.record for record in records}
    staying = {checkpoint_prefix(r.job, r.name) for r in sink.records() if r.record not in going}
    reader = workspace.store.reader.after(sink.blocks)
    keys: list[str] = []
    for sent in records:
        prefix = checkpoint_prefix(sent.job, sent.name)
        if sent.layout == FILES and prefix not in staying:
            for path, entry in reader.walk(reader.record(sent.record).root):
                if entry.kind is EntryKind.FILE:
                    keys.append(prefix + escaped_path(path))
    sink.tell(Entry(removed=tuple((record.record, record.job) for record in records)), {})
    for at in range(0, len(keys), DELETED_AT_ONCE):
        sink.objects.delete(keys[at : at + DELETED_AT_ONCE])
    return len(keys)


def sweep(workspace: Workspace, sink: Sink, *, grace_s: float = GRACE_S, dry_run: bool = False) -> Swept:
    """Tell packs dead that no record in the sink needs, and delete those that have been dead for long enough.

    Raises:
        SinkFailed: when the sink failed; what was told until then holds.
        NotFound, Damaged: when something cannot be read that says what is needed; nothing is deleted then.
    """
    sink.sync()
    history = sink.history()
    packs: dict[Digest, SentPack] = {pack.name: pack for entry in history for pack in entry.packs}
    deleted = {name for entry in history for name in entry.deleted}
    dead_ns: dict[Digest, int] = {}
    for entry in history:
        for name in entry.dead:
            dead_ns.setdefault(name, entry.time_ns)
        for name in entry.alive:
            dead_ns.pop(name, None)
    live = {name: pack for name, pack in packs.items() if name not in deleted and name not in dead_ns}
    dying = {name: pack for name, pack in packs.items() if name not in deleted and name in dead_ns}
    entries = {name: sink.entries_of(pack) for name, pack in {**live, **dying}.items()}
    needed = _needed(workspace, sink, [entries[name] for name in live])
    swept = _revive(sink, entries, live, dying, needed, dry_run=dry_run)
    ripe_ns = time.time_ns() - int(grace_s * 1e9)
    ripe = {name: pack for name, pack in dying.items() if dead_ns[name] <= ripe_ns}
    swept = swept._replace(
        deleted=len(ripe), deleted_bytes=sum(pack.size_bytes for pack in ripe.values()),
        waiting_bytes=sum(pack.size_bytes for name, pack in dying.items() if name not in ripe),
    )  # fmt: skip
    if ripe and not dry_run:
        sink.objects.delete([pack_key(name) for name in ripe])
        sink.tell(Entry(deleted=tuple(ripe)), {})
    return _bury(workspace, sink, entries, live, needed, swept, dry_run=dry_run)


def _needed(workspace: Workspace, sink: Sink, live: Iterable[Sequence[PackEntry]]) -> set[Digest]:
    """Everything that the records in a sink need, themselves and their rows."""
    reader = Reader([workspace.store.packs, sink.blocks])
    found: set[Digest] = set()
    stack = []
    for sent in sink.records():
        found |= {*sent.rows, *sent.also, sent.record}
        stack += [reader.record(digest).root for digest in (sent.record, *sent.also)]
    while stack:
        entry = stack.pop()
        if entry.kind is EntryKind.DIRECTORY:
            if entry.digest not in found:
                found.add(entry.digest)
                stack.extend(reader.tree(entry.digest).entries)
        elif entry.kind is EntryKind.FILE and entry.manifest is not None:
            if entry.manifest not in found:
                found.add(entry.manifest)
                digests = reader.manifest(entry).digests
                found.update(Digest(digests[i : i + DIGEST_BYTES]) for i in range(0, len(digests), DIGEST_BYTES))
        elif entry.kind is EntryKind.FILE:
            found.add(entry.digest)
    found.discard(HOLE)
    # What a delta is taken against is needed as long as the delta may be the one that is read.
    references = {e.header.digest: e.header.references for pack in live for e in pack if e.header.references}
    left = [digest for digest in found if digest in references]
    while left:
        for digest in references.get(left.pop(), ()):
            if digest not in found:
                found.add(digest)
                left.append(digest)
    return found


def _revive(
    sink: Sink, entries: dict[Digest, list[PackEntry]], live: dict[Digest, SentPack], dying: dict[Digest, SentPack],
    needed: set[Digest], *, dry_run: bool,
) -> Swept:  # fmt: skip
    """Tell dead packs alive again that hold what no live one does: a push relied on them before it knew."""
    there = {entry.header.digest for name in live for entry in entries[name]}
    saved = [name for name in dying if any(e.header.digest in needed - there for e in entries[name])]
    for name in saved:
        live[name] = dying.pop(name)
    if saved and not dry_run:
        sink.tell(Entry(alive=tuple(saved)), {})
    return Swept(alive=len(saved))


def _bury(
    workspace: Workspace, sink: Sink, entries: dict[Digest, list[PackEntry]], live: dict[Digest, SentPack],
    needed: set[Digest], swept: Swept, *, dry_run: bool,
) -> Swept:  # fmt: skip
    """Tell packs dead that hold little or nothing that is needed; what is needed of them is sent again first."""
    first: dict[Digest, Digest] = {}
    for name in live:
        for entry in entries[name]:
            first.setdefault(entry.header.digest, name)
    doomed: list[Digest] = []
    moving: list[PackEntry] = []
    for name, pack in live.items():
        wanted = [e for e in entries[name] if e.header.digest in needed and first[e.header.digest] == name]
        size_bytes = sum(e.header.size_bytes + e.header.stored_bytes for e in wanted)
        if not wanted or size_bytes <= NEEDED_SHARE * pack.size_bytes:
            doomed.append(name)
            moving += wanted
    moved_bytes = sum(e.header.stored_bytes for e in moving)
    swept = swept._replace(
        dead=len(doomed), dead_bytes=sum(live[name].size_bytes for name in doomed), moved_bytes=moved_bytes
    )
    if not doomed or dry_run:
        return swept
    store = workspace.store
    # Frames as they lie there: others of the same blocks may be taken against what is taken against these.
    with Closure([sink.blocks]) as closure, Shipment(store.folders, sink.objects) as shipment:
        for entry in moving:
            shipment.add(closure.frame(entry.header.digest, Kind(entry.header.kind)))
        shipped = shipment.finish()
    packs = tuple(SentPack(p.name, p.size_bytes, len(p.entries)) for p in shipped)
    sink.tell(Entry(packs=packs, dead=tuple(doomed)), {p.name: p.entries for p in shipped})
    return swept
