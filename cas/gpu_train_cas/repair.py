"""Making the registry again from the packs alone (cas/spec/gc.md, Rebuilding).

Every block, object, record and durable row is a frame in some pack and names itself; the registry only says
where. The new one is built beside the old one and put in its place by one rename; the old one is kept.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpu_train_cas.blocksource import LocalPacks
from gpu_train_cas.digest import DIGEST_BYTES, Digest, Kind
from gpu_train_cas.errors import Busy, Damaged, NotFound, TooNew, mapped_os_errors
from gpu_train_cas.filesystem import remove_tree, sync_directory
from gpu_train_cas.folders import Folders
from gpu_train_cas.frame import FetchBlock, no_blocks, open_frame
from gpu_train_cas.index import Location
from gpu_train_cas.lease import leases
from gpu_train_cas.pack import SUFFIX, PackEntry, PackReader, SealedPack
from gpu_train_cas.progress import Meter, OnProgress
from gpu_train_cas.reader import Reader
from gpu_train_cas.record import Record
from gpu_train_cas.registry import MAX_TABLES, TABLES, Registry, Table, Txn
from gpu_train_cas.transaction import RowFrame, Tables, decode_row_frame, record_row, row_frame_key

PACKS_PER_COMMIT = 64
MAX_KEY_BYTES = 511
OWN_TABLES = {*TABLES, "checks"} - {"records"}
"""Tables that no durable row may claim to be of; `records` is not one of them, since its marks are durable."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(slots=True)
class RepairReport:
    """What was found in the packs.

    Attributes:
        packs: pack files read.
        packs_scanned: of these, ones whose own index was broken, so that their frames were searched for.
        frames: different blocks and objects entered.
        records: records that are there again.
        rows: durable rows that are there again.
        problems: what could not be read and was left out, in words.
        old: where the registry from before was moved; None when there was none.
    """

    packs: int = 0
    packs_scanned: int = 0
    frames: int = 0
    records: int = 0
    rows: int = 0
    problems: list[str] = field(default_factory=list)
    old: Path | None = None


def rebuild_registry(root: Path, *, check: bool = False, progress: OnProgress | None = None) -> RepairReport:
    """Build the registry of a home from its packs and put it in the place of the present one, if any.

    What tells of jobs and checkpoints comes back as it was last made durable; tombstones do not, so that the
    next gc finds them again. Nothing is written to the packs.

    Args:
        root: the home.
        check: decode blocks too, and leave out those that are broken; objects are always decoded.
        progress: told of bytes of packs dealt with.

    Raises:
        NotFound: when there are no packs.
        Busy: when a process has the home open, as far as that can be told.
        StorageFull: when there is no room for the new registry; the old one is then untouched.
    """
    folders = Folders.of(root)
    if not folders.packs.is_dir():
        raise NotFound(f"{folders.packs}: there are no packs here to rebuild from; check GPU_TRAIN_HOME")
    with _alone(root, folders):
        files = _pack_files(folders.packs)
        fresh = root / "registry.new"
        _discard(root, fresh)  # a killed repair may have left one
        try:
            report = _Rebuild(fresh, folders, check, Meter("rebuilding", progress)).run(files)
            _refuse_users(root, folders)
            if _pack_files(folders.packs) != files:
                raise Busy("packs were added or removed meanwhile; stop what uses this home and try again")
            with mapped_os_errors(f"replacing {root / 'registry'}"):
                report.old = _swap(root, fresh)
            return report
        finally:
            _discard(root, fresh)


def _discard(root: Path, fresh: Path) -> None:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_tree(fd, os.fsencode(fresh.name))
    finally:
        os.close(fd)


# Nobody else


@contextmanager
def _alone(root: Path, folders: Folders) -> Iterator[None]:
    path = folders.packs.parent / "gc.lock"
    with mapped_os_errors(f"locking {path}"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise Busy("a gc or another repair is running on this store; wait for it to end") from e
        _refuse_users(root, folders)
        yield
    finally:
        os.close(fd)


def _refuse_users(root: Path, folders: Folders) -> None:
    """Refuse to go on while others have the home open: they would go on with the old registry."""
    alive = [lease for lease in leases(folders.leases) if lease.alive]
    if alive:
        who = ", ".join(f"{lease.purpose or 'a writer'} (pid {lease.pid})" for lease in alive)
        raise Busy(f"{root} is being written by {who}; stop it and try again")
    pids = _processes_with(root / "registry" / "data.mdb")
    if pids:
        raise Busy(f"{root} is open in process {', '.join(map(str, pids))}; stop it and try again")


def _processes_with(file: Path) -> list[int]:
    """The processes that have a file mapped, as far as the system lets us see."""
    name = os.fsencode(file.resolve())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "maps").read_bytes().splitlines()
        except OSError:  # gone, or another user's
            continue
        if any(line.endswith(name) for line in lines):
            found.append(int(folder.name))
    return sorted(found)


# Building


def _pack_files(packs: Path) -> list[Path]:
    """Every pack file, in the order in which they were written: of two states of a row the later one counts."""
    found = []
    for path in packs.glob(f"??/*{SUFFIX}"):
        if len(path.stem) == 2 * DIGEST_BYTES and set(path.stem) <= set("0123456789abcdef"):
            found.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


@dataclass(frozen=True, slots=True)
class _Winner:
    """The latest durable state of a row seen so far."""

    revision: int
    digest: Digest


class _Rebuild:
    """One rebuild, into a new registry."""

    def __init__(self, path: Path, folders: Folders, check: bool, meter: Meter) -> None:
        self._path = path
        self._folders = folders
        self._check = check
        self._meter = meter
        self._records: list[Digest] = []
        self._rows: dict[tuple[str, bytes], _Winner] = {}
        self._deltas: list[tuple[Path, PackEntry]] = []
        self.report = RepairReport()

    def run(self, files: list[Path]) -> RepairReport:
        """Enter every pack, then what their records and rows say."""
        self._meter.progress.total_bytes = sum(path.stat().st_size for path in files)
        self._registry = Registry.open(self._path)
        try:
            self._tables = Tables(self._registry)
            for at in range(0, len(files), PACKS_PER_COMMIT):
                read = [self._read(path) for path in files[at : at + PACKS_PER_COMMIT]]
                with self._registry.write() as txn:
                    for sealed in read:
                        self._tables.index.add_pack(txn, sealed)
            self._enter_deltas()
            self._enter_meaning()
            with self._registry.read() as txn:
                self.report.frames = self._tables.index.blocks.count(txn)
                self.report.records = self._tables.records.count(txn)
        finally:
            self._registry.close()
        self._meter.tick(last=True)
        return self.report

    def _read(self, path: Path) -> SealedPack:
        """A pack and the frames of it that are worth an entry."""
        self.report.packs += 1
        entries: list[PackEntry] = []
        size = path.stat().st_size
        try:
            with PackReader(path) as reader:
                for entry in self._listed(path, reader):
                    if entry.header.references and entry.header.kind is Kind.BLOCK:
                        self._deltas.append((path, entry))
                    elif self._good(path, reader, entry):
                        entries.append(entry)
        except OSError as e:  # it is entered all the same: a pack without an entry would be taken for an orphan
            self.report.problems.append(f"pack {path.stem[:16]} cannot be read: {e.strerror}")
        self._meter.progress.done_bytes += size
        self._meter.tick()
        return SealedPack(Digest(bytes.fromhex(path.stem)), path, size, entries)

    def _listed(self, path: Path, reader: PackReader) -> list[PackEntry]:
        try:
            return reader.index()
        except (Damaged, TooNew) as e:
            self.report.packs_scanned += 1
            self.report.problems.append(f"pack {path.stem[:16]} was searched for frames: {e}")
            return list(reader.scan())

    def _enter_deltas(self) -> None:
        """Enter deltas once all is entered that they need, so that of several frames of one block none is chosen
        that would need itself."""
        packs = LocalPacks(self._registry, self._tables.index, self._folders.packs)
        blocks = Reader([packs]).block
        try:
            while self._deltas:
                ready, left = self._parted()
                if not ready:
                    break
                good = [(path, entry) for path, entry in ready if self._good_delta(path, entry, blocks)]
                with self._registry.write() as txn:
                    for path, entry in good:
                        number = self._tables.index.pack_number(txn, Digest(bytes.fromhex(path.stem)))
                        if number is not None and not self._tables.index.has(txn, entry.header.digest):
                            self._tables.index.put(txn, entry.header.digest, Location.of(number, entry))
                self._deltas = left
        finally:
            packs.close()
        self.report.problems += [
            f"pack {path.stem[:16]} at {entry.offset}, block {entry.header.digest.hex()[:16]}: a delta that needs a "
            "block which is in no pack"
            for path, entry in self._deltas
        ]

    def _parted(self) -> tuple[list[tuple[Path, PackEntry]], list[tuple[Path, PackEntry]]]:
        """The deltas that can be entered now, and those that still need something; none for blocks that are there."""
        ready: list[tuple[Path, PackEntry]] = []
        left: list[tuple[Path, PackEntry]] = []
        with self._registry.read() as txn:
            for path, entry in self._deltas:
                if not self._tables.index.has(txn, entry.header.digest):
                    there = all(self._tables.index.has(txn, d) for d in entry.header.references)
                    (ready if there else left).append((path, entry))
        return ready, left

    def _good_delta(self, path: Path, entry: PackEntry, blocks: FetchBlock) -> bool:
        if not self._check:
            return True
        try:
            with PackReader(path) as reader:
                return self._good(path, reader, entry, blocks)
        except OSError as e:
            self.report.problems.append(f"pack {path.stem[:16]} cannot be read: {e.strerror}")
            return False

    def _good(self, path: Path, reader: PackReader, entry: PackEntry, blocks: FetchBlock = no_blocks) -> bool:
        """Whether a frame is what it says, as far as that is asked for; takes note of records and rows."""
        kind = entry.header.kind
        if kind is Kind.BLOCK and not self._check:
            return True
        try:
            header, payload = reader.frame(entry.offset, entry.header.stored_bytes)
            if header != entry.header:
                raise Damaged("another frame than the pack's index says")
            data = open_frame(header, payload, blocks)
            if kind is Kind.ROW:
                self._consider(header.digest, decode_row_frame(data))
        except (OSError, Damaged, TooNew) as e:
            self.report.problems.append(f"pack {path.stem[:16]} at {entry.offset}, a {kind.name.lower()}: {e}")
            return False
        if kind is Kind.RECORD:
            self._records.append(header.digest)
        return True

    def _consider(self, digest: Digest, frame: RowFrame) -> None:
        known = self._rows.get((frame.table, frame.key))
        if known is None or frame.revision >= known.revision:
            self._rows[frame.table, frame.key] = _Winner(frame.revision, digest)

    def _enter_meaning(self) -> None:
        """Fill the tables of records and rows, and set the counter of revisions after the highest seen."""
        packs = LocalPacks(self._registry, self._tables.index, self._folders.packs)
        reader = Reader([packs])
        tables = {name: self._registry.table(name) for name in self._table_names()}
        try:
            with self._registry.write() as txn:
                for digest in self._records:
                    self._enter_record(txn, digest, reader)
                for (name, key), winner in self._rows.items():
                    if name in tables:
                        self._enter_row(txn, tables[name], key, winner, reader)
                highest = max((winner.revision for winner in self._rows.values()), default=0)
                self._tables.index.next(txn, b"row", at_least=highest)
        finally:
            packs.close()

    def _table_names(self) -> list[str]:
        names = sorted({name for name, _ in self._rows})
        room = MAX_TABLES - len(OWN_TABLES) - 1
        good = [n for n in names if n and n not in OWN_TABLES and len(n.encode(errors="replace")) <= MAX_KEY_BYTES]
        for name in set(names) - set(good[:room]):
            self.report.problems.append(f"rows of a table {name[:40]!r}, which cannot be one, were left out")
        return good[:room]

    def _enter_record(self, txn: Txn, digest: Digest, reader: Reader) -> None:
        try:
            record: Record = reader.record(digest)
        except (Damaged, NotFound, TooNew) as e:
            self.report.problems.append(f"record {digest.hex()[:16]}: {e}")
            return
        self._tables.records.put(txn, digest, record_row(record))

    def _enter_row(self, txn: Txn, table: Table, key: bytes, winner: _Winner, reader: Reader) -> None:
        if not 0 < len(key) <= MAX_KEY_BYTES - len(table.name) - 1:
            self.report.problems.append(f"a row of {table.name} has a key that no row can have; it was left out")
            return
        row = decode_row_frame(reader.object(winner.digest, Kind.ROW)).row
        self._tables.row_frames.put_bytes(txn, row_frame_key(table.name, key), winner.digest)
        if row is None:
            table.delete(txn, key)
        else:
            table.put(txn, key, row)
            self.report.rows += 1


# Putting it in place


def _swap(root: Path, fresh: Path) -> Path | None:
    """Put the new registry in place; where the old one went."""
    present = root / "registry"
    sync_directory(fresh)
    if not present.exists():
        os.rename(fresh, present)
        sync_directory(root)
        return None
    if _exchange(fresh, present):
        old = fresh
    else:  # an old kernel or filesystem: for a moment there is none, which Store.open refuses to take for a new home
        old = root / f"registry.old-{os.urandom(4).hex()}"
        os.rename(present, old)
        os.rename(fresh, present)
    kept = root / time.strftime("registry.broken-%Y%m%dT%H%M%SZ", time.gmtime())
    if kept.exists():
        kept = kept.with_name(f"{kept.name}-{os.urandom(4).hex()}")
    os.rename(old, kept)
    sync_directory(root)
    return kept


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories swap names in one step, where the system can."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    return bool(rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0)
