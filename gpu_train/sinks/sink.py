"""One sink as a home uses it: what it holds, and sending it more (cas/spec/remote.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from gpu_train.errors import Taken, Unavailable
from gpu_train.sinks.blocks import sink_blocks
from gpu_train.sinks.holdings import Holdings
from gpu_train.sinks.journal import Entry, Journals, SentPack, SentRecord, new_home
from gpu_train.sinks.key import checkpoint_prefix, escaped_path, pack_key
from gpu_train.sinks.objects.objectstore import ObjectStore
from gpu_train.sinks.setting import FILES, SinkSetting
from gpu_train.sinks.unmark import unmark
from gpu_train.workspace import Workspace
from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import UNREADABLE
from gpu_train_cas.framecache import FrameCache
from gpu_train_cas.manifest import Manifest
from gpu_train_cas.pack import PackEntry, index_at_end
from gpu_train_cas.patience import Ranges
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Txn
from gpu_train_cas.tree import EntryKind


class Sink:
    """See the module. Used by one thread at a time; close it, or use `with`."""

    def __init__(
        self, workspace: Workspace, setting: SinkSetting, objects: ObjectStore, ranges: Ranges | None = None,
        frames: FrameCache | None = None,
    ) -> None:  # fmt: skip
        """`objects` are asked again where that helps; `ranges`, the same ones, are not: whoever reads has a limit.

        `frames` keeps what was read of blocks.
        """
        self.setting = setting
        self.objects = objects
        self._workspace = workspace
        self._registry = workspace.store.registry
        self._holdings = Holdings(self._registry, setting.address)
        self._journals = Journals(objects)
        self.blocks = sink_blocks(self._registry, self._holdings, ranges or objects, frames)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.objects.close()

    def sync(self) -> None:
        """Learn what all homes have done here since the last time.

        Raises:
            SinkFailed, TooNew: when that cannot be read; what was known before stays.
        """
        with self._registry.read() as txn:
            read = dict(self._holdings.state(txn).get("homes", {}))
        homes = list(self._journals.homes())
        if read and not homes:
            raise Unavailable(
                f"{self.setting.called}: what was written there is not there any more; is it the right place, and the "
                "disk mounted? If it was emptied, `gpu-train sinks reset` begins anew"
            )
        fresh = [entry for home in homes for entry in self._journals.after(home, read.get(home, 0))]
        if read and any(map(_takes_away, fresh)):
            self._begin_anew()
            self._forget_removed({record for entry in fresh for record, _ in entry.removed})
        else:
            self._take(fresh)

    def _forget_removed(self, removed: set[Digest]) -> None:
        """Have the rows of checkpoints not say any more that the sink holds them, when another home took them out."""
        removed -= {record.record for record in self.records()}
        if removed:
            unmark(self._workspace, self.setting.address, lambda checkpoint: checkpoint.record in removed)

    def _begin_anew(self) -> None:
        """Read all journals again: others may have relied on what goes, and so it is plain what is left."""
        history = self.history()
        with self._registry.write() as raw:
            self._holdings.forget(raw)
        self._take(history)

    def _take(self, entries: list[Entry]) -> None:
        entries.sort(key=lambda entry: (entry.time_ns, entry.home, entry.n))
        deleted = {name for entry in entries for name in entry.deleted}
        dead: set[Digest] = set()
        since: dict[Digest, int] = {}
        for at, entry in enumerate(entries):
            dead = (dead | set(entry.dead)) - set(entry.alive)
            since |= dict.fromkeys((record.record for record in entry.records), at)
            for record, _ in entry.removed:
                since.pop(record, None)
        # All packs first: what a record needs may have been moved to a later one. Dead ones last: they will go.
        packs = [(pack, pack.name in dead) for entry in entries for pack in entry.packs if pack.name not in deleted]
        for pack, is_dead in sorted(packs, key=lambda found: found[1]):
            with suppress(*UNREADABLE):  # what needs it is damaged for whoever reads it; the others are not
                self._enter_pack(pack, self.entries_of(pack), is_dead=is_dead)
        for at, entry in enumerate(entries):
            self._enter_records(entry, [r for r in entry.records if since.get(r.record) == at])

    def records(self) -> list[SentRecord]:
        """The records that can be read from it, as known since the last `sync`, oldest first."""
        with self._registry.read() as txn:
            found = [SentRecord.from_wire(row) for row in self._holdings.records(txn)]
        return sorted(found, key=lambda record: (record.created_ns, record.job, record.name))

    def reader(self) -> Reader:
        """Reads what the sink holds, and nothing else."""
        return Reader([self.blocks])

    @property
    def has_plain(self) -> bool:
        """Whether it holds plain files of any checkpoint."""
        with self._registry.read() as txn:
            return any(row.get("layout") == FILES for row in self._holdings.records(txn))

    def in_pack(self, digest: Digest) -> bool:
        """Whether it has a block or object in a pack, so that a record may rely on it."""
        with self._registry.read() as txn:
            return self._holdings.in_pack(txn, digest)

    def tell(self, entry: Entry, known: Mapping[Digest, Sequence[PackEntry]]) -> None:
        """Write the next entry of this home's journal, and take it in; `known` are the frames of its packs.

        Raises:
            SinkFailed: when that failed; nothing of it is known then, here or there.
        """
        with self._registry.write() as raw:
            state = self._holdings.ensure(raw)
            home = self._holdings.home(raw)
        place = self._journals.claim(home, state["place"])
        try:
            entry = self._journals.write(home, state["homes"].get(home, 0), entry)
        except Taken:  # a copy of this home writes there under the same id: from now on this one has another
            with self._registry.write() as raw:
                home = self._holdings.set_home(raw, new_home())
            place = self._journals.claim(home, None)
            entry = self._journals.write(home, 0, entry)
        with self._registry.write() as raw:
            self._holdings.set_state(raw, {**self._holdings.ensure(raw), "place": place})
        if _takes_away(entry):
            self._begin_anew()
            self._forget_removed({record for record, _ in entry.removed})
        else:
            for pack in entry.packs:
                self._enter_pack(pack, known[pack.name])
            self._enter_records(entry, entry.records)

    def history(self) -> list[Entry]:
        """All entries of all journals, in the order in which they were written."""
        found = [entry for home in self._journals.homes() for entry in self._journals.after(home, 0)]
        return sorted(found, key=lambda entry: (entry.time_ns, entry.home, entry.n))

    def entries_of(self, pack: SentPack) -> list[PackEntry]:
        """The index of a pack that is there."""
        key = pack_key(pack.name)
        read = partial(self.objects.read, key)
        return index_at_end(read, pack.size_bytes, f"{self.setting.called}: {key}")

    def _enter_pack(self, pack: SentPack, entries: Sequence[PackEntry], *, is_dead: bool = False) -> None:
        with self._registry.write() as raw:
            self._holdings.add_pack(raw, pack.name, pack.size_bytes, entries, is_dead=is_dead)

    def _enter_records(self, entry: Entry, records: Sequence[SentRecord]) -> None:
        """Take the records of a journal's entry in, and that it has been read."""
        plain: list[tuple[str, Manifest]] = []
        for record in records:
            if record.layout == FILES:
                with suppress(*UNREADABLE):
                    plain += self._plain(record)
        with self._registry.write() as raw:
            for key, manifest in plain:
                self._holdings.add_plain(raw, key, manifest)
            for record in records:
                self._holdings.add_record(raw, record.to_wire())
            self._note_read(raw, entry)

    def _note_read(self, raw: Txn, entry: Entry) -> None:
        state = self._holdings.ensure(raw)
        homes = {**state["homes"], entry.home: max(entry.n + 1, state["homes"].get(entry.home, 0))}
        self._holdings.set_state(raw, {**state, "homes": homes})

    def _plain(self, sent: SentRecord) -> Iterator[tuple[str, Manifest]]:
        """The plain files of a record, with their blocks."""
        reader = self.reader()
        prefix = checkpoint_prefix(sent.job, sent.name)
        for path, entry in reader.walk(reader.record(sent.record).root):
            if entry.kind is EntryKind.FILE and entry.size_bytes:
                yield prefix + escaped_path(path), reader.manifest(entry)


def _takes_away(entry: Entry) -> bool:
    return bool(entry.removed or entry.dead or entry.alive or entry.deleted)
