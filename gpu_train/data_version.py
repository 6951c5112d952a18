"""Data versions: what a data set held, named by its content; the data itself stays where it is.

    version = workspace.data.register(Path("data/train"), name="imdb")
    workspace.data.resolve("imdb")                     # its path, after checking that the bytes are that version
    workspace.data.resolve(f"imdb@{version.version}")

A version is a manifest (`data_manifest`) under a name. It is kept as a record of kind "data" (owner: the name)
whose tree holds `manifest.json`, as a row of the table "data" (key: name, NUL, version), which says where the
data lies, and as `<home>/data/<name>/<version>.json` for people and other programs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gpu_train.data_listing import DataListing, list_data
from gpu_train.data_manifest import DataFile, DataManifest
from gpu_train.difference import Difference
from gpu_train.environment import JobEnvironment
from gpu_train.errors import DataChanged
from gpu_train.home import Home
from gpu_train.sha256 import ToHash, hash_files
from gpu_train.spelling import near
from gpu_train.stat_cache import StatCache
from gpu_train.tables import Jobs
from gpu_train_cas import Digest, OnProgress, Record, Row, Store, Transaction
from gpu_train_cas.errors import Damaged, NotFound, UsageError, mapped_os_errors
from gpu_train_cas.filesystem import replacing

KIND = "data"
MANIFEST_NAME = b"manifest.json"
SHOWN = 5
"""How many differing files an error names."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True, slots=True)
class DataVersion:
    """One version of some data.

    Attributes:
        name: the data's name.
        version: 16 hex digits; the same for the same paths, sizes and bytes.
        num_files: files in it.
        size_bytes: their bytes.
        path: where the data lay when it was last registered.
        created_ns: when this version was first registered, nanoseconds since the epoch.
        registered_ns: when it was last registered; the latest is what the bare name means.
        record: the digest of the record that keeps its manifest.
        skipped: what is not in it: dangling and endless links, sockets, FIFOs, devices.
        new: whether this call registered it; False when it was there.
    """

    name: str
    version: str
    num_files: int
    size_bytes: int
    path: Path
    created_ns: int
    registered_ns: int
    record: Digest
    skipped: tuple[str, ...] = ()
    new: bool = False

    @property
    def ref(self) -> str:
        """How it is written: "name@version"."""
        return f"{self.name}@{self.version}"


class DataVersions:
    """The data versions of a home. Threads and processes may register at the same time.

    `clock` tells the time in nanoseconds that files' times are compared with (see `stat_cache`).
    """

    def __init__(self, home: Home, store: Store, jobs: Jobs, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._home = home
        self._store = store
        self._jobs = jobs
        self._table = store.registry.table(KIND)
        self._clock = clock

    def register(
        self, path: Path | str, name: str, *, rehash: bool = False, progress: OnProgress | None = None
    ) -> DataVersion:
        """Record what the file or folder at `path` holds, under `name`; durable on return.

        Files that look unchanged since they were last read are not read again, unless `rehash`. The same
        content again is the same version and changes nothing, except where it is expected to lie.

        Raises:
            UsageError: for a name that cannot be used.
            NotFound: when there is nothing at `path`.
            SourceChanged: when files change while they are read.
            GpuTrainError: when something cannot be read; StorageFull, ReadOnly as their cause says.
        """
        check_name(name)
        listing = list_data(Path(os.path.abspath(path)), home=self._home.root)
        if not listing.files:
            raise UsageError(f"{path} holds no file that could be registered; give the folder with the data")
        manifest = self._read(listing, rehash=rehash, progress=progress)
        version = manifest.version()
        with self._store.registry.read() as txn:
            row = self._table.get(txn, _key(name, version))
            known = row is not None and self._store.tables.holds(txn, Digest(row["record"]))
        if not known:
            self._commit(name, version, listing, manifest)
        elif row is not None and (row["path"] != str(listing.root) or self.get(name).version != version):
            with self._store.transaction("data") as commit:
                self._put_row(commit, name, version, Digest(row["record"]), listing.root)
        found = self._version(name, version)
        self._export(found)
        return replace(found, new=not known)

    def list(self, name: str | None = None) -> Sequence[DataVersion]:
        """All versions, of one name or all, the last registered first."""
        versions = [self._version(*_names_of(key)) for key, _ in self._rows(name)]
        return sorted(versions, key=lambda v: (-v.registered_ns, v.ref))

    def refs(self) -> Sequence[str]:
        """How all versions are written, the last registered first; no record is read for it."""
        rows = sorted(self._rows(None), key=lambda found: -int(found[1]["registered_ns"]))
        return ["@".join(_names_of(key)) for key, _ in rows]

    def get(self, ref: str) -> DataVersion:
        """The version that "name" (the last registered) or "name@version" means; a unique beginning will do.

        Raises:
            NotFound: when there is none, naming what is near.
            UsageError: when several versions begin so.
        """
        name, at, wanted = ref.partition("@")
        rows = {_names_of(key)[1]: row for key, row in self._rows(name)}
        if not rows:
            raise NotFound(f"no data named {name!r}; {self._near(name)}")
        if not at:
            return self._version(name, max(rows, key=lambda version: int(rows[version]["registered_ns"])))
        begun = [version for version in rows if wanted and version.startswith(wanted.lower())]
        if not begun:
            known = ", ".join(list(rows)[:SHOWN])
            raise NotFound(f"data {name!r} has no version {wanted!r}; there are {known}")
        if len(begun) > 1:
            raise UsageError(f"{ref!r} could be {', '.join(begun[:SHOWN])}; give more digits")
        return self._version(name, begun[0])

    def manifest(self, ref: str) -> DataManifest:
        """The files of a version.

        Raises:
            NotFound, UsageError: as for `get`.
            Damaged: when the manifest cannot be read back.
        """
        return self._manifest(self.get(ref))

    def resolve(self, ref: str, *, verify: bool = False, progress: OnProgress | None = None) -> Path:
        """Where a version's data lies, after making sure that the bytes there still are that version.

        Files that look as when they were last read are taken as unchanged; the others are read. `verify`
        reads all. Inside a job the version is noted on the job.

        Raises:
            NotFound, UsageError: as for `get`; NotFound also when the path is gone.
            DataChanged: naming the first files that differ.
        """
        version = self.get(ref)
        if found := self._compare(version, everything=verify, complete=False, progress=progress):
            raise DataChanged(_changed_message(version, found), version.name, version.version)
        self._note_on_job(version.ref)
        return version.path

    def verify(self, ref: str, *, progress: OnProgress | None = None) -> Difference:
        """Read all of a version's files and say how they differ from it; empty when they do not.

        Raises:
            NotFound, UsageError: as for `resolve`.
        """
        return self._compare(self.get(ref), everything=True, complete=True, progress=progress)

    def diff(self, old: str, new: str) -> Difference:
        """What changed from one version to another, also of another name.

        Raises:
            NotFound, UsageError: as for `get`.
        """
        before, after = self.manifest(old), self.manifest(new)
        return Difference.of({f.path: f for f in before.files}, {f.path: f for f in after.files})

    # Reading the data

    def _read(self, listing: DataListing, *, rehash: bool, progress: OnProgress | None) -> DataManifest:
        """The manifest of what is on disk."""
        cache = StatCache.open(self._home.cache, KIND, listing.root, clock=self._clock)
        files, unknown = [], []
        for path, signature in listing.files.items():
            digest = None if rehash else cache.get(path, signature)
            if digest is None:
                unknown.append(ToHash(path, listing.location(path), signature[0]))
            else:
                files.append(DataFile(path, signature[0], digest))
        for path, (signature, digest) in hash_files(unknown, progress=progress).items():
            cache.put(path, signature, digest)
            files.append(DataFile(path, signature[0], digest))
        cache.save()
        return DataManifest.of(files)

    def _compare(
        self, version: DataVersion, *, everything: bool, complete: bool, progress: OnProgress | None
    ) -> Difference:
        """How the data at a version's path differs from it; unless `complete` only as far as is cheap."""
        try:
            listing = list_data(version.path, home=self._home.root)
        except NotFound as e:
            raise NotFound(
                f"{version.ref} should be at {version.path}, which is not there; put it back, or register it "
                f"where it is now: gpu-train data --register PATH --name {version.name}"
            ) from e
        wanted = {file.path: file for file in self._manifest(version).files}
        sizes = {path: signature[0] for path, signature in listing.files.items()}
        by_size = Difference.of({path: file.size_bytes for path, file in wanted.items()}, sizes)
        if by_size and not complete:
            return by_size
        found = {file.path: file for file in self._read(listing, rehash=everything, progress=progress).files}
        return Difference.of(wanted, found)

    # Keeping versions

    def _commit(self, name: str, version: str, listing: DataListing, manifest: DataManifest) -> None:
        now = time.time_ns()
        skipped = [os.fsdecode(s.path) for s in listing.skipped]
        meta = {
            "path": str(listing.root), "num_files": len(manifest.files), "size_bytes": manifest.size_bytes,
            "skipped": skipped,
        }  # fmt: skip
        facts = {
            "name": name, "version": version, "path": str(listing.root), "is_folder": listing.is_folder,
            "created": datetime.fromtimestamp(now / 1e9, UTC).isoformat().replace("+00:00", "Z"),
        }  # fmt: skip
        file = self._json_path(name, version)
        _replace_file(file, manifest.to_json(facts, listing.skipped))
        with self._store.writer("data manifest") as writer:
            added = writer.add_file(file, name=MANIFEST_NAME)
            with writer.commit() as commit:
                row = commit.get(self._table, _key(name, version))
                record = None if row is None else Digest(row["record"])
                kept = None if record is None else self._store.tables.records.get(commit.txn, record)
                if record is None or kept is None:
                    record = commit.put_record(Record(KIND, name, version, now, added.root, meta))
                elif kept["trashed_ns"] is not None:
                    commit.restore_trashed(record)
                self._put_row(commit, name, version, record, listing.root)

    def _put_row(self, commit: Transaction, name: str, version: str, record: Digest, path: Path) -> None:
        row = commit.get(self._table, _key(name, version)) or {"v": 1}
        row |= {"record": record, "path": str(path), "registered_ns": time.time_ns()}
        commit.put(self._table, _key(name, version), row, durable=True)

    def _export(self, version: DataVersion) -> None:
        """Write the manifest below the home, when it is not there."""
        file = self._json_path(version.name, version.version)
        if not file.exists():
            _replace_file(file, self._manifest_bytes(version))

    def _json_path(self, name: str, version: str) -> Path:
        return self._home.data / name / f"{version}.json"

    def _note_on_job(self, ref: str) -> None:
        """Add a version to the data of the job that this process belongs to, if it belongs to one here."""
        environment = JobEnvironment.read()
        if environment.job_id is None or environment.home is None or self._store.registry.read_only:
            return
        job = self._jobs.get(environment.job_id)
        if Home.locate(environment.home) != self._home or job is None or ref in job.data:
            return
        with self._store.transaction("data of a job") as txn:
            job = self._jobs.get(environment.job_id, txn.txn)
            if job is not None and ref not in job.data:
                self._jobs.update_in(txn, job.id, data=(*job.data, ref))

    # Looking versions up

    def _rows(self, name: str | None) -> Sequence[tuple[bytes, Row]]:
        """Keys and rows of the versions that are not in the trash."""
        prefix = b"" if name is None else _key(name, "")
        tables = self._store.tables
        with self._store.registry.read() as txn:
            rows = self._table.scan(txn, prefix)
            return [(key, row) for key, row in rows if tables.holds(txn, Digest(row["record"]))]

    def _version(self, name: str, version: str) -> DataVersion:
        with self._store.registry.read() as txn:
            row = self._table.get(txn, _key(name, version))
        if row is None:
            raise NotFound(f"data {name}@{version} is gone; register it again")
        record = self._store.record(Digest(row["record"]))
        meta = record.meta
        return DataVersion(
            name, version, int(meta["num_files"]), int(meta["size_bytes"]), Path(row["path"]), record.created_ns,
            int(row["registered_ns"]), Digest(row["record"]), tuple(meta.get("skipped", ())),
        )  # fmt: skip

    def _manifest(self, version: DataVersion) -> DataManifest:
        manifest = DataManifest.from_json(self._manifest_bytes(version))
        if manifest.version() != version.version:
            raise Damaged(f"{version.ref}: its manifest is another version's; register the data again")
        return manifest

    def _manifest_bytes(self, version: DataVersion) -> bytes:
        reader = self._store.reader
        file = reader.open(reader.lookup(self._store.record(version.record).root, MANIFEST_NAME))
        return file.pread(file.size_bytes, 0)

    def _near(self, name: str) -> str:
        names = sorted({_names_of(key)[0] for key, _ in self._rows(None)})
        meant = near(name, names)
        return f"did you mean {', '.join(meant)}?" if meant else "`gpu-train data` lists what there is"


def check_name(name: str) -> None:
    """Refuse a name that could not be a folder's or could not be written as "name@version".

    Raises:
        UsageError: saying what is allowed.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"data name {name!r}: use 1 to 100 letters, digits, '.', '_', '+' or '-', "
            "beginning with a letter, a digit or '_'"
        )


def _key(name: str, version: str) -> bytes:
    return f"{name}\0{version}".encode()


def _names_of(key: bytes) -> tuple[str, str]:
    name, _, version = key.decode().partition("\0")
    return name, version


def _changed_message(version: DataVersion, found: Difference) -> str:
    """What to say of data that differs: how much, the first few paths, and what to do."""
    kinds = [("changed", found.changed), ("missing", found.removed), ("new", found.added)]
    told = [
        f"{len(paths)} {kind}: {', '.join(paths[:SHOWN])}{', ...' if len(paths) > SHOWN else ''}"
        for kind, paths in kinds
        if paths
    ]
    return (
        f"{version.ref}: the data at {version.path} is not that version any more ({'; '.join(told)}); put the "
        f"files back, or register what is there now: "
        f"gpu-train data --register {version.path} --name {version.name}"
    )


def _replace_file(target: Path, data: bytes) -> None:
    """Write a file whole and durable, or leave what is there."""
    with mapped_os_errors(f"writing {target}"), replacing(target) as out:
        out.write(data)
