"""Naming and encoding the blocks of files in parallel, with what the store has that may help.

A block that the store has, or that is on its way already, is not encoded again. Another may be stored as what
differs from a base, an earlier block of the same tensor, and with the help of a sibling: the other moment's block
beside it, or what the base was before (pairing.py, deltas.py).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from gpu_train_cas.chunking import Span
from gpu_train_cas.codecs import Encoded, Reference, Role, encode
from gpu_train_cas.codecs.payload import PREDICTABLE
from gpu_train_cas.deltas import MAX_DEPTH, Base, base_within, can_lean_on
from gpu_train_cas.digest import HOLE, Digest, FileHasher, digest_of
from gpu_train_cas.errors import Damaged, NotFound, SourceChanged
from gpu_train_cas.formats import Source
from gpu_train_cas.index import Index
from gpu_train_cas.pairing import Pairing
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Registry

IN_FLIGHT_BYTES = 64 << 20
"""Blocks held at once, at most."""


@dataclass(slots=True)
class Named:
    """A span once it has been named.

    Attributes:
        encoded: None when the store has it, or a block before it is the same.
        base, sibling: what it takes to decode it.
        depth: deltas down to a block without a base, this one included.
    """

    span: Span
    digest: Digest
    encoded: Encoded | None = None
    base: Digest | None = None
    sibling: Digest | None = None
    depth: int = 0


class _Open(NamedTuple):
    """A file that is being cut, its partners, who reads them, and the siblings that must turn up in it."""

    source: Source
    pairing: Pairing
    reader: Reader
    promised: set[Digest]


class Namer:
    """Names the blocks of one writer. One thread asks; a pool names and encodes (calls that release the GIL).

    Attributes:
        relied: blocks and objects of the store that what was named needs; they must still be there at the commit.
    """

    def __init__(self, registry: Registry, index: Index, threads: int) -> None:
        self._registry = registry
        self._index = index
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ingest")
        self._claims = threading.Lock()
        self._new: set[Digest] = set()
        self.relied: set[Digest] = set()
        # No block is both: what a sibling helps with has none itself, so that none ever needs itself.
        self._siblings: set[Digest] = set()
        self._leaning: set[Digest] = set()

    def close(self) -> None:
        """End the pool; safe to call twice."""
        self._pool.shutdown(cancel_futures=True)

    def has(self, digest: Digest) -> bool:
        """Whether a block or object is in the store or on its way; relied upon from then on."""
        if digest in self._new or digest in self.relied:
            return True
        if self.known({digest}):
            self.relied.add(digest)
            return True
        return False

    def known(self, digests: set[Digest]) -> bool:
        """Whether blocks or objects are all in the store and usable."""
        with self._registry.read() as txn:
            return all(self._index.usable(txn, d) for d in digests)

    def claim(self, digest: Digest) -> None:
        """Take note that the caller stores a block or object."""
        self._new.add(digest)

    def committed(self) -> None:
        """Take note that all that was new is in the store."""
        self.relied |= self._new
        self._new.clear()

    def name(
        self, source: Source, spans: Iterator[Span], pairing: Pairing, reader: Reader, hasher: FileHasher
    ) -> Iterator[Named]:
        """Name and encode a file's spans, in order, holding a bounded amount at once; `hasher` gets its bytes.

        `reader` reads what the store has that helps.

        Raises:
            SourceChanged: at the end, when a sibling that was read ahead was something else later.
        """
        file = _Open(source, pairing, reader, set())
        waiting: deque[Future[Named]] = deque()
        held = 0
        for span in spans:
            if span.data is None:
                _hash_zeros(hasher, span.end - span.start)
            waiting.append(self._pool.submit(self._name, file, span))
            held += 0 if span.data is None else len(span.data)
            if span.data is not None:
                hasher.update(span.data)
            while waiting and (held > IN_FLIGHT_BYTES or waiting[0].done()):
                named = waiting.popleft().result()
                held -= 0 if named.span.data is None else len(named.span.data)
                yield named
        while waiting:
            yield waiting.popleft().result()
        if not file.promised <= self._new | self.relied:
            raise SourceChanged("a tensor was not the same when it was read again")

    def _name(self, file: _Open, span: Span) -> Named:
        if span.data is None:
            return Named(span, HOLE)
        digest = digest_of(span.data)
        if self.has(digest):
            return Named(span, digest)
        with self._claims:  # claimed before it is encoded, so that a twin in flight is not encoded too
            if digest in self._new:
                return Named(span, digest)
            self._new.add(digest)
        base = self._base(file.pairing, span)
        against = None if base is None else self._stored(file, base.digest, span)
        sibling = self._sibling(file, span, digest, base if against is not None else None)
        encoded = encode(span.data, span.dtype, base=against, sibling=sibling, grid=file.pairing.grid_of(span))
        named = Named(span, digest, encoded)
        if base is not None and encoded.base is not None:
            self.relied.add(base.digest)
            named.base, named.depth = base.digest, base.depth + 1
        if sibling is not None:
            self._settle_sibling(file, named, sibling, encoded.sibling is not None)
        return named

    def _base(self, pairing: Pairing, span: Span) -> Base | None:
        """The block to take a delta against, if there is one."""
        candidate = pairing.base_of(span)
        depth = pairing.depth(span, MAX_DEPTH - 1)
        if candidate is None or depth < 0:
            return None
        with self._registry.read() as txn:
            return base_within(txn, self._index, candidate, depth)

    def _stored(self, file: _Open, digest: Digest, span: Span, role: Role = Role.SIZES) -> Reference | None:
        """A block of the store that helps with a span, if it can be read."""
        try:
            data = file.reader.block(digest, keep=False)
        except (NotFound, Damaged):  # collected this moment, or broken: the block is stored without it
            return None
        return Reference(digest, data, role) if len(data) == span.end - span.start else None

    def _sibling(self, file: _Open, span: Span, digest: Digest, base: Base | None) -> Reference | None:
        """What helps beside the base: the other moment, which may still have to be stored, or what was before it."""
        place = file.pairing.sibling_of(span)
        if place is None:
            if base is None or base.earlier is None or span.dtype not in PREDICTABLE:
                return None
            return self._stored(file, base.earlier, span, Role.EARLIER)
        if place.role is Role.FIRST_MOMENT and base is None:
            return None
        data = file.source.pread(place.end - place.start, place.start)
        sibling = digest_of(data)
        if len(data) != span.end - span.start or sibling == digest:
            return None
        if sibling not in self._new and self.has(sibling):
            with self._registry.read() as txn:
                if not can_lean_on(txn, self._index, sibling):
                    return None
        with self._claims:
            if sibling in self._leaning or digest in self._siblings:
                return None
            self._siblings.add(sibling)
            self._leaning.add(digest)
        return Reference(sibling, data, place.role)

    def _settle_sibling(self, file: _Open, named: Named, sibling: Reference, used: bool) -> None:
        digest = Digest(sibling.digest)
        if used:
            named.sibling = digest
        if sibling.role is Role.EARLIER:
            if used:
                self.relied.add(digest)
            return
        with self._claims:
            if used:
                file.promised.add(digest)
            else:
                self._leaning.discard(named.digest)


def _hash_zeros(hasher: FileHasher, count: int) -> None:
    zeros = memoryview(bytes(1 << 20))
    while count > 0:
        hasher.update(zeros[: min(count, len(zeros))])
        count -= len(zeros)
