"""Reading back: digest -> bytes, entry -> file, root -> paths; everything is proven before it is handed out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from gpu_train_cas.blocksource import BlockSource, Foresighted, Forgetful
from gpu_train_cas.digest import HOLE, Digest, Kind, digest_of
from gpu_train_cas.errors import Damaged, NotFound, Unreachable
from gpu_train_cas.frame import FrameHeader, open_frame
from gpu_train_cas.manifest import Manifest
from gpu_train_cas.record import Record
from gpu_train_cas.tree import Entry, EntryKind, Tree

CACHE_BYTES = 96 << 20
"""Enough for the blocks that neighbours share; fresh memory beyond that costs more than it saves."""
MAX_CHAIN = 32
"""Deltas that need each other, one after another: a block that is farther from one that stands alone is refused.
Writers stay far below (deltas.MAX_DEPTH); packs from elsewhere may say anything."""


@dataclass(slots=True)
class _Decoded:
    """The bytes of a block or object, and whether they were compared with its name."""

    data: bytes | memoryview
    proven: bool


class Reader:
    """Decodes blocks and objects from an ordered list of sources.

    Every block is checked against its BLAKE3 name before it is handed out, so what comes out is what went in
    or an error. Decoded bytes are kept in one bounded cache shared by all threads; threads that want the same
    block at the same time decode it once. The blocks that a delta needs are read the same way and always
    kept, but proven only when somebody asks for them: the delta's own name proves what it was decoded
    with. No lock is held while reading or decoding.
    """

    def __init__(self, sources: Sequence[BlockSource], cache_bytes: int = CACHE_BYTES) -> None:
        self._sources = list(sources)
        # Looked up once: to ask a protocol each time takes longer than to find a block.
        self._forgetful = [source if isinstance(source, Forgetful) else None for source in sources]
        self._foresighted = [source for source in sources if isinstance(source, Foresighted)]
        self.is_far = any(self._forgetful)
        self.cache_bytes = cache_bytes
        self._cache: OrderedDict[Digest, _Decoded] = OrderedDict()
        self._cached = 0
        self._busy: dict[Digest, Future[_Decoded]] = {}
        self._needs: dict[Digest, Digest] = {}  # block that is being decoded -> block that its thread waits for
        self._protected: Container[Digest] = ()
        self._lock = threading.Lock()

    def protect(self, digests: Container[Digest]) -> None:
        """Let blocks stay in the cache for as long as they are among these, which must be a part of it."""
        self._protected = digests

    def after(self, source: BlockSource) -> Reader:
        """A reader that asks another source first; with a cache of its own."""
        return Reader([source, *self._sources], self.cache_bytes)

    def at_hand(self, digest: Digest) -> bool:
        """Whether a block is in the cache, or on its way there."""
        with self._lock:
            return digest in self._cache or digest in self._busy

    @property
    def decoding(self) -> int:
        """How many blocks and objects are being fetched and decoded now, by all threads."""
        return len(self._busy)

    def expect(self, digests: Sequence[Digest]) -> None:
        """Blocks that will be read soon, in this order: sources that are far away can begin to fetch them."""
        if not self.is_far:
            return
        for source in self._foresighted:
            if digests:
                digests = source.expect(digests)

    def block(self, digest: Digest, *, keep: bool = True) -> bytes | memoryview:
        """The original bytes of a block; `keep` puts them in the cache.

        Raises:
            NotFound: when no source has it.
            Unreachable: when none gave it, and one that may have it cannot be asked now.
            Damaged: when none has it whole.
        """
        return self._proven(digest, Kind.BLOCK, keep)

    def object(self, digest: Digest, kind: Kind) -> bytes:
        """The bytes of a manifest, tree, record or row.

        Raises:
            NotFound, Damaged, Unreachable: as for `block`.
        """
        return bytes(self._proven(digest, kind, True))

    def tree(self, digest: Digest) -> Tree:
        """A directory."""
        return Tree.decode(self.object(digest, Kind.TREE))

    def record(self, digest: Digest) -> Record:
        """A record."""
        return Record.decode(self.object(digest, Kind.RECORD))

    def manifest(self, entry: Entry) -> Manifest:
        """The blocks of a file, also of one that has no manifest because it has no or one block."""
        if entry.manifest is not None:
            manifest = Manifest.decode(self.object(entry.manifest, Kind.MANIFEST))
            if (manifest.size_bytes, manifest.digest) != (entry.size_bytes, entry.digest):
                raise Damaged(f"{entry.name!r}: its manifest is another file's")
            return manifest
        if entry.size_bytes == 0:
            return Manifest(0, entry.digest, b"", [])
        return Manifest(entry.size_bytes, entry.digest, entry.digest, [entry.size_bytes])

    def open(self, entry: Entry) -> File:
        """A file for reading at any offset.

        Raises:
            NotFound: when the entry is no file.
        """
        if entry.kind is not EntryKind.FILE:
            raise NotFound(f"{entry.name!r} is a {entry.kind.name.lower()}, not a file")
        return File(self, self.manifest(entry))

    def walk(self, root: Entry) -> Iterator[tuple[bytes, Entry]]:
        """All entries below a directory, parents first, names in byte order; paths joined with `/`."""
        stack = [(entry.name, entry) for entry in reversed(self.tree(root.digest).entries)]
        while stack:
            path, entry = stack.pop()
            yield path, entry
            if entry.kind is EntryKind.DIRECTORY:
                below = reversed(self.tree(entry.digest).entries)
                stack.extend((path + b"/" + e.name, e) for e in below)

    def lookup(self, root: Entry, path: bytes) -> Entry:
        """The entry at a path below a directory; "" is the directory itself. Links are not followed.

        Raises:
            NotFound: when there is none, naming the part that is missing.
        """
        entry, seen = root, b""
        for name in filter(None, path.split(b"/")):
            seen = seen + b"/" + name if seen else name
            found = self.tree(entry.digest).find(name) if entry.kind is EntryKind.DIRECTORY else None
            if found is None:
                raise NotFound(f"{seen.decode(errors='backslashreplace')}: no such file or folder")
            entry = found
        return entry

    def _proven(self, digest: Digest, kind: Kind, keep: bool, above: int = 0) -> bytes | memoryview:
        """A block or object that has the bytes that its name says."""
        decoded = self._get(digest, kind, keep, above)
        if not decoded.proven:  # it was decoded for the sake of a delta
            if digest_of(decoded.data, kind) != digest:
                self._forget(digest)
                return self._decode(digest, kind, above, strict=True).data
            decoded.proven = True
        return decoded.data

    def _unproven(self, digest: Digest, kind: Kind, keep: bool, above: int) -> bytes | memoryview:
        return self._get(digest, kind, keep, above).data

    def _get(self, digest: Digest, kind: Kind, keep: bool, above: int) -> _Decoded:
        """A block or object; `above` counts the deltas that are being decoded and need it."""
        with self._lock:
            decoded = self._cache.get(digest)
            if decoded is not None:
                self._cache.move_to_end(digest)
                return decoded
            future = self._busy.get(digest)
            mine = future is None
            if future is None:
                future = self._busy[digest] = Future()
        if not mine:
            return future.result()
        try:
            decoded = self._decode(digest, kind, above)
        except BaseException as e:
            self._finish(digest)
            future.set_exception(e)
            raise
        self._finish(digest, decoded if keep else None)
        future.set_result(decoded)
        return decoded

    def _finish(self, digest: Digest, decoded: _Decoded | None = None) -> None:
        with self._lock:
            del self._busy[digest]
            if decoded is None or digest in self._cache:
                return
            self._cache[digest] = decoded
            self._cached += len(decoded.data)
            for _ in range(len(self._cache) - 1):
                if self._cached <= self.cache_bytes:
                    return
                oldest, other = self._cache.popitem(last=False)
                if oldest in self._protected:
                    self._cache[oldest] = other
                else:
                    self._cached -= len(other.data)

    def _forget(self, digest: Digest) -> None:
        with self._lock:
            decoded = self._cache.pop(digest, None)
            self._cached -= len(decoded.data) if decoded is not None else 0

    def _decode(self, digest: Digest, kind: Kind, above: int, *, strict: bool = False) -> _Decoded:
        """Read and decode from the first source that gives it whole; `strict` proves all that it takes on the way."""
        broken: Damaged | None = None
        away: Unreachable | None = None
        for source, forgetful in zip(self._sources, self._forgetful, strict=True):
            for _ in range(2 if forgetful else 1):
                try:
                    found = source.fetch(digest)
                    if found is None:
                        break
                    header, payload = found
                    if (header.digest, header.kind) != (digest, kind):
                        raise Damaged(f"{digest.hex()[:16]}: a source gave another frame")
                    return self._opened(header, payload, above, strict)
                except Unreachable as e:
                    away = e
                    break
                except Damaged as e:
                    broken = e
                    if forgetful:
                        forgetful.forget(digest)
        if away is not None:
            raise away from broken
        if broken is not None:
            raise broken
        raise NotFound(f"{kind.name.lower()} {digest.hex()[:16]} is not in the store; run `gpu-train verify`")

    def _opened(self, header: FrameHeader, payload: memoryview, above: int, strict: bool) -> _Decoded:
        def needed(other: Digest) -> bytes | memoryview:
            return self._needed(header.digest, other, above + 1, strict)

        prove = strict or above == 0
        try:
            return _Decoded(open_frame(header, payload, needed, prove=prove), prove)
        except Damaged:
            if strict or above or not header.references:
                raise
        # Perhaps not this frame is broken but one that it needs, of which another source may have a better copy.
        return self._opened(header, payload, above, strict=True)

    def _needed(self, digest: Digest, other: Digest, above: int, strict: bool) -> bytes | memoryview:
        """The block that the one being decoded needs.

        Threads wait for each other's blocks, so a circle (which only a hostile pack can hold) is looked for
        before: from the block that is needed along what each one that is being decoded waits for.
        """
        if above > MAX_CHAIN:
            raise Damaged(f"{digest.hex()[:16]} takes more than {MAX_CHAIN} deltas to decode")
        with self._lock:
            at: Digest | None = other
            while at is not None and at != digest:
                at = self._needs.get(at)
            if at == digest:
                raise Damaged(f"{digest.hex()[:16]} needs itself to be decoded")
            self._needs[digest] = other
        try:
            get = self._proven if strict else self._unproven
            return get(other, Kind.BLOCK, True, above)
        finally:
            with self._lock:
                del self._needs[digest]


class File:
    """A stored file, read at any offset by any number of threads."""

    def __init__(self, reader: Reader, manifest: Manifest) -> None:
        self._reader = reader
        self.manifest = manifest

    @property
    def size_bytes(self) -> int:
        """The file's length."""
        return self.manifest.size_bytes

    def pread(self, length: int, offset: int) -> bytes:
        """Bytes from an offset; fewer only at the end.

        Raises:
            Damaged, NotFound, Unreachable: when a block in that range is; other ranges stay readable.
        """
        parts = list(self._parts(length, offset))
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def readinto(self, buffer: bytearray | memoryview, offset: int) -> int:
        """Fill a buffer from an offset; how many bytes were there."""
        view, at = memoryview(buffer).cast("B"), 0
        for part in self._parts(len(view), offset):
            view[at : at + len(part)] = part
            at += len(part)
        return at

    def _parts(self, length: int, offset: int) -> Iterator[memoryview]:
        end = min(offset + length, self.size_bytes)
        for ref in self.manifest.covering(offset, end):
            start, stop = max(ref.start, offset), min(ref.end, end)
            if ref.digest == HOLE:
                yield memoryview(bytes(stop - start))
                continue
            data = memoryview(self._reader.block(ref.digest)).cast("B")
            if len(data) != ref.end - ref.start:
                raise Damaged(f"{ref.digest.hex()[:16]}: a block of another length than its manifest says")
            yield data[start - ref.start : stop - ref.start]
