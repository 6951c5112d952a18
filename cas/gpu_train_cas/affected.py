"""Which records and files damage hits: a walk over records that no broken part can stop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from gpu_train_cas.digest import HOLE, Digest
from gpu_train_cas.errors import UNREADABLE, NotFound
from gpu_train_cas.index import Index
from gpu_train_cas.reader import Reader
from gpu_train_cas.registry import Registry, Row, Txn
from gpu_train_cas.transaction import Tables
from gpu_train_cas.tree import Entry, EntryKind

_Parts = list[tuple[bytes, Digest, str]]


@dataclass(frozen=True, slots=True)
class Hit:
    """A file or directory of a record that cannot be read back whole.

    Attributes:
        record: the record's name; with its kind, owner and name within the owner.
        path: the path below the record's root; empty when the root or the record itself is hit.
        digest: the block or object that is damaged or missing.
        reason: what is wrong with it.
    """

    record: Digest
    kind: str
    owner: str
    name: str
    path: bytes
    digest: Digest
    reason: str


class AffectedWalk:
    """Walks records, each different tree and manifest once, and tells what of them cannot be read back.

    `bad` are digests known to be damaged, with the reason. Whatever is read or looked up and not there is
    added to `missing`, unless a place outside has it (`is_elsewhere`), then to `elsewhere`; `needed`, when asked for,
    collects every digest that was met.
    """

    def __init__(
        self, registry: Registry, index: Index, reader: Reader, bad: dict[Digest, str], *, collect: bool = False,
        is_elsewhere: Callable[[Digest], bool] = lambda digest: False,
    ) -> None:  # fmt: skip
        self._registry = registry
        self._index = index
        self._reader = reader
        self._bad = bad
        self._known: dict[Digest, _Parts] = {}
        self.missing: dict[Digest, str] = {}
        self.elsewhere: set[Digest] = set()
        self._is_elsewhere = is_elsewhere
        self.needed: set[Digest] | None = set() if collect else None

    def record(self, digest: Digest, row: Row) -> Iterator[Hit]:
        """What of a record is hit."""
        self._met([digest])
        try:
            parts = self._bad_part(digest) or self._entry(self._reader.record(digest).root)
        except UNREADABLE as e:
            parts = self._lost(digest, e)
        for path, part, reason in parts:
            yield Hit(digest, row["kind"], row["owner"], row["name"], path, part, reason)

    def _entry(self, entry: Entry) -> _Parts:
        if entry.kind is EntryKind.FILE and entry.manifest is None and entry.size_bytes:
            self._met([entry.digest])
            return self._blocks([entry.digest])
        if entry.kind is EntryKind.FILE and entry.manifest is not None:
            return self._manifest(entry, entry.manifest)
        return self._folder(entry) if entry.kind is EntryKind.DIRECTORY else []

    def _manifest(self, entry: Entry, digest: Digest) -> _Parts:
        if digest not in self._known:
            self._met([digest])
            parts = self._bad_part(digest)
            try:
                blocks = set() if parts else self._reader.manifest(entry).stored_digests()
                self._met(blocks)
                self._known[digest] = parts or self._blocks(blocks)
            except UNREADABLE as e:
                self._known[digest] = self._lost(digest, e)
        return self._known[digest]

    def _folder(self, root: Entry) -> _Parts:
        """The damage of a directory: of those below it first, without recursion, since folders may lie deep."""
        stack: list[tuple[Entry, Sequence[Entry] | None]] = [(root, None)]
        while stack:
            entry, children = stack.pop()
            if entry.digest in self._known:
                continue
            if children is None:
                children = self._children(entry)
                below = [c for c in children if c.kind is EntryKind.DIRECTORY and c.digest not in self._known]
                stack.append((entry, children))
                stack.extend((child, None) for child in below)
            else:
                self._known[entry.digest] = [
                    (child.name + b"/" + path if path else child.name, digest, reason)
                    for child in children
                    for path, digest, reason in self._leaf(child)
                ]
        return self._known[root.digest]

    def _leaf(self, entry: Entry) -> _Parts:
        return self._known[entry.digest] if entry.kind is EntryKind.DIRECTORY else self._entry(entry)

    def _children(self, entry: Entry) -> Sequence[Entry]:
        """The entries of a directory; none when it is broken, which is then known."""
        self._met([entry.digest])
        parts = self._bad_part(entry.digest)
        try:
            if not parts:
                return self._reader.tree(entry.digest).entries
        except UNREADABLE as e:
            parts = self._lost(entry.digest, e)
        self._known[entry.digest] = parts
        return ()

    def _blocks(self, digests: Collection[Digest]) -> _Parts:
        parts: _Parts = []
        with self._registry.read() as txn:
            for digest in digests:
                if digest != HOLE:
                    parts += self._block(txn, digest)
        return parts

    def _block(self, txn: Txn, digest: Digest) -> _Parts:
        """The damage of a block: its own, or else that of the first block found that it takes to decode it."""
        left, seen = [digest], {digest}
        while left:
            at = left.pop()
            if at in self._bad:
                return self._bad_part(at)
            location = self._index.get(txn, at)
            if location is None and self._is_elsewhere(at):
                self.elsewhere.add(at)
                continue
            if location is None:
                return self._lost(at, NotFound("it is not in the store"))
            left += [d for d in location.references if d not in seen]
            seen |= set(location.references)
        return []

    def _bad_part(self, digest: Digest) -> _Parts:
        return [(b"", digest, self._bad[digest])] if digest in self._bad else []

    def _lost(self, digest: Digest, error: Exception) -> _Parts:
        self.missing.setdefault(digest, str(error))
        return [(b"", digest, str(error))]

    def _met(self, digests: Collection[Digest]) -> None:
        if self.needed is not None:
            self.needed.update(digests)


def known_damage(registry: Registry, tables: Tables, reader: Reader, record: Digest) -> Hit | None:
    """What is known to be damaged or missing of a record, without reading its blocks; None when nothing is."""
    with registry.read() as txn:
        row = tables.records.get(txn, record)
        bad = {Digest(key): str(found["reason"]) for key, found in tables.index.damaged.scan(txn)}
    if row is None:
        return Hit(record, "", "", "", b"", record, "it is not in the store")
    return next(AffectedWalk(registry, tables.index, reader, bad).record(record, row), None)
