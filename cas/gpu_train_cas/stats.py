"""How much space records take, and what saved the difference: by codec and by class of tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpu_train_cas.codecs import Codec
from gpu_train_cas.digest import HOLE, Digest, Kind
from gpu_train_cas.errors import Damaged
from gpu_train_cas.formats import Layout
from gpu_train_cas.index import Index
from gpu_train_cas.pairing import Pairing
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Registry, Txn
from gpu_train_cas.tensorclass import TensorClass
from gpu_train_cas.tree import Entry, EntryKind

MAX_DEPTH = 256
"""Folders within folders; ingest stores fewer."""


@dataclass(slots=True)
class Share:
    """Different blocks that something is told of: how many, their original bytes, and what they take as frames."""

    blocks: int = 0
    original_bytes: int = 0
    stored_bytes: int = 0

    def add(self, original_bytes: int, stored_bytes: int) -> None:
        """Count one more block."""
        self.blocks += 1
        self.original_bytes += original_bytes
        self.stored_bytes += stored_bytes


@dataclass(slots=True)
class ClassStats:
    """The tensors of one class.

    Attributes:
        original_bytes: in the files of all records, each counted in full.
        unique: the different blocks among them; one that several classes have counts for the first.
        codecs: the same, by the codec that won.
    """

    original_bytes: int = 0
    unique: Share = field(default_factory=Share)
    codecs: dict[Codec, Share] = field(default_factory=dict)


@dataclass(slots=True)
class Stats:
    """What the store or some of its records take.

    Attributes:
        records: how many were counted.
        original_bytes: the files of all of them, each counted in full.
        unique_bytes: original bytes of the different blocks among them.
        stored_bytes: what these blocks and the objects that describe them take as frames.
        codecs: the different blocks, by the codec that won.
        classes: the same and more, by class of tensors.
    """

    records: int = 0
    original_bytes: int = 0
    unique_bytes: int = 0
    stored_bytes: int = 0
    codecs: dict[Codec, Share] = field(default_factory=dict)
    classes: dict[TensorClass, ClassStats] = field(default_factory=dict)


def stats_of(registry: Registry, index: Index, reader: Reader, roots: Iterable[Entry]) -> Stats:
    """Count what the given roots of records take, or single files.

    Raises:
        Damaged, NotFound: when a tree or manifest cannot be read.
    """
    count = _Count(index, reader)
    with registry.read() as txn:
        for root in roots:
            count.root(txn, root)
    return count.stats


class _Count:
    def __init__(self, index: Index, reader: Reader) -> None:
        self._index = index
        self._reader = reader
        self._seen: set[Digest] = set()
        self._originals: dict[Digest, Counter[TensorClass]] = {}
        self.stats = Stats()

    def root(self, txn: Txn, root: Entry) -> None:
        self.stats.records += 1
        self.stats.original_bytes += root.size_bytes
        found = self._file(txn, root) if root.kind is EntryKind.FILE else self._folder(txn, root, 0)
        for name, size in found.items():
            self.stats.classes.setdefault(name, ClassStats()).original_bytes += size

    def _folder(self, txn: Txn, folder: Entry, depth: int) -> Counter[TensorClass]:
        """Count what is new in a folder; the original bytes of each class in it."""
        if depth > MAX_DEPTH:
            raise Damaged(f"folders lie deeper than {MAX_DEPTH} levels; the record is damaged or hostile")
        if folder.digest not in self._originals:
            self._object(txn, folder.digest)
            total: Counter[TensorClass] = Counter()
            for entry in self._reader.tree(folder.digest).entries:
                if entry.kind is EntryKind.DIRECTORY:
                    total += self._folder(txn, entry, depth + 1)
                elif entry.kind is EntryKind.FILE and entry.size_bytes:
                    total += self._file(txn, entry)
            self._originals[folder.digest] = total
        return self._originals[folder.digest]

    def _file(self, txn: Txn, entry: Entry) -> Counter[TensorClass]:
        name = entry.manifest or entry.digest
        if name not in self._originals:
            total: Counter[TensorClass] = Counter()
            manifest = self._reader.manifest(entry)
            if entry.manifest is not None:
                self._object(txn, entry.manifest)
            pairing = Pairing(Layout(manifest.format, manifest.tensors), manifest.size_bytes, (), {})
            for ref in manifest.blocks():
                one = pairing.class_at(ref.start)
                total[one] += ref.end - ref.start
                if ref.digest != HOLE:
                    self._block(txn, ref.digest, one)
            self._originals[name] = total
        return self._originals[name]

    def _object(self, txn: Txn, digest: Digest) -> None:
        if digest not in self._seen:
            self._seen.add(digest)
            location = self._index.get(txn, digest)
            self.stats.stored_bytes += location.stored_bytes if location is not None else 0

    def _block(self, txn: Txn, digest: Digest, one: TensorClass) -> None:
        location = self._index.get(txn, digest) if digest not in self._seen else None
        self._seen.add(digest)
        if location is None or location.kind is not Kind.BLOCK:
            return
        self.stats.unique_bytes += location.length
        self.stats.stored_bytes += location.stored_bytes
        of_class = self.stats.classes.setdefault(one, ClassStats())
        for share in (
            self.stats.codecs.setdefault(location.codec, Share()),
            of_class.unique,
            of_class.codecs.setdefault(location.codec, Share()),
        ):
            share.add(location.length, location.stored_bytes)
