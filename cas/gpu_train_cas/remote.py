"""Blocks that lie elsewhere: found by a locator, read as ranges of objects, kept for a while (cas/spec/sources.md)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple, Protocol

from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import Damaged, GpuTrainError, NotFound, Unreachable
from gpu_train_cas.frame import FrameHeader
from gpu_train_cas.framecache import FrameCache, MemoryFrames
from gpu_train_cas.patience import PatientRanges, Ranges

JOIN_GAP_BYTES = 256 << 10
"""Places that lie no farther apart are read at once: such a gap costs less than another request on most networks."""

JOIN_BYTES = 8 << 20


_Coming = Future[bytes | None]
"""A frame that is being fetched; None when it is nowhere."""


class Place(NamedTuple):
    """Where a frame lies.

    Attributes:
        key: the object that it is in.
        offset: where in it.
        length: its bytes, header and payload.
        needs: the blocks that it takes to decode it, as far as that is known without reading it.
        bare: the header of a block that lies there without one, as in a plain file; `length` is then the payload's.
    """

    key: str
    offset: int
    length: int
    needs: tuple[Digest, ...] = ()
    bare: FrameHeader | None = None

    @property
    def end(self) -> int:
        """Where it ends in the object."""
        return self.offset + self.length

    def frame(self, data: bytes) -> bytes:
        """The frame, from the bytes that were read there.

        Raises:
            Damaged: when the object ends before it.
        """
        if len(data) != self.length:
            raise Damaged(f"{self.key} ends at {self.offset + len(data)}, before a frame that should lie in it does")
        return data if self.bare is None else self.bare.pack() + data


class Locator(Protocol):
    """Knows where frames lie. Threads may share it."""

    def find(self, digest: Digest) -> Place | None:
        """The place of a frame, None when it is nowhere.

        Raises:
            Unreachable: when it could be somewhere, but that cannot be found out now.
            Damaged: when what would tell is damaged.
        """
        ...


class RemoteBlocks:
    """A `BlockSource` that is told what to expect. Each range is read once, however many wait for what is in it."""

    def __init__(self, locator: Locator, ranges: Ranges, frames: FrameCache | None = None) -> None:
        """`ranges` are asked with patience; a `PatientRanges` is taken as it is."""
        self._locator = locator
        self._ranges = ranges if isinstance(ranges, PatientRanges) else PatientRanges(ranges)
        self._frames: FrameCache = MemoryFrames() if frames is None else frames
        self._coming: dict[Digest, _Coming] = {}
        self._lock = threading.Lock()

    def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
        """See `BlockSource`; raises Unreachable when it cannot be had in time."""
        frame = self._frames.get(digest)
        if frame is None:
            frame = self._awaited(digest)
        if frame is None:
            return None
        header = FrameHeader.unpack(frame)
        return header, memoryview(frame)[header.size_bytes : header.size_bytes + header.stored_bytes]

    def expect(self, digests: Sequence[Digest]) -> Sequence[Digest]:
        """See `Foresighted`."""
        mine = self._begin(digest for digest in digests if not self._frames.has(digest))
        if mine:
            threading.Thread(target=self._read, args=(mine,), name="expected blocks", daemon=True).start()
        return ()

    def forget(self, digest: Digest) -> None:
        """See `Forgetful`."""
        self._frames.drop(digest)

    def _awaited(self, digest: Digest) -> bytes | None:
        """The frame, fetched by whoever is at it, or else here."""
        future, mine = self._claim(digest)
        if not mine:
            with suppress(GpuTrainError):  # it failed with all that was read with it; perhaps it can be had alone
                return future.result()
            future, mine = self._claim(digest)
        if mine:
            self._read({digest: future})
        return future.result()

    def _claim(self, digest: Digest) -> tuple[_Coming, bool]:
        """What will be the frame, and whether the caller has to fetch it."""
        with self._lock:
            future = self._coming.get(digest)
            if future is not None:
                return future, False
            future = self._coming[digest] = Future()
        frame = self._frames.get(digest)  # after the claim: who fetched it before has put it there first
        if frame is None:
            return future, True
        self._settle({digest: future}, digest, frame)
        return future, False

    def _begin(self, digests: Iterable[Digest]) -> dict[Digest, _Coming]:
        """Those of the digests that nobody has or fetches, to be settled by the caller."""
        claims = {digest: self._claim(digest) for digest in digests}
        return {digest: future for digest, (future, mine) in claims.items() if mine}

    def _read(self, mine: dict[Digest, _Coming]) -> None:
        """Find and read all of these, and what they need; ranges of several objects on several threads."""
        try:
            runs = list(_joined(self._located(mine)))
            others = [
                threading.Thread(target=self._read_run, args=(mine, run), name="expected blocks", daemon=True)
                for run in runs[1:]
            ]
            for thread in others:
                thread.start()
            if runs:
                self._read_run(mine, runs[0])
            for thread in others:
                thread.join()
        finally:
            for digest in [digest for digest, future in mine.items() if not future.done()]:
                self._fail(mine, digest, Unreachable(f"{digest.hex()[:16]}: fetching it was broken off"))

    def _located(self, mine: dict[Digest, _Coming]) -> dict[Digest, Place]:
        places: dict[Digest, Place] = {}
        left = list(mine)
        while left:
            needs: list[Digest] = []
            for digest in left:
                try:
                    place = self._locator.find(digest)
                except (GpuTrainError, OSError) as e:
                    self._fail(mine, digest, e)
                    continue
                if place is None:
                    self._settle(mine, digest, None)
                else:
                    places[digest] = place
                    needs += place.needs
            absent = (d for d in dict.fromkeys(needs) if d not in places and not self._frames.has(d))
            more = self._begin(absent)
            mine |= more
            left = list(more)
        return places

    def _read_run(self, mine: dict[Digest, _Coming], run: list[tuple[Digest, Place]]) -> None:
        start, end = run[0][1].offset, max(place.end for _, place in run)
        try:
            data = self._ranges.read(run[0][1].key, end - start, start)
        except (GpuTrainError, OSError) as e:
            for digest, _ in run:
                self._fail(mine, digest, e)
            return
        for digest, place in run:
            try:
                frame = place.frame(data[place.offset - start : place.end - start])
            except Damaged as e:
                self._fail(mine, digest, e)
            else:
                self._frames.put(digest, frame)
                self._settle(mine, digest, frame)

    def _settle(self, mine: dict[Digest, _Coming], digest: Digest, frame: bytes | None) -> None:
        self._end(digest)
        mine[digest].set_result(frame)

    def _fail(self, mine: dict[Digest, _Coming], digest: Digest, error: Exception) -> None:
        if isinstance(error, NotFound):
            error = Damaged(f"{digest.hex()[:16]}: {error}")  # it should be there
        elif not isinstance(error, GpuTrainError):
            error = Unreachable(f"{digest.hex()[:16]}: {error}")
        self._end(digest)
        mine[digest].set_exception(error)

    def _end(self, digest: Digest) -> None:
        with self._lock:
            del self._coming[digest]


def _joined(places: dict[Digest, Place]) -> Iterator[list[tuple[Digest, Place]]]:
    """The places in runs that are read at once: in one object, close to each other, not too long."""
    by_key: defaultdict[str, list[tuple[Digest, Place]]] = defaultdict(list)
    for digest, place in places.items():
        by_key[place.key].append((digest, place))
    for found in by_key.values():
        run: list[tuple[Digest, Place]] = []
        for digest, place in sorted(found, key=lambda item: item[1].offset):
            near = run and place.offset - run[-1][1].end <= JOIN_GAP_BYTES
            if run and not (near and place.end - run[0][1].offset <= JOIN_BYTES):
                yield run
                run = []
            run.append((digest, place))
        yield run
