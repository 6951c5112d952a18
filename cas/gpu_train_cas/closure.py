"""All that records need, as frames: what is copied from one store to another, proven on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import NamedTuple, Self

from gpu_train_cas.blocksource import BlockSource
from gpu_train_cas.digest import DIGEST_BYTES, HOLE, Digest, Kind
from gpu_train_cas.errors import Damaged, NotFound, Unreachable
from gpu_train_cas.frame import FrameHeader, open_frame
from gpu_train_cas.reader import Reader
from gpu_train_cas.tree import Entry, EntryKind

EXPECTED = 32
"""How many blocks far sources are told of at a time; what they read ahead has to fit into what they keep."""

WINDOW = 16
"""Frames that are read and proven ahead, in blocks of up to 1 MiB."""


Has = Callable[[Digest, Kind], bool]
"""Whether a block or object is at the other side."""


class Frame(NamedTuple):
    """A block or object as it is stored."""

    header: FrameHeader
    payload: memoryview


class Closure:
    """Reads frames from the first source that has them whole. Close it, or use `with`.

    Every frame is decoded and compared with its name before it is given out, so what is copied is whole. Other
    threads read and prove what comes next.
    """

    def __init__(self, sources: Sequence[BlockSource], threads: int = 2) -> None:
        self.reader = Reader(sources)
        self._sources = list(sources)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prove")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def frame(self, digest: Digest, kind: Kind = Kind.BLOCK) -> Frame:
        """One frame.

        Raises:
            NotFound: when no source has it.
            Damaged: when none has it whole.
            Unreachable: when one that may have it cannot be asked now.
        """
        broken: Damaged | Unreachable | None = None
        for source in self._sources:
            try:
                found = source.fetch(digest)
                if found is None:
                    continue
                header, payload = found
                if (header.digest, header.kind) != (digest, kind):
                    raise Damaged(f"{digest.hex()[:16]}: a source gave another frame")
                open_frame(header, payload, self.reader.block)
                return Frame(header, payload)
            except (Damaged, Unreachable) as e:
                broken = e if broken is None or isinstance(e, Damaged) else broken
        if broken is not None:
            raise broken
        raise NotFound(f"{kind.name.lower()} {digest.hex()[:16]} is not in the store; run `gpu-train verify`")

    def needed(
        self, records: Iterable[Digest], has: Has, *, blocks: bool = True, is_closed: bool = True
    ) -> Iterator[Frame]:
        """The frames that records need and their own, each once, and what a delta needs before it.

        `has` says of each whether it is at the other side already. When that `is_closed`, a record, tree or manifest
        that is there has all that it needs there too. Without `blocks` only objects come, and what they need of
        blocks is left out.

        Raises:
            NotFound, Damaged: as for `frame`.
        """
        seen: set[Digest] = set()
        for digest in records:
            if digest in seen:
                continue
            seen.add(digest)
            is_there = has(digest, Kind.RECORD)
            if is_there and is_closed:
                continue
            record = self.frame(digest, Kind.RECORD)
            yield from self._entries([self.reader.record(digest).root], seen, has, blocks, is_closed)
            if not is_there:
                yield record

    def _entries(
        self, entries: list[Entry], seen: set[Digest], has: Has, blocks: bool, is_closed: bool
    ) -> Iterator[Frame]:
        while entries:
            entry = entries.pop()
            kind = Kind.TREE if entry.kind is EntryKind.DIRECTORY else Kind.MANIFEST
            digest = entry.digest if kind is Kind.TREE else entry.manifest
            if entry.kind is EntryKind.SYMLINK or (digest is None and not (entry.size_bytes and blocks)):
                continue
            if digest is None:
                yield from self._blocks(entry.digest, seen, has)
                continue
            if digest in seen:
                continue
            seen.add(digest)
            is_there = has(digest, kind)
            if is_there and is_closed:
                continue
            if not is_there:
                yield self.frame(digest, kind)
            if kind is Kind.TREE:
                entries.extend(reversed(self.reader.tree(digest).entries))
            elif blocks:
                yield from self._blocks(self.reader.manifest(entry).digests, seen, has)

    def _blocks(self, digests: bytes, seen: set[Digest], has: Has) -> Iterator[Frame]:
        wanted: deque[Digest] = deque()
        for at in range(0, len(digests), DIGEST_BYTES):
            digest = Digest(digests[at : at + DIGEST_BYTES])
            if digest != HOLE and digest not in seen:
                seen.add(digest)
                if not has(digest, Kind.BLOCK):
                    wanted.append(digest)
        ahead: deque[Future[Frame]] = deque()
        told = 0
        try:
            while wanted or ahead:
                if told <= 0 and wanted:  # far sources read what lies together at once
                    told = EXPECTED
                    self.reader.expect(list(islice(wanted, EXPECTED)))
                while wanted and len(ahead) < WINDOW:
                    told -= 1
                    ahead.append(self._pool.submit(self.frame, wanted.popleft()))
                yield from self._with_bases(ahead.popleft().result(), seen, has)
        finally:
            for future in ahead:
                future.cancel()

    def _with_bases(self, frame: Frame, seen: set[Digest], has: Has) -> Iterator[Frame]:
        """A frame behind those that it takes to decode it; chains are bounded, as they have been decoded."""
        for digest in frame.header.references:
            if digest not in seen:
                seen.add(digest)
                if not has(digest, Kind.BLOCK):
                    yield from self._with_bases(self.frame(digest), seen, has)
        yield frame
