"""The LMDB environment: tables of rows, one writer at a time, each transaction whole or not at all.

One process opens an environment once, however many Registry objects share it (LMDB forbids twice). The map
is one large sparse size set at creation and never changed. Byte tables and versions: cas/spec/registry.md.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import lmdb
import msgpack

from gpu_train_cas.errors import (
    Busy,
    Damaged,
    GpuTrainError,
    NotFound,
    ReadOnly,
    StorageFull,
    TooNew,
    UsageError,
    mapped_os_errors,
)
from gpu_train_cas.filesystem import check_fit, size_if_there
from gpu_train_cas.mapfile import ensure_length, ensure_locks

FORMAT = 1
"""Version of the whole store's layout; a program that knows only a lower one refuses to open it."""

MAP_BYTES = 128 << 30
MAX_READERS = 1024
NEARLY_FULL_BYTES = 4 << 20
MAX_TABLES = 64
TABLES = ("meta", "blocks", "dead", "damaged", "packs", "pack_numbers", "records", "row_frames")
"""The engine's own. They are opened with the registry, so that no transaction is older than they are."""

Row = dict[str, Any]


def encode_row(row: Row) -> bytes:
    """A row as msgpack; names that are no UTF-8 survive."""
    data: bytes = msgpack.packb(row, unicode_errors="surrogateescape")
    return data


def decode_row(data: bytes) -> Row:
    """Read a row back.

    Raises:
        Damaged: for bytes that are no row.
    """
    try:
        row = msgpack.unpackb(data, unicode_errors="surrogateescape")
    except (ValueError, msgpack.UnpackException) as e:
        raise Damaged(f"a registry row cannot be read ({e}); run `gpu-train repair --rebuild-registry`") from e
    if not isinstance(row, dict):
        raise Damaged("a registry row is no map; run `gpu-train repair --rebuild-registry`")
    return row


class Txn:
    """A transaction: what it reads is one moment's state; what it writes is seen by others when it ends."""

    def __init__(self, raw: lmdb.Transaction, *, writing: bool) -> None:
        self.raw = raw
        self.writing = writing


class _Shared:
    """An open environment, how many Registry objects use it, the thread that writes, and the tables' handles."""

    def __init__(self, env: lmdb.Environment, read_only: bool) -> None:
        self.env = env
        self.read_only = read_only
        self.users = 0
        self.writer = 0
        self.tables: dict[str, Any] = {}


class Table:
    """Rows under byte keys of at most 511 bytes, in key order. A table that nobody wrote yet is empty."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry = registry
        self.name = name

    def get_bytes(self, txn: Txn, key: bytes) -> bytes | None:
        """The raw value of a key."""
        db = self._registry.handle(self.name)
        try:
            return None if db is None else cast("bytes | None", txn.raw.get(key, db=db))
        except lmdb.Error as e:
            raise _ours(e, "reading the registry") from e

    def is_empty(self, txn: Txn) -> bool:
        """Whether there is no row."""
        db = self._registry.handle(self.name)
        with mapped_lmdb_errors("reading the registry"):
            return db is None or txn.raw.stat(db)["entries"] == 0

    def put_bytes(self, txn: Txn, key: bytes, value: bytes) -> None:
        """Set the raw value of a key."""
        with mapped_lmdb_errors("writing the registry"):
            txn.raw.put(key, value, db=self._registry.handle(self.name))

    def delete(self, txn: Txn, key: bytes) -> bool:
        """Remove a key; whether it was there."""
        with mapped_lmdb_errors("writing the registry"):
            return bool(txn.raw.delete(key, db=self._registry.handle(self.name)))

    def get(self, txn: Txn, key: bytes) -> Row | None:
        """The row of a key."""
        value = self.get_bytes(txn, key)
        return None if value is None else decode_row(value)

    def put(self, txn: Txn, key: bytes, row: Row) -> None:
        """Set the row of a key. Rewrite the row that was read, so that fields of a newer version survive."""
        self.put_bytes(txn, key, encode_row(row))

    def scan_bytes(
        self, txn: Txn, prefix: bytes = b"", *, reverse: bool = False, start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and raw values under a prefix, in key order or backwards, from `start` on (inclusive)."""
        db = self._registry.handle(self.name)
        if db is None:
            return
        with mapped_lmdb_errors("reading the registry"), txn.raw.cursor(db=db) as cursor:
            if not self._place(cursor, prefix, reverse, start):
                return
            found = cursor.iterprev() if reverse else cursor.iternext()
            for key, value in cast("Iterator[tuple[bytes, bytes]]", found):
                if not key.startswith(prefix):
                    return
                yield key, value

    @staticmethod
    def _place(cursor: lmdb.Cursor, prefix: bytes, reverse: bool, start: bytes | None) -> bool:
        if not reverse:
            target = prefix if start is None else max(prefix, start)
            return bool(cursor.set_range(target) if target else cursor.first())
        # Backwards: stand on the last key at or before the end of the prefix (or before `start`).
        end = start if start is not None else prefix + b"\xff" * (511 - len(prefix)) if prefix else None
        if end is None or not cursor.set_range(end):
            return bool(cursor.last())
        return True if cursor.key() == end else bool(cursor.prev())

    def scan(
        self, txn: Txn, prefix: bytes = b"", *, reverse: bool = False, start: bytes | None = None
    ) -> Iterator[tuple[bytes, Row]]:
        """Keys and rows under a prefix; see `scan_bytes`."""
        for key, value in self.scan_bytes(txn, prefix, reverse=reverse, start=start):
            yield key, decode_row(value)

    def keys(self, txn: Txn, prefix: bytes = b"") -> Iterator[bytes]:
        """The keys under a prefix, in order, without their values."""
        db = self._registry.handle(self.name)
        if db is None:
            return
        with mapped_lmdb_errors("reading the registry"), txn.raw.cursor(db=db) as cursor:
            if not self._place(cursor, prefix, False, None):
                return
            for key in cast("Iterator[bytes]", cursor.iternext(keys=True, values=False)):
                if not key.startswith(prefix):
                    return
                yield key

    def count(self, txn: Txn, prefix: bytes = b"") -> int:
        """How many keys the table has, or has under a prefix; no row is decoded for it."""
        if prefix:
            return sum(1 for _ in self.keys(txn, prefix))
        db = self._registry.handle(self.name)
        return 0 if db is None else int(txn.raw.stat(db)["entries"])


class Registry:
    """The open environment.

    `read` and `write` give transactions; a write waits for the one other writer, in any process.
    Never call `write` inside a transaction of the same thread.
    """

    _open: ClassVar[dict[tuple[int, int, int], _Shared]] = {}
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, path: Path, shared: _Shared, key: tuple[int, int, int]) -> None:
        self.path = path
        self._shared = shared
        self._key = key
        self._closed = False

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """Open the environment in a directory, making it when it is not there (unless read_only).

        Raises:
            UnsupportedHome: on a network or FUSE filesystem.
            NotFound: when read_only and there is none.
            ReadOnly, StorageFull: when it cannot be made.
            TooNew: when a newer program wrote it.
        """
        check_fit(path)
        with cls._lock, mapped_lmdb_errors(f"opening the registry {path}"):
            if not read_only:
                with mapped_os_errors(f"making the registry {path}"):
                    path.mkdir(parents=True, exist_ok=True)
            elif not (path / "data.mdb").is_file():
                raise NotFound(f"{path}: there is no registry here; check GPU_TRAIN_HOME")
            stat = path.stat()
            key = (os.getpid(), stat.st_dev, stat.st_ino)
            shared = cls._open.get(key)
            if shared is not None and shared.read_only and not read_only:
                raise Busy(f"{path} is open for reading only in this process; close it first")
            if shared is None:
                _ensure_mappable(path, read_only=read_only)
                env = lmdb.open(
                    str(path), map_size=MAP_BYTES, max_dbs=MAX_TABLES, max_readers=MAX_READERS,
                    readonly=read_only, create=not read_only, subdir=True, mode=0o600,
                )  # fmt: skip
                shared = _Shared(env, read_only)
                cls._open[key] = shared
            shared.users += 1
            registry = cls(path, shared, key)
        try:
            registry._check_format()
        except BaseException:
            registry.close()
            raise
        return registry

    @property
    def read_only(self) -> bool:
        """Whether no write transaction can be had."""
        return self._shared.read_only

    def close(self) -> None:
        """Give the environment back; the last user of the process closes it. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._shared.users -= 1
            if self._shared.users == 0:
                self._open.pop(self._key, None)
                if self._key[0] == os.getpid():
                    self._shared.env.close()

    def table(self, name: str) -> Table:
        """A table by name, made when first asked for; to be called outside of transactions, which cannot see it."""
        self.open_tables([name])
        return Table(self, name)

    def open_tables(self, names: Iterable[str]) -> None:
        """Open tables, making those that are not there; all together, since each time may cost a synced transaction.

        The first time in a process it waits for a running writer (py-lmdb opens tables in a write
        transaction), unless the registry was opened read_only.
        """
        env, tables = self._shared.env, self._shared.tables
        new = [name for name in names if name not in tables]
        if not new:
            return
        what = f"opening the table {', '.join(new)}"
        self._refuse_within_write(what)
        with self._lock, mapped_lmdb_errors(what):
            if self.read_only:
                for name in new:
                    with suppress(lmdb.NotFoundError):
                        tables[name] = env.open_db(name.encode(), create=False)
                return
            with env.begin(write=True) as raw:
                opened = {name: env.open_db(name.encode(), txn=raw) for name in new}
            tables.update(opened)

    def handle(self, name: str) -> Any:
        """LMDB's handle of a table, or None for one that a read-only registry does not have."""
        if name not in self._shared.tables:
            self.open_tables([name])
        return self._shared.tables.get(name)

    @contextmanager
    def read(self) -> Iterator[Txn]:
        """A snapshot to read from; keep it short, since old pages stay while it lives."""
        with mapped_lmdb_errors("reading the registry"):
            raw = self._shared.env.begin()
        try:
            yield Txn(raw, writing=False)
        finally:
            raw.abort()

    @contextmanager
    def write(self) -> Iterator[Txn]:
        """A write transaction: durable when the block ends, undone when it raises.

        Raises:
            ReadOnly: when the registry was opened for reading only.
            StorageFull: when the disk or the map is full; nothing was changed.
        """
        if self.read_only:
            raise ReadOnly(f"{self.path}: the home is read-only; set GPU_TRAIN_HOME to one that can be written")
        self._refuse_within_write("a write transaction")
        with mapped_lmdb_errors("writing the registry"):
            raw = self._shared.env.begin(write=True)
        self._shared.writer = threading.get_ident()
        try:
            yield Txn(raw, writing=True)
        except BaseException:
            self._shared.writer = 0
            raw.abort()
            raise
        self._shared.writer = 0
        with mapped_lmdb_errors("writing the registry", self.path):
            raw.commit()

    def _refuse_within_write(self, what: str) -> None:
        """Fail where LMDB would wait for this very thread, forever."""
        if self._shared.writer == threading.get_ident():
            raise UsageError(f"{what} inside a write transaction of the same thread; do it before")

    def stale_readers(self) -> int:
        """Free the slots of readers whose process is gone; how many there were."""
        return int(self._shared.env.reader_check())

    def size_bytes(self) -> int:
        """Bytes of the map in use."""
        info, stat = self._shared.env.info(), self._shared.env.stat()
        return int((info["last_pgno"] + 1) * stat["psize"])

    def _check_format(self) -> None:
        self.open_tables(TABLES)
        meta = self.table("meta")
        with self.read() as txn:
            row = meta.get(txn, b"format")
        if row is None:
            if not self.read_only:
                with self.write() as txn:
                    if meta.get(txn, b"format") is None:
                        meta.put(txn, b"format", {"v": 1, "format": FORMAT, "needs": FORMAT})
            return
        if row["needs"] > FORMAT:
            raise TooNew(
                f"{self.path} needs store format {row['needs']}, this gpu-train knows {FORMAT}; "
                "install the version that wrote it, or a later one"
            )


def _ensure_mappable(path: Path, *, read_only: bool) -> None:
    with mapped_os_errors(f"opening the registry {path}"):
        if size_if_there(path / "data.mdb"):
            ensure_length(path / "data.mdb", read_only=read_only)
        try:
            ensure_locks(path / "lock.mdb", MAX_READERS)
        except OSError as e:
            if not (read_only and e.errno in (errno.EROFS, errno.EACCES)):  # LMDB then does without locks
                raise


@contextmanager
def mapped_lmdb_errors(what: str, path: Path | None = None) -> Iterator[None]:
    """Turn LMDB's errors into ours; `what` names what was being done, `path` the disk written to, if any.

    Raises:
        StorageFull, ReadOnly, Busy, Damaged: as the cause says.
    """
    try:
        yield
    except lmdb.Error as e:
        raise _ours(e, what, path) from e


def _ours(e: lmdb.Error, what: str, path: Path | None = None) -> GpuTrainError:
    """What we raise for an error of LMDB's."""
    text = str(e)
    match e:
        case lmdb.MapFullError() | lmdb.DbsFullError():
            return StorageFull(f"{what}: the registry's map is full ({MAP_BYTES >> 30} GiB); run `gpu-train gc`")
        case lmdb.ReadersFullError():
            return Busy(f"{what}: all {MAX_READERS} reader slots are taken; run `gpu-train doctor`")
        case lmdb.CorruptedError() | lmdb.PageNotFoundError() | lmdb.InvalidError() | lmdb.VersionMismatchError():
            return Damaged(f"{what}: {text}; run `gpu-train repair --rebuild-registry`")
        case lmdb.ReadonlyError():
            return ReadOnly(f"{what}: {text}")
    # LMDB says EIO where the disk took only a part of what it wrote.
    part = path is not None and os.strerror(errno.EIO) in text and _nearly_full(path)
    if part or os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text:
        return StorageFull(f"{what}: no space left on the disk; free some and try again")
    if os.strerror(errno.EROFS) in text or os.strerror(errno.EACCES) in text:
        return ReadOnly(f"{what}: {text}; set GPU_TRAIN_HOME to a place that can be written")
    return Damaged(f"{what}: {text}; see `gpu-train doctor`")


def _nearly_full(path: Path) -> bool:
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize < NEARLY_FULL_BYTES
