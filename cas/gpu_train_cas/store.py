"""A store: packs on disk, the registry that finds things in them, and the operations on both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar, cast

from gpu_train_cas.errors import Damaged, NotFound, StorageFull, mapped_os_errors
from gpu_train_cas.filesystem import size_if_there
from gpu_train_cas.folders import Folders
from gpu_train_cas.registry import Registry
from gpu_train_cas.reserve import Reserve

if TYPE_CHECKING:
    from gpu_train_cas.affected import Hit
    from gpu_train_cas.blocksource import BlockSource, LocalPacks
    from gpu_train_cas.check import VerifyReport
    from gpu_train_cas.closure import Frame
    from gpu_train_cas.digest import Digest
    from gpu_train_cas.forecast import Forecast
    from gpu_train_cas.gc import CollectReport
    from gpu_train_cas.hold import Holds
    from gpu_train_cas.ingest import Writer
    from gpu_train_cas.packer import Admit
    from gpu_train_cas.progress import OnProgress
    from gpu_train_cas.reader import Reader
    from gpu_train_cas.record import Record
    from gpu_train_cas.restore import Restored
    from gpu_train_cas.stats import Stats
    from gpu_train_cas.transaction import Tables, Transaction
    from gpu_train_cas.tree import Entry

TRASH_DAYS = 7.0
"""How long what is in the trash can be brought back, unless something else is wished."""

WRITER_CACHE_BYTES = 32 << 20
"""A writer reads each base once, so that keeping many would help nobody."""

T = TypeVar("T")
R = TypeVar("R")


class Store:
    """The store under a home. Threads may share it; processes open their own.

    Every read sees whole commits only. Nothing is durable before the commit that adds it returns, and
    everything is afterwards. Opened read_only it works on a home that cannot be written.

    The registry alone answers much, such as which jobs and checkpoints there are. What reads and writes content is
    loaded by the methods that do so.
    """

    def __init__(self, root: Path, registry: Registry) -> None:
        self.root = root
        self.registry = registry
        self.folders = Folders.of(root)
        self.elsewhere: Callable[[], Sequence[BlockSource]] = tuple
        """Gives the places outside that may have what the packs have not, when something is first read."""

        self.is_elsewhere: Callable[[Digest], bool] = lambda digest: False
        """Whether a place outside is known to have a block or object."""

        self._lock = threading.Lock()
        self._content: _Content | None = None
        self._holds: Holds | None = None

    @classmethod
    def open(cls, root: Path, *, create: bool = True, read_only: bool = False) -> Self:
        """Open the store of a home; `create` makes it when it is not there.

        Raises:
            NotFound: when it is not there and may not be made.
            Damaged: when there are packs but the registry is gone.
            UnsupportedHome, TooNew, ReadOnly, StorageFull: as for Registry.open.
        """
        folders = Folders.of(root)
        if not (create or read_only or (root / "registry" / "data.mdb").is_file()):
            raise NotFound(f"{root} holds no store; check GPU_TRAIN_HOME")
        _refuse_lost_registry(root, folders)
        registry = Registry.open(root / "registry", read_only=read_only)
        try:
            if not read_only:
                with mapped_os_errors(f"making the store {root}"):
                    for folder in (folders.packs, folders.tmp, folders.leases):
                        folder.mkdir(parents=True, exist_ok=True)
                Reserve(folders.packs.parent).make()
            return cls(root, registry)
        except BaseException:
            registry.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give everything back; safe to call twice."""
        if self._content is not None:
            self._content.packs.close()
        self.registry.close()

    @property
    def tables(self) -> Tables:
        """The engine's tables in the registry."""
        return self._way_to_content().tables

    @property
    def packs(self) -> LocalPacks:
        """The packs."""
        return self._way_to_content().packs

    @property
    def reader(self) -> Reader:
        """What reads blocks, files and trees back."""
        return self._way_to_content().reader

    def _way_to_content(self) -> _Content:
        with self._lock:
            if self._content is None:
                from gpu_train_cas.blocksource import LocalPacks  # noqa: PLC0415
                from gpu_train_cas.reader import Reader  # noqa: PLC0415
                from gpu_train_cas.transaction import Tables  # noqa: PLC0415

                tables = Tables(self.registry)
                packs = LocalPacks(self.registry, tables.index, self.folders.packs)
                self._content = _Content(tables, packs, Reader([packs, *self.elsewhere()]))
            return self._content

    def writer(self, purpose: str, *, threads: int | None = None, admit: Admit | None = None) -> Writer:
        """A writer that brings files in; `purpose` is what others are told while it runs.

        `admit` is told how many bytes are about to be written, and may raise to keep a disk from filling up.
        """
        from gpu_train_cas.ingest import Writer  # noqa: PLC0415
        from gpu_train_cas.reader import Reader  # noqa: PLC0415

        reader = Reader([self.packs], WRITER_CACHE_BYTES)
        return Writer(self.registry, self.tables, reader, self.folders, purpose, threads, admit)

    @contextmanager
    def transaction(self, purpose: str = "commit") -> Iterator[Transaction]:
        """One commit of rows and records without new files.

        Raises:
            StorageFull, ReadOnly: nothing was changed then.
        """
        from gpu_train_cas.lease import Lease  # noqa: PLC0415
        from gpu_train_cas.packer import Packer  # noqa: PLC0415
        from gpu_train_cas.transaction import Transaction, commit_packs  # noqa: PLC0415

        tables = self.tables
        lease = Lease(self.folders.leases, purpose)
        packer = Packer(self.folders.tmp, lease.id)
        try:
            with self.registry.write() as raw:
                yield Transaction(raw, tables, packer)
                commit_packs(raw, tables, packer, self.folders.packs)
        finally:
            packer.discard()
            lease.release()

    def record(self, digest: Digest) -> Record:
        """A record by its name.

        Raises:
            NotFound: when there is none (any more).
        """
        with self.registry.read() as txn:
            if self.tables.records.get_bytes(txn, digest) is None:
                raise NotFound(f"record {digest.hex()[:16]} is not in the store; it may have been collected")
        return self.reader.record(digest)

    @contextmanager
    def reading(self, record: Digest, purpose: str = "read") -> Iterator[Record]:
        """A record of which something is read: until this is left gc takes nothing that it needs.

        Raises:
            NotFound: when there is none (any more).
        """
        with self.holding(record, purpose):
            yield self.reader.record(record)

    @contextmanager
    def holding(self, record: Digest, purpose: str = "read") -> Iterator[None]:
        """Keep gc from taking a record, also if it has been in the trash for long; `purpose` is what others are told.

        Raises:
            NotFound: when there is none (any more).
        """
        from gpu_train_cas.hold import Holds  # noqa: PLC0415
        from gpu_train_cas.transaction import LEAVING  # noqa: PLC0415

        with self._lock:
            if self._holds is None:
                self._holds = Holds(self.folders.holds)
            holds = self._holds
        holds.take(record, purpose)
        try:
            with self.registry.read() as txn:  # begun after the hold can be seen: gc.md, Why it is safe
                row = self.tables.records.get(txn, record)
            if row is None or row.get(LEAVING):
                raise NotFound(f"record {record.hex()[:16]} is not in the store; it may have been collected")
            yield
        finally:
            holds.release(record)

    def records(self, kind: str | None = None, *, trashed: bool = False) -> Iterator[tuple[Digest, Record]]:
        """The committed records, of one kind or all; those in the trash only when asked for."""
        with self.registry.read() as txn:
            found = [
                cast("Digest", key)
                for key, row in self.tables.records.scan(txn)
                if (kind is None or row["kind"] == kind) and (row["trashed_ns"] is not None) == trashed
            ]
        for digest in found:
            yield digest, self.reader.record(digest)

    def trash(self, digest: Digest) -> None:
        """Move a record to the trash, from which gc takes it after some days.

        Raises:
            NotFound: when there is no such record.
        """
        with self.transaction("trash") as txn:
            txn.trash(digest, time.time_ns())

    def restore_trashed(self, digest: Digest) -> None:
        """Take a record back out of the trash.

        Raises:
            NotFound: when gc has removed it.
        """
        with self.transaction("undo") as txn:
            txn.restore_trashed(digest)

    def restore(
        self, root: Entry, dest: Path | str | bytes, *, select: bytes = b"", overwrite: bool = False,
        progress: OnProgress | None = None, threads: int | None = None, fsync: bool = False,
    ) -> Restored:  # fmt: skip
        """Write what a record's root holds, or the part of it at the path `select`, to `dest`; see `restore`."""
        from gpu_train_cas.restore import restore  # noqa: PLC0415

        return restore(
            self.reader, root, dest, select=select, overwrite=overwrite, progress=progress, threads=threads,
            fsync=fsync,
        )  # fmt: skip

    def verify(
        self, *, sample: float | None = None, max_duration_s: float | None = None,
        records: Sequence[Digest] | None = None, progress: OnProgress | None = None,
    ) -> VerifyReport:  # fmt: skip
        """Read everything back and hash it, or a part of it; see `verify`."""
        from gpu_train_cas.check import verify  # noqa: PLC0415

        return verify(
            self.registry, self.tables, self.folders, sample=sample, max_duration_s=max_duration_s,
            records=records, progress=progress, is_elsewhere=self.is_elsewhere,
        )  # fmt: skip

    def known_damage(self, record: Digest) -> Hit | None:
        """What earlier checks have found damaged of a record, or what is missing of it; see `known_damage`."""
        from gpu_train_cas.affected import known_damage  # noqa: PLC0415

        return known_damage(self.registry, self.tables, self.reader, record)

    def gc(
        self, *, trash_days: float = TRASH_DAYS, dry_run: bool = False, spare_bytes: int = 0,
        progress: OnProgress | None = None,
    ) -> CollectReport:  # fmt: skip
        """Remove what no record needs any more; see `collect`."""
        from gpu_train_cas.gc import collect  # noqa: PLC0415

        return collect(
            self.registry, self.tables, self.folders, trash_days=trash_days, dry_run=dry_run, spare_bytes=spare_bytes,
            progress=progress,
        )  # fmt: skip

    def forecast(
        self, records: Collection[Digest], instead: Iterable[Entry] = (), blocks: bytes = b"",
        progress: OnProgress | None = None,
    ) -> Forecast:  # fmt: skip
        """What would be freed if some records went; see `forecast`."""
        from gpu_train_cas.forecast import forecast  # noqa: PLC0415

        return forecast(self.registry, self.tables, self.reader, records, instead, blocks, progress)

    def change(
        self, items: Sequence[T], do: Callable[[Transaction, Sequence[T]], Iterable[R]], purpose: str = "commit"
    ) -> list[R]:
        """Commit changes that lead to room later, such as moving records to the trash, also where the disk is full.

        `do` is given a transaction and the next items: all at once, unless they are very many. Where there is no room
        for that it is given fewer at a time, and then a part of the reserve is used up; it may see items again that
        are done. What it returned for the parts that were committed is returned.

        Raises:
            StorageFull: when there is no room even so; what was committed until then stays.
        """
        from gpu_train_cas.batch import by_batches  # noqa: PLC0415

        results: list[R] = []

        def batch(part: Sequence[T]) -> bool:
            with self.transaction(purpose) as txn:
                done = list(do(txn, part))
            results.extend(done)
            return True

        self.with_reserve(lambda: by_batches(items, batch))
        return results

    def with_reserve(self, do: Callable[[], R]) -> R:
        """Do something small that leads to room later; where the disk is full, again with a part of the reserve.

        Raises:
            StorageFull: when there is no room even so.
        """
        reserve = Reserve(self.folders.packs.parent)
        while True:
            try:
                return do()
            except StorageFull:
                if not reserve.lend():
                    raise

    def adopt(
        self, frames: Iterable[Frame], also: Callable[[Transaction], T], relied: Iterable[Digest] = (), *,
        purpose: str = "adopt",
    ) -> T:  # fmt: skip
        """Take in frames that were proven, such as a `Closure`'s, and commit them with what `also` writes.

        `relied` is looked at when all frames have come: what was found here meanwhile, so that no frame came for it.

        Raises:
            StorageFull: when the disk is full; nothing was committed then.
            Damaged: when something that was found here is gone by now; try again from the start.
        """
        from gpu_train_cas.codecs import Encoded  # noqa: PLC0415
        from gpu_train_cas.lease import Lease  # noqa: PLC0415
        from gpu_train_cas.packer import Packer  # noqa: PLC0415
        from gpu_train_cas.transaction import Transaction, commit_packs  # noqa: PLC0415

        tables = self.tables
        lease = Lease(self.folders.leases, purpose)
        packer = Packer(self.folders.tmp, lease.id)
        try:
            for (kind, codec, digest, length, _, base, sibling), payload in frames:
                packer.add(kind, digest, length, Encoded(codec, payload), base, sibling)
            packer.sync()
            with self.registry.write() as raw:
                for digest in relied:
                    if not tables.index.revive(raw, digest):
                        raise Damaged(f"block {digest.hex()[:16]} vanished from the store while it was used; try again")
                result = also(Transaction(raw, tables, packer))
                commit_packs(raw, tables, packer, self.folders.packs)
                return result
        finally:
            packer.discard()
            lease.release()

    def stats(self, roots: list[Entry] | None = None) -> Stats:
        """What the given roots of records, folders or files take, or all records that are not in the trash."""
        from gpu_train_cas.stats import stats_of  # noqa: PLC0415

        if roots is None:
            roots = [record.root for _, record in self.records()]
        return stats_of(self.registry, self.tables.index, self.reader, roots)


class _Content(NamedTuple):
    """The way from the name of a block or object to its bytes."""

    tables: Tables
    packs: LocalPacks
    reader: Reader


def _refuse_lost_registry(root: Path, folders: Folders) -> None:
    """A new, empty registry over old packs would hide them, and to gc they would all be garbage."""
    data = root / "registry" / "data.mdb"
    if size_if_there(data) == 0 and next(folders.packs.glob("??/*.pack"), None) is not None:
        raise Damaged(f"{data} is gone, but there are packs; run `gpu-train repair --rebuild-registry`")
