"""Where frames come from: the seam behind the reader (cas/spec/sources.md). Local packs are the first source."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import Damaged
from gpu_train_cas.frame import FrameHeader
from gpu_train_cas.index import Index, Location
from gpu_train_cas.pack import PackReader, pack_path
from gpu_train_cas.registry import Registry

MAX_OPEN_PACKS = 128


class BlockSource(Protocol):
    """One place that may have a frame.

    `fetch` returns the header and the payload of the frame of that digest, or None when this source does
    not have it. It raises Damaged when it has it but the frame is broken, Unreachable when it may have it but
    cannot be asked now; the reader then asks the next source. It ends in bounded time whatever happens. Threads call
    it at the same time. What it returns need not be trusted: the reader proves it.
    """

    def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
        """The frame of that digest, or None."""
        ...


@runtime_checkable
class Foresighted(Protocol):
    """A source that gains by knowing what will be fetched, or that can tell those behind it what need not be."""

    def expect(self, digests: Sequence[Digest]) -> Sequence[Digest]:
        """Blocks that will be fetched soon, in this order; those that it is known not to have. Does not wait."""
        ...


@runtime_checkable
class Forgetful(Protocol):
    """A source that keeps what it fetched; the reader asks it once more for what turned out broken."""

    def forget(self, digest: Digest) -> None:
        """Do not give again what `fetch` gave last."""
        ...


class LocalPacks:
    """The packs of a store, found through its index."""

    def __init__(self, registry: Registry, index: Index, packs: Path) -> None:
        self._registry = registry
        self._index = index
        self._packs = packs
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _Opened] = OrderedDict()

    def close(self) -> None:
        """Close all pack files."""
        with self._lock:
            opened, self._open = list(self._open.values()), OrderedDict()
        for pack in opened:
            pack.drop()

    def locate(self, digest: Digest) -> Location | None:
        """Where the index says the frame is."""
        with self._registry.read() as txn:
            return self._index.get(txn, digest)

    def expect(self, digests: Sequence[Digest]) -> Sequence[Digest]:
        """See `Foresighted`. The disk needs no telling: neighbours in a file lie side by side in a pack."""
        with self._registry.read() as txn:
            return [digest for digest in digests if not self._index.has(txn, digest)]

    def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
        """Read the frame; gc may move it meanwhile, so a pack that is gone is looked up once more."""
        for _ in range(3):
            location = self.locate(digest)
            if location is None:
                return None
            try:
                with self._pack(location.pack) as pack:
                    header, payload = pack.frame(location.offset, location.stored_bytes)
            except FileNotFoundError:
                continue
            except OSError as e:
                raise Damaged(f"pack {location.pack} cannot be read: {e.strerror}") from e
            if header.digest != digest:
                raise Damaged(f"{digest.hex()[:16]}: another frame lies where the index points")
            return header, payload
        raise Damaged(f"{digest.hex()[:16]}: its pack is missing; run `gpu-train verify`")

    @contextmanager
    def _pack(self, number: int) -> Iterator[PackReader]:
        with self._lock:
            opened = self._open.get(number)
            if opened is not None:
                self._open.move_to_end(number)
                opened.take()
        if opened is None:
            opened = self._enter(number, self._load(number))
        try:
            yield opened.reader
        finally:
            opened.drop()

    def _load(self, number: int) -> PackReader:
        with self._registry.read() as txn:
            name = self._index.pack_name(txn, number)
        if name is None:
            raise FileNotFoundError(number)
        return PackReader(pack_path(self._packs, name))

    def _enter(self, number: int, reader: PackReader) -> _Opened:
        """Keep a pack open for the next reads and count one user; another thread may have been faster."""
        with self._lock:
            opened = self._open.get(number)
            if opened is None:
                opened = self._open[number] = _Opened(reader)
            else:
                reader.close()
            opened.take()
            oldest = self._open.popitem(last=False)[1] if len(self._open) > MAX_OPEN_PACKS else None
        if oldest is not None:
            oldest.drop()
        return opened


class _Opened:
    """A pack file shared by threads: closed when the table and the last read let go of it."""

    def __init__(self, reader: PackReader) -> None:
        self.reader = reader
        self.users = 1
        self._lock = threading.Lock()

    def take(self) -> None:
        with self._lock:
            self.users += 1

    def drop(self) -> None:
        with self._lock:
            self.users -= 1
            last = self.users == 0
        if last:
            self.reader.close()
