"""Code versions: the exact tree that a job ran, named by its content.

    version = workspace.code.snapshot(Path("."))      # before each run; a known tree costs a walk
    workspace.code.restore(version.id, dest)          # the same tree again
    workspace.code.export(version.id)                 # <home>/code/<id>.tar.gz

The name is the first 16 hex digits of the tree's content identity: names, kinds, modes and bytes, blind to
times (cas/spec/blocks.md, Trees). What is left out is said in `exclude`; a version tells what it was.
Committing a version puts one record of kind "code" and one row of the table "code" (key: the name).
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_train.config import Config
from gpu_train.exclude import Excludes
from gpu_train.git import GitFacts, git_facts
from gpu_train.home import Home
from gpu_train.listing import LeftOut, Listing, list_folder
from gpu_train.stat_cache import StatCache, signature_of
from gpu_train_cas import Digest, OnProgress, Record, Row, Store, Transaction, Txn
from gpu_train_cas.digest import DIGEST_BYTES
from gpu_train_cas.errors import Damaged, GpuTrainError, NotFound, SourceChanged, UsageError, mapped_os_errors

if TYPE_CHECKING:
    from gpu_train.difference import Difference

KIND = "code"
ID_DIGITS = 16
ATTEMPTS = 3
"""How often a tree that changes while it is read is read again."""


@dataclass(frozen=True, slots=True)
class CodeVersion:
    """One code version.

    Attributes:
        id: 16 hex digits; the same for the same names, kinds, modes and bytes.
        record: the digest of the record that keeps it.
        created_ns: when it was first stored, nanoseconds since the epoch.
        files: regular files in it.
        size_bytes: their bytes.
        path: the folder that it was first taken from.
        git: commit, branch and dirtiness; None when the folder was in no git working tree.
        left_out: what the excludes kept away.
        skipped: what cannot be stored: sockets, FIFOs, devices, and files that kept changing while they were
            read, such as the log of another run.
        new: whether this snapshot stored it; False when it was there, and for versions that are looked up.
        new_bytes: original bytes that this snapshot added to the store.

    `git`, `left_out` and `skipped` are those of the snapshot that returned it; of a version that is looked up, those of
    the first.
    """

    id: str
    record: Digest
    created_ns: int
    files: int
    size_bytes: int
    path: str
    git: GitFacts | None
    left_out: LeftOut
    skipped: tuple[str, ...] = ()
    new: bool = False
    new_bytes: int = 0


class CodeVersions:
    """The code versions of a home. Threads and processes may take snapshots at the same time.

    `clock` tells the time in nanoseconds that files' times are compared with (see `stat_cache`).
    """

    def __init__(self, home: Home, config: Config, store: Store, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._home = home
        self._config = config
        self._store = store
        self._table = store.registry.table(KIND)
        self._clock = clock

    def snapshot(
        self, path: Path | str, *, gitignore: bool | None = None, leave_out: Iterable[Path] = (),
        progress: OnProgress | None = None,
    ) -> CodeVersion:  # fmt: skip
        """Store the tree below `path`, unless it is there already; durable on return.

        A tree that changes while it is read is read again, ATTEMPTS times at most, the last time without the
        files that changed during the time before.

        Args:
            path: the project's folder.
            gitignore: whether `.gitignore` files count; None takes `defaults.use_gitignore`.
            leave_out: more folders and files to leave out, such as the job's checkpoints; the home always is.
            progress: told how far the reading is.

        Raises:
            NotFound, UsageError: when `path` is not there or no folder, or an ignore file has a wrong pattern.
            SourceChanged: when the tree changed each time.
            GpuTrainError: when something cannot be read; Denied, StorageFull, ReadOnly as their cause says.
        """
        root = _folder(path)
        defaults = self._config.defaults
        excludes = Excludes.for_root(
            root, gitignore=defaults.use_gitignore if gitignore is None else gitignore,
            lines=defaults.code_exclude, always=[self._home.root, *leave_out],
        )  # fmt: skip
        with ThreadPoolExecutor(1, thread_name_prefix="git") as pool:  # git looks while we walk
            facts = pool.submit(git_facts, root)
            before = Listing()
            for attempt in range(1, ATTEMPTS + 1):
                cache = StatCache.open(self._home.cache, KIND, root, clock=self._clock)
                listing = list_folder(root, excludes, cache)
                if attempt == ATTEMPTS:
                    listing.leave_moving(before)
                try:
                    return self._settle(root, listing, cache, facts.result, progress)
                except SourceChanged:
                    if attempt == ATTEMPTS:
                        raise
                before = listing
        raise AssertionError("the last attempt returns or raises")

    def list(self) -> Sequence[CodeVersion]:
        """All versions, newest first."""
        with self._store.registry.read() as txn:
            rows = [(key.decode(), row) for key, row in self._table.scan(txn) if self._alive(txn, row)]
        versions = [_version(name, *self._record(row)) for name, row in rows]
        return sorted(versions, key=lambda v: (-v.created_ns, v.id))

    def ids(self) -> Sequence[str]:
        """The ids of all versions, in no order; no record is read for it."""
        with self._store.registry.read() as txn:
            return [key.decode() for key, row in self._table.scan(txn) if self._alive(txn, row)]

    def get(self, prefix: str) -> CodeVersion:
        """The version whose id begins with `prefix`.

        Raises:
            NotFound: when there is none.
            UsageError: when several do.
        """
        name, row = self._find(prefix)
        return _version(name, *self._record(row))

    def restore(
        self, prefix: str, dest: Path | str, *, overwrite: bool = False, progress: OnProgress | None = None
    ) -> CodeVersion:
        """Write a version's tree to the folder `dest`: names, modes, links and empty folders as they were.

        Raises:
            NotFound, UsageError: as for `get`.
            DestinationExists: when `dest` holds something and `overwrite` is not given.
            Damaged, StorageFull: as their cause says; `dest` never looks complete then.
        """
        name, row = self._find(prefix)
        digest, record = self._record(row)
        self._store.restore(record.root, Path(dest), overwrite=overwrite, progress=progress)
        return _version(name, digest, record)

    def export(self, prefix: str) -> Path:
        """Write a version as `<home>/code/<id>.tar.gz` and return that path.

        The same version gives the same bytes in every home: sorted names, no owners, no times.

        Raises:
            NotFound, UsageError: as for `get`.
            Damaged, StorageFull: as their cause says; an older export stays as it was then.
        """
        from gpu_train.tarball import write_tarball  # noqa: PLC0415

        name, row = self._find(prefix)
        _, record = self._record(row)
        target = self._home.code / f"{name}.tar.gz"
        with mapped_os_errors(f"writing {target}"):
            write_tarball(self._store.reader, record.root, target)
        return target

    def diff(self, old: str, new: str) -> Difference:
        """What changed from one version to another.

        Raises:
            NotFound, UsageError: as for `get`.
        """
        from gpu_train.difference import tree_difference  # noqa: PLC0415

        (_, before), (_, after) = self._find(old), self._find(new)
        return tree_difference(self._store.reader, self._record(before)[1].root, self._record(after)[1].root)

    # Taking a snapshot

    def _settle(
        self, root: Path, listing: Listing, cache: StatCache, facts: Callable[[], GitFacts | None],
        progress: OnProgress | None,
    ) -> CodeVersion:  # fmt: skip
        """The version of a listing, known or stored now."""
        fingerprint = listing.fingerprint()
        version = self._unchanged(cache, fingerprint)
        if version is None:
            version = self._read_in(root, listing, cache, facts, progress)
            cache.whole = None if listing.is_racy(cache.moment_ns) else [fingerprint, version.id]
            cache.save()
        skipped = tuple(os.fsdecode(path) for path in listing.skipped)
        return dataclasses.replace(version, git=facts(), left_out=listing.left_out, skipped=skipped)

    def _unchanged(self, cache: StatCache, fingerprint: bytes) -> CodeVersion | None:
        """The version that the cache names for exactly this listing, when the store still has it."""
        if cache.whole is None or cache.whole[0] != fingerprint:
            return None
        name = str(cache.whole[1])
        with self._store.registry.read() as txn:
            row = self._table.get(txn, name.encode())
            if row is None or not self._alive(txn, row):
                return None
        return _version(name, *self._record(row))

    def _read_in(
        self, root: Path, listing: Listing, cache: StatCache, facts: Callable[[], GitFacts | None],
        progress: OnProgress | None,
    ) -> CodeVersion:  # fmt: skip
        kept = {path for path, _ in listing.items}
        with self._store.writer("code snapshot") as writer, mapped_os_errors(f"storing {root}"):
            try:
                added = writer.add_tree(
                    root, exclude=lambda path, _: path not in kept, cache=_FileDigests(cache), progress=progress
                )
            except PermissionError as e:
                raise GpuTrainError(_first_unreadable(root, listing)) from e
            name = added.root.identity.hex()[:ID_DIGITS]
            with self._store.registry.read() as txn:
                row = self._table.get(txn, name.encode())
                known = row if row is not None and self._alive(txn, row) else None
            if known is not None:
                digest, record = self._record(known)
                if record.root.identity != added.root.identity:
                    raise Damaged(f"code version {name}: two different trees of that name; keep one elsewhere")
                return _version(name, digest, record)
            meta = {
                "path": os.fsdecode(root), "left_out": listing.left_out.to_row(),
                "git": None if (git := facts()) is None else git.to_row(),
                "skipped": [os.fsdecode(p) for p in listing.skipped],
            }  # fmt: skip
            record = Record(KIND, "", name, time.time_ns(), added.root, meta)
            with writer.commit() as commit:
                digest, first = self._put(commit, name, record)
        version = _version(name, digest, record if first else self._store.record(digest))
        return dataclasses.replace(version, new=first, new_bytes=added.new_bytes if first else 0)

    def enter_in(self, commit: Transaction, record: Record) -> None:
        """Enter a version that came from elsewhere with all that it needs, as part of a transaction."""
        self._put(commit, record.name, record)

    def _put(self, commit: Transaction, name: str, record: Record) -> tuple[Digest, bool]:
        """Commit a version; False when another process was faster, or it was only in the trash."""
        row = commit.get(self._table, name.encode())
        if row is not None:
            digest = Digest(row["record"])
            kept = self._store.tables.records.get(commit.txn, digest)
            if kept is not None:
                if kept["trashed_ns"] is not None:
                    commit.restore_trashed(digest)
                return digest, False
        digest = commit.put_record(record)
        commit.put(self._table, name.encode(), (row or {}) | {"v": 1, "record": digest}, durable=True)
        return digest, True

    # Looking versions up

    def _find(self, prefix: str) -> tuple[str, Row]:
        wanted = prefix.strip().lower().encode()
        with self._store.registry.read() as txn:
            found = [(k, row) for k, row in self._table.scan(txn, wanted) if self._alive(txn, row)]
        if not wanted or not found:
            raise NotFound(f"code version {prefix!r} is not in this home; `gpu-train code` lists those that are")
        if len(found) > 1:
            names = ", ".join(key.decode() for key, _ in found[:5])
            raise UsageError(f"code version {prefix!r} could be {names}; give more digits")
        key, row = found[0]
        return key.decode(), row

    def _alive(self, txn: Txn, row: Row) -> bool:
        return self._store.tables.holds(txn, Digest(row["record"]))

    def _record(self, row: Row) -> tuple[Digest, Record]:
        digest = Digest(row["record"])
        return digest, self._store.record(digest)


class _FileDigests:
    """A StatCache in the engine's words: of each file its digest and its manifest."""

    def __init__(self, cache: StatCache) -> None:
        self._cache = cache

    def lookup(self, path: bytes, found: os.stat_result) -> tuple[Digest, Digest | None] | None:
        value = self._cache.get(path, signature_of(found))
        if value is None:
            return None
        manifest = value[DIGEST_BYTES:]
        return Digest(value[:DIGEST_BYTES]), Digest(manifest) if manifest else None

    def remember(self, path: bytes, found: os.stat_result, digest: Digest, manifest: Digest | None) -> None:
        self._cache.put(path, signature_of(found), digest + (manifest or b""))


def _folder(path: Path | str) -> Path:
    """The real folder at `path`."""
    root = Path(os.path.realpath(path))
    if not root.exists():
        raise NotFound(f"{path} is not there; give the project's folder")
    if not root.is_dir():
        raise UsageError(f"{path} is no folder; give the project's folder")
    return root


def _first_unreadable(root: Path, listing: Listing) -> str:
    """What to say when something in a listing may not be read."""
    paths = (os.path.join(os.fsencode(root), path) for path, _ in listing.items)
    refused = (p for p in paths if not os.path.islink(p) and not os.access(p, os.R_OK))
    where = os.fsdecode(next(refused, os.fsencode(root)))
    return f"{where}: permission denied; make it readable, or name it in .gpu-trainignore"


def _version(name: str, digest: Digest, record: Record) -> CodeVersion:
    meta = record.meta
    return CodeVersion(
        name, digest, record.created_ns, record.root.files, record.root.size_bytes, str(meta.get("path", "")),
        GitFacts.from_row(meta.get("git")), LeftOut.from_row(meta.get("left_out", {})),
        tuple(meta.get("skipped", ())),
    )  # fmt: skip
