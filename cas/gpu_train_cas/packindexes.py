"""Where frames lie in packs elsewhere, told by the packs' own indexes alone (cas/spec/sources.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import Damaged, GpuTrainError, Unreachable
from gpu_train_cas.pack import PackEntry, index_at_end
from gpu_train_cas.patience import PatientRanges, Ranges
from gpu_train_cas.remote import Place

TAIL_BYTES = 64 << 10
"""The index of a full pack of 1 MiB blocks has about 25 KB: one range, nearly always."""

AT_ONCE = 8


class PackIndexes:
    """See `Locator`. Each index is read once, when a frame is first looked for; about 300 bytes a frame are kept.

    Packs whose index could not be read are tried again with each frame that is not found in the others.
    """

    def __init__(self, ranges: Ranges, packs: Mapping[Digest, int], key: Callable[[Digest], str]) -> None:
        """Look in these packs, given with their sizes in bytes; `key` is where one lies."""
        self._ranges = ranges if isinstance(ranges, PatientRanges) else PatientRanges(ranges)
        self._key = key
        self._unread = dict(packs)
        self._damaged: dict[Digest, Damaged] = {}
        self._places: dict[Digest, Place] = {}
        self._reading = threading.Lock()

    def find(self, digest: Digest) -> Place | None:
        """See `Locator`."""
        place = self._places.get(digest)
        if place is None and (self._unread or self._damaged):
            with self._reading:  # whoever comes meanwhile finds all in place
                failure = self._read_indexes()
            place = self._places.get(digest)
            if place is None and failure is not None:
                raise failure
        return place

    def _read_indexes(self) -> GpuTrainError | None:
        """Read what was not read yet; what is to be said of a frame that is in no index."""
        names = list(self._unread)
        failures: list[GpuTrainError] = []
        if names:
            with ThreadPoolExecutor(min(AT_ONCE, len(names)), thread_name_prefix="pack indexes") as pool:
                for name, answer in zip(names, pool.map(self._index, names), strict=True):
                    if isinstance(answer, Unreachable):
                        failures.append(answer)
                        continue
                    del self._unread[name]
                    if isinstance(answer, Damaged):
                        self._damaged[name] = answer
                    else:
                        self._enter(name, answer)
        return next(iter([*failures, *self._damaged.values()]), None)

    def _index(self, name: Digest) -> list[PackEntry] | Unreachable | Damaged:
        key, size = self._key(name), self._unread[name]
        tail_at = max(0, size - TAIL_BYTES)

        def read(length: int, offset: int) -> bytes:
            if offset >= tail_at:
                return tail[offset - tail_at : offset - tail_at + length]
            return self._ranges.read(key, tail_at - offset, offset) + tail[: length - (tail_at - offset)]

        try:
            tail = self._ranges.read(key, size - tail_at, tail_at)
            entries = index_at_end(read, size, key)
        except (Unreachable, Damaged) as e:
            return e
        except GpuTrainError as e:  # not there, or newer than this program
            return Damaged(f"{key}: {e}")
        return entries

    def _enter(self, name: Digest, entries: Iterable[PackEntry]) -> None:
        key = self._key(name)
        for entry in entries:
            header = entry.header
            self._places.setdefault(
                header.digest, Place(key, entry.offset, entry.end - entry.offset, header.references)
            )
