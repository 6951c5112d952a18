"""Bringing files in: walk, cut, name, look up, encode, pack; nothing is visible before the commit.

    with store.writer("capture") as writer:
        added = writer.add_tree(path)
        with writer.commit() as txn:
            digest = txn.put_record(Record("checkpoint", job, name, now, added.root))

The calling thread walks, reads and cuts (walk.py, chunking.py); a pool names and encodes blocks (namer.py);
frames go into the pack in the order in which they were read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gpu_train_cas.added import Added
from gpu_train_cas.chunking import WHOLE_FILE_BYTES, blocks
from gpu_train_cas.codecs import encode_object
from gpu_train_cas.digest import HOLE, Digest, FileHasher, Kind, digest_of
from gpu_train_cas.errors import Damaged, NotFound, SourceChanged
from gpu_train_cas.folders import Folders
from gpu_train_cas.formats import FileSource, Layout
from gpu_train_cas.lease import Lease
from gpu_train_cas.manifest import Manifest
from gpu_train_cas.namer import Namer
from gpu_train_cas.originals import Originals
from gpu_train_cas.packer import Admit, Packer
from gpu_train_cas.pairing import Bases, Pairer, Pairing
from gpu_train_cas.progress import Meter, OnProgress
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Registry
from gpu_train_cas.tensorclass import TensorClass
from gpu_train_cas.transaction import Tables, Transaction, commit_packs
from gpu_train_cas.tree import Entry, Tree
from gpu_train_cas.walk import Exclude, StatCache, Walk

if TYPE_CHECKING:
    from gpu_train_cas.formats import Cut, Source, Tensor


class Writer:
    """One writer: its lease, its packs and what it relies on. Used by one thread; a context manager.

    Leaving it without `commit` drops all it wrote. After SourceChanged or StorageFull the writer can only
    be left.
    """

    def __init__(
        self, registry: Registry, tables: Tables, reader: Reader, folders: Folders, purpose: str,
        threads: int | None = None, admit: Admit | None = None,
    ) -> None:  # fmt: skip
        self._registry = registry
        self._tables = tables
        self._reader = reader
        self._folders = folders
        self._lease = Lease(folders.leases, purpose)
        try:
            with registry.read() as txn:
                self._lease.announce(tables.index.generation(txn))
        except BaseException:  # nobody will call close: a lease that stays locked would make every gc wait
            self._lease.release()
            raise
        self._packer = Packer(folders.tmp, self._lease.id, admit)
        self._namer = Namer(registry, tables.index, threads or os.cpu_count() or 1)
        self._originals = Originals(reader, ())
        self._base_reader = reader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop what was not committed and end the lease; safe to call twice."""
        self._namer.close()
        self._originals.close()
        self._packer.discard()
        self._lease.release()

    def add_tree(
        self, path: Path | bytes, *, exclude: Exclude | None = None, cache: StatCache | None = None,
        bases: Bases | None = None, follow: bool = False, progress: OnProgress | None = None,
    ) -> Added:  # fmt: skip
        """Read a directory in, with all below it; links are stored, or the files that they lead to with `follow`.

        `bases` are earlier directories that it may be like; new tensors are then stored as what differs from them.

        Raises:
            SourceChanged: when something changed or vanished meanwhile.
            StorageFull: when the disk is full.
            OSError: when something cannot be read; the message names it.
        """
        pairer = self._pairer(bases)
        return Walk(self, exclude, cache, pairer, Meter("reading", progress), follow=follow).tree(os.fsencode(path))

    def add_file(
        self, path: Path | bytes, *, name: bytes | None = None, bases: Bases | None = None,
        progress: OnProgress | None = None,
    ) -> Added:  # fmt: skip
        """Read one file in as a directory that holds just it, under its own name or another.

        Raises:
            SourceChanged, StorageFull, OSError: as for `add_tree`.
        """
        pairer = self._pairer(bases)
        return Walk(self, None, None, pairer, Meter("reading", progress)).single(os.fsencode(path), name)

    def add_rewritten(
        self, root: Entry, edits: Mapping[bytes, Cut | None], progress: OnProgress | None = None
    ) -> Added:
        """A stored directory once more, without some of its files and folders and with others cut.

        `edits` are paths below `root`: None leaves one out, a cut leaves a part of a file out. What is not named is
        taken as it is and not read.

        Raises:
            NotFound, Damaged: when something that stays is not there or cannot be read.
            StorageFull: when the disk is full.
        """
        from gpu_train_cas.rewrite import Rewrite  # noqa: PLC0415  few writers rewrite anything

        return Rewrite(self, self._reader, edits, Meter("rewriting", progress)).tree(root)

    def _pairer(self, bases: Bases | None) -> Pairer:
        """Who finds bases; they are read from their originals where these still are."""
        self._originals.close()
        self._base_reader = self._reader
        if bases is not None and bases.originals:
            self._originals = Originals(self._reader, bases.originals)
            self._base_reader = self._reader.after(self._originals)
        return Pairer(self._reader, bases)

    @contextmanager
    def commit(self) -> Iterator[Transaction]:
        """Make what was added visible together with what the block puts; on an exception nothing is.

        Raises:
            StorageFull: when the disk is full; nothing was committed.
            Damaged: when something found in the store at first is gone; try again from the start.
        """
        self._packer.sync()
        with self._registry.write() as raw:
            for digest in self._namer.relied:
                if not self._tables.index.revive(raw, digest):
                    raise Damaged(f"block {digest.hex()[:16]} vanished from the store while it was used; try again")
            yield Transaction(raw, self._tables, self._packer)
            commit_packs(raw, self._tables, self._packer, self._folders.packs)
        self._namer.committed()

    # What the walk uses (walk.Receiver)

    def put_file(
        self, fd: int, found: os.stat_result, shape: Layout | None, pairing: Pairing, added: Added, meter: Meter
    ) -> tuple[Digest, Digest | None]:
        """See `Receiver.put_file`."""
        tensors = shape.tensors if shape else ()
        return self.put_source(FileSource(fd), holes_of(fd, found), shape, tensors, pairing, added, meter)

    def put_source(
        self, source: Source, holes: Sequence[tuple[int, int]], shape: Layout | None, tensors: Sequence[Tensor],
        pairing: Pairing, added: Added, meter: Meter,
    ) -> tuple[Digest, Digest | None]:  # fmt: skip
        """See `Receiver.put_source`."""
        hasher = FileHasher()
        digests, ends = bytearray(), []
        spans = blocks(source, shape, holes)
        for named in self._namer.name(source, spans, pairing, self._base_reader, hasher):
            span = named.span
            stored_bytes = None if named.encoded is None else len(named.encoded.payload)
            added.count(pairing.class_of(span), span.end - span.start, stored_bytes, named.depth)
            if named.encoded is not None:
                meter.progress.new_bytes += span.end - span.start
                self._packer.add(
                    Kind.BLOCK, named.digest, span.end - span.start, named.encoded, named.base, named.sibling
                )
            digests += named.digest
            ends.append(span.end)
            meter.progress.done_bytes += span.end - span.start
            meter.tick()
        digest = hasher.digest()
        manifest = None
        if len(ends) > 1 or bytes(digests) == HOLE or tensors:
            format = shape.format if shape else ""
            made = Manifest(source.size_bytes, digest, bytes(digests), ends, format, tensors)
            manifest = self._put_manifest(made, added)
        return digest, manifest

    def put_whole(self, fd: int, found: os.stat_result, added: Added, meter: Meter) -> Digest:
        """See `Receiver.put_whole`."""
        data = os.pread(fd, WHOLE_FILE_BYTES + 1, 0)
        if len(data) != found.st_size:
            raise SourceChanged(f"it was {found.st_size} bytes long and is {len(data)} now")
        return self.put_bytes(data, added, meter)

    def put_bytes(self, data: bytes, added: Added, meter: Meter) -> Digest:
        """See `Receiver.put_bytes`."""
        digest = digest_of(data)
        meter.progress.done_bytes += len(data)
        stored_bytes = None
        if data and not self._namer.has(digest):
            encoded = encode_object(data)
            self._packer.add(Kind.BLOCK, digest, len(data), encoded)
            self._namer.claim(digest)
            stored_bytes = len(encoded.payload)
            meter.progress.new_bytes += len(data)
        added.count(TensorClass.OTHER, len(data), stored_bytes)
        return digest

    def put_tree(self, tree: Tree, added: Added) -> Digest:
        """See `Receiver.put_tree`."""
        digest, data = tree.encode()
        self._put_object(Kind.TREE, digest, data, added)
        return digest

    def recall(self, digest: Digest, manifest: Digest | None) -> bool:
        """See `Receiver.recall`."""
        wanted = {digest} if manifest is None else {manifest}
        if not self._namer.known(wanted):
            return False
        if manifest is not None:
            try:
                wanted |= Manifest.decode(self._reader.object(manifest, Kind.MANIFEST)).stored_digests()
            except (NotFound, Damaged):  # collected this moment, or broken: the file is read again
                return False
            if not self._namer.known(wanted):
                return False
        self._namer.relied |= wanted
        return True

    def _put_manifest(self, manifest: Manifest, added: Added) -> Digest:
        digest, data = manifest.encode()
        self._put_object(Kind.MANIFEST, digest, data, added)
        return digest

    def _put_object(self, kind: Kind, digest: Digest, data: bytes, added: Added) -> None:
        if self._namer.has(digest):
            return
        encoded = encode_object(data)
        self._packer.add(kind, digest, len(data), encoded)
        self._namer.claim(digest)
        added.stored_bytes += len(encoded.payload)


def holes_of(fd: int, found: os.stat_result) -> list[tuple[int, int]]:
    """The ranges (start, end) of a file that were never allocated, in bytes."""
    holes: list[tuple[int, int]] = []
    if found.st_blocks * 512 >= found.st_size:
        return holes
    at = 0
    while at < found.st_size:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole from here on; others: the filesystem cannot tell
            data = found.st_size if at or found.st_blocks == 0 else at
        if data > at:
            holes.append((at, data))
        if data >= found.st_size:
            break
        try:
            at = os.lseek(fd, data, os.SEEK_HOLE)
        except OSError:
            break
    return holes
