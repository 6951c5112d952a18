"""Answers of the catalogue, kept until the registry changes, and the paths that changed since they were given."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from gpu_train_cas import Digest, Entry, EntryKind
from gpu_train_cas.errors import Damaged, GpuTrainError, NotFound
from gpu_train_fuse.holds import Holds
from gpu_train_fuse.listing import Catalogue, Listing, Places, ShownCheckpoint, ShownCode, ShownJob
from gpu_train_fuse.node import DecodedTrees, Directory, Objects, Origin, StoredDirectory

READING_LOCKS = 16
"""A lock for each job would be one for each name that somebody ever mistyped."""

MAX_ROOTS = 32_768
MAX_MEASURED = 10_000
CHECK_S = 0.05
"""For so long an answer is given again without a look at the registry: one stat(2) needs several answers."""

MIN_AGE_S = 0.5
"""An answer younger than this is believed although the registry changed: metrics change it all the time."""


class Shelf:
    """Safe to share between threads; the lock is held only to look into its own dictionaries."""

    def __init__(self, catalogue: Catalogue, objects: Objects, clock: Callable[[], float] = time.monotonic) -> None:
        self.catalogue = catalogue
        self._objects = DecodedTrees(objects)
        self._clock = clock
        self._holds = Holds(catalogue.holding, clock)
        self._lock = threading.Lock()
        self._listings: dict[tuple[str, bytes], Listing] = {}
        self._reading = [threading.Lock() for _ in range(READING_LOCKS)]
        self._code: tuple[Hashable, float, Mapping[str, ShownCode]] | None = None
        self._models: tuple[Hashable, float, Places] | None = None
        self._roots: OrderedDict[Digest, Entry] = OrderedDict()
        self._stored_bytes: OrderedDict[Digest, int] = OrderedDict()
        self._changes: list[bytes] = []

    def record(self, record: Digest, step: int | None = None) -> StoredDirectory:
        """The root directory of a record; raises Damaged, also when a record that is listed is missing."""
        with self._lock:
            root = self._roots.get(record)
        if root is None:
            try:
                root = self.catalogue.root(record)
            except NotFound as e:
                raise Damaged(f"record {record.hex()[:16]} is listed but missing: {e}") from e
            with self._lock:
                self._roots[record] = root
                if len(self._roots) > MAX_ROOTS:
                    self._roots.popitem(last=False)
        return StoredDirectory(root, Origin(self._objects, record, step, self._holds.holding, self.stored_bytes))

    def stored_bytes(self, entry: Entry) -> int:
        """What a file or folder takes in the store; kept, since programs ask for a length before they ask for it."""
        with self._lock:
            known = self._stored_bytes.get(entry.digest)
        if known is not None:
            return known
        found = self.catalogue.stored_bytes(entry)
        with self._lock:
            self._stored_bytes[entry.digest] = found
            if len(self._stored_bytes) > MAX_MEASURED:
                self._stored_bytes.popitem(last=False)
        return found

    def checkpoint(self, checkpoint: ShownCheckpoint) -> StoredDirectory:
        """The root directory of a checkpoint; raises as `record`."""
        return self.record(checkpoint.record, checkpoint.step)

    def code(self) -> Mapping[str, ShownCode]:
        """Every code version by id."""
        known, now, stamp = self._code, self._clock(), self.catalogue.stamp()
        if known is None or (known[0] != stamp and now - known[1] >= MIN_AGE_S):
            known = self._code = (stamp, now, self.catalogue.code())
        return known[2]

    def models(self) -> Places:
        """Every model, in the folder that is called so."""
        known, now, stamp = self._models, self._clock(), self.catalogue.stamp()
        if known is not None and (known[0] == stamp or now - known[1] < MIN_AGE_S):
            return known[2]
        places = Places(self.catalogue.models())
        self._models = (stamp, now, places)
        if known is not None:
            self._note(self._moved(known[2], places, b"/models"))
        return places

    def listing(self, job_id: str, base: bytes) -> Listing:
        """The job, shown below the path `base`; raises NotFound when it is gone.

        Of several threads that find it outdated one reads it again, and the others wait: a job may have 10,000s of
        checkpoints.
        """
        key = job_id, base
        known = self._listings.get(key)
        if known is not None and self._clock() - known.checked_s < CHECK_S:
            return known
        with self._reading[hash(key) % READING_LOCKS]:
            known = self._listings.get(key)
            now = self._clock()
            if known is not None and now - known.checked_s < CHECK_S:
                return known
            stamp = self.catalogue.stamp()
            if known is not None and (known.stamp == stamp or now - known.read_s < MIN_AGE_S):
                known.checked_s = now
                return known
            fresh = Listing(self.catalogue.job(job_id), stamp, now, now)
            with self._lock:
                self._listings[key] = fresh
            if known is not None:
                self._note(self._differences(known, fresh, base))
            return fresh

    def changes(self) -> list[bytes]:
        """Read again what has been shown and may be different; every path that is, told once.

        Free while the registry stays as it is; else one read of each job that was ever looked at. What nobody reads
        any more is let go.
        """
        self._holds.drop_idle()
        stamp = self.catalogue.stamp()
        if self._models is not None and self._models[0] != stamp:
            self.models()
        with self._lock:
            old = [key for key, listing in self._listings.items() if listing.stamp != stamp]
        for job_id, base in old:
            try:
                self.listing(job_id, base)
            except NotFound:
                self._drop(job_id, base)
        with self._lock:
            changed, self._changes = self._changes, []
        return list(dict.fromkeys(changed))

    def _drop(self, job_id: str, base: bytes) -> None:
        with self._lock:
            gone = self._listings.pop((job_id, base), None)
        if gone is not None:
            self._note(self._differences(gone, Listing(ShownJob(b"", 0), None, 0.0, 0.0), base))

    def _note(self, paths: Iterable[bytes]) -> None:
        found = list(paths)
        with self._lock:
            self._changes += found

    def _differences(self, old: Listing, new: Listing, base: bytes) -> Iterator[bytes]:
        if old.job == new.job:
            return
        yield base or b"/"
        for name in (b"job.json", b"latest", b"best"):
            yield base + b"/" + name
        yield from self._moved(old.places, new.places, base + b"/checkpoints")

    def _moved(self, old: Places, new: Places, folder: bytes) -> Iterator[bytes]:
        """What is different in the folder of all checkpoints, or of all models."""
        if old.paths == new.paths:
            return
        yield folder
        for path in old.paths.keys() | new.paths.keys():
            before, after = old.paths.get(path), new.paths.get(path)
            if before == after:
                continue
            for depth in range(1, len(path) + 1):
                yield folder + b"/" + b"/".join(path[:depth])
            if before is not None and (after is None or after.record != before.record):
                yield from self._replaced(before, folder + b"/" + b"/".join(path))

    def _replaced(self, checkpoint: ShownCheckpoint, at: bytes) -> Iterator[bytes]:
        """Every path below a checkpoint that is no longer shown there."""
        try:
            yield from _below(self.checkpoint(checkpoint), at)
        except GpuTrainError:
            return  # collected or damaged meanwhile: what cannot be read now is not kept by anyone for long


def _below(directory: Directory, at: bytes) -> Iterator[bytes]:
    for name, kind in directory.names():
        path = at + b"/" + name
        yield path
        found = directory.find(name) if kind is EntryKind.DIRECTORY else None
        if isinstance(found, Directory):
            yield from _below(found, path)
