"""The tensors of a stored checkpoint: what they are called, of which type and shape, where their bytes lie.

What the manifests know of large files is believed as far as it can be true; files without a table are looked into. A
tensor that torch.distributed.checkpoint has cut into parts along its first dimension is one again. Nothing is
executed, and a file that is damaged costs only itself.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from gpu_train.base import TENSOR_ENDINGS
from gpu_train.shard_index import ENDING as INDEX_ENDING
from gpu_train.shard_index import read_index
from gpu_train_cas import Entry, EntryKind, File, Layout, Reader, Tensor
from gpu_train_cas.errors import UNREADABLE, Damaged, Unreachable
from gpu_train_cas.formats import (
    ITEM_BYTES,
    METADATA,
    FormatError,
    Items,
    UnknownFormat,
    Unsupported,
    parse,
    read_items,
    read_shapes,
)
from gpu_train_cas.formats.dcp import Item, named

READ_ERRORS = (*UNREADABLE, Unreachable)
"""What can be wrong with one file or one block while the rest can still be read."""

UNKNOWN = "it is no container of tensors that gpu-train can look into"
_DISTCP = ".distcp"


class Part(NamedTuple):
    """A run of a tensor's bytes in a file: `path` as in the checkpoint, `offset` and `length` in bytes."""

    path: str
    offset: int
    length: int


class StoredTensor(NamedTuple):
    """A tensor of a checkpoint.

    Attributes:
        name: as its container spells it; of a part that is not put together with others, with its place: `w[0:4,8:16]`.
        dtype: as in `gpu_train_cas.Tensor`: "" where the type is not known.
        shape: elements per dimension.
        parts: where its bytes are, in order.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes in its files."""
        return sum(part.length for part in self.parts)

    @property
    def elements(self) -> int:
        """How many numbers it holds, also when they are quantised; 0 where the type is not known."""
        return prod(self.shape) if self.dtype else 0

    @property
    def path(self) -> str:
        """The file that it begins in."""
        return self.parts[0].path


class Trouble(NamedTuple):
    """A file that cannot be looked into. `damaged` is False when it may be whole: of a kind or size not supported."""

    path: str
    reason: str
    damaged: bool = True


@dataclass(slots=True)
class TensorTable:
    """What `table_of` found.

    Attributes:
        tensors: by file, and in a file by offset.
        files: those that hold the tensors, open for reading.
        troubles: files, and shards that an index names, that cannot be told of.
        paths: all files, whether they hold tensors or not.
        items: what the `.metadata` of distributed checkpoints list, by the file that has it.
    """

    tensors: list[StoredTensor] = field(default_factory=list)
    files: dict[str, File] = field(default_factory=dict)
    troubles: list[Trouble] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    items: dict[str, Sequence[Item]] = field(default_factory=dict)

    def pread(self, tensor: StoredTensor, length: int, start: int) -> bytes:
        """Bytes of a tensor from a place in it.

        Raises:
            Damaged, NotFound, Unreachable: when a block of them is.
        """
        found = []
        for part in tensor.parts:
            if start < part.length and length > 0:
                found.append(self.files[part.path].pread(min(length, part.length - start), part.offset + start))
                length -= len(found[-1])
            start = max(0, start - part.length)
        return found[0] if len(found) == 1 else b"".join(found)

    def blocks(self, tensor: StoredTensor) -> Iterator[tuple[int, int, bytes, int]]:
        """What a tensor's bytes are made of: where in it a piece begins and ends, its block, where in that it begins.

        Tensors with the same pieces are the same, and nothing has to be read to know it.
        """
        before = 0
        for part in tensor.parts:
            end = part.offset + part.length
            for ref in self.files[part.path].manifest.covering(part.offset, end):
                first, last = max(ref.start, part.offset), min(ref.end, end)
                shift = before - part.offset
                yield first + shift, last + shift, ref.digest, first - ref.start
            before += part.length

    def keys(self) -> list[str]:
        """A key for each tensor: its name, or `file:name` where it is not the only one of that name."""
        times = Counter(tensor.name for tensor in self.tensors)
        return [t.name if times[t.name] == 1 else f"{t.path}:{t.name}" for t in self.tensors]

    def insist(self) -> None:
        """Raise Damaged when something of it is."""
        for trouble in self.troubles:
            if trouble.damaged:
                raise Damaged(f"{trouble.path}: {trouble.reason}")

    @property
    def damaged(self) -> bool:
        """Whether something of the checkpoint is damaged or missing."""
        return any(trouble.damaged for trouble in self.troubles)


def table_of(reader: Reader, entry: Entry, path: str = "") -> TensorTable:
    """The tensors of a stored folder or file; `path` is what it is called in its checkpoint.

    Raises:
        Damaged, NotFound, Unreachable: when the folder itself cannot be read; what is in it becomes a `Trouble`.
    """
    return _Search(reader, path).run(entry)


def files_below(reader: Reader, entry: Entry, path: str, troubles: list[Trouble]) -> Iterator[tuple[str, Entry]]:
    """The files in a folder and below, in order; folders below that cannot be read are noted and left out.

    Raises:
        Damaged, NotFound, Unreachable: when the folder itself cannot be read.
    """
    stack = [(path, entry)]
    while stack:
        above, one = stack.pop()
        if one.kind is EntryKind.FILE:
            yield above, one
        elif one.kind is EntryKind.DIRECTORY:
            try:
                below = reader.tree(one.digest).entries
            except READ_ERRORS as e:
                if one is entry:
                    raise
                troubles.append(Trouble(above, str(e)))
                continue
            prefix = f"{above}/" if above else ""
            stack.extend((prefix + os.fsdecode(child.name), child) for child in reversed(below))


class _Search:
    def __init__(self, reader: Reader, path: str) -> None:
        self._reader = reader
        self._path = path
        self._found = TensorTable()
        self._entries: dict[str, Entry] = {}
        self._items: dict[str, Items] = {}
        self._shapes: dict[str, Mapping[str, tuple[int, ...]]] = {}

    def run(self, entry: Entry) -> TensorTable:
        named_itself = entry.kind is EntryKind.FILE
        self._entries = dict(files_below(self._reader, entry, self._path, self._found.troubles))
        self._found.paths = list(self._entries)
        listed: dict[str, list[tuple[StoredTensor, Item | None]]] = defaultdict(list)
        for path, one in self._entries.items():
            try:
                for tensor in self._look(path, one, named_itself):
                    item = self._item(path, tensor)
                    listed[_folder(path) if item else path].append((_stored(path, tensor), item))
            except READ_ERRORS as e:
                self._found.troubles.append(Trouble(path, str(e), not isinstance(e, Unsupported)))
        for where, tensors in listed.items():
            shapes = self._shapes.get(where, {})
            self._found.tensors += joined(tensors, shapes) if shapes else [tensor for tensor, _ in tensors]
        self._check_indexes()
        return self._found

    def _look(self, path: str, entry: Entry, wanted: bool) -> Sequence[Tensor]:
        """The tensors of a file; none for one that is no container."""
        ending = path.lower().endswith(TENSOR_ENDINGS)
        if not (wanted or ending or entry.manifest):
            return ()
        file = self._reader.open(entry)
        manifest = file.manifest
        if not (wanted or ending or manifest.format):
            return ()
        if path.endswith(_DISTCP):
            self._read_metadata(path)
        layout = Layout(manifest.format, manifest.tensors)
        if manifest.format in ("", "npz") or _is_nameless(manifest.tensors):
            try:
                layout = parse(file, path)
            except UnknownFormat:
                self._found.troubles.append(Trouble(path, UNKNOWN, False))
                return ()
        else:
            layout = sound(layout, file.size_bytes)
        if "pickle" in layout.metadata:
            self._found.troubles.append(Trouble(path, f"its state cannot be read: {layout.metadata['pickle']}"))
        if "compressed" in layout.metadata:
            what = f"{layout.metadata['compressed']} of its arrays are compressed or no plain numbers, and not shown"
            self._found.troubles.append(Trouble(path, what, False))
        items = self._items.get(_folder(path), {}).get(_name(path), ())
        if path.endswith(_DISTCP) and items and not manifest.format:
            layout = named(layout, items)
        self._found.files[path] = file
        return layout.tensors

    def _read_metadata(self, path: str) -> None:
        """Read what stands beside the parts of a distributed checkpoint, once."""
        folder = _folder(path)
        if folder in self._items:
            return
        self._items[folder], self._shapes[folder] = {}, {}
        beside = self._entries.get(f"{folder}/{METADATA}" if folder else METADATA)
        if beside is None:
            return
        try:
            file = self._reader.open(beside)
            self._items[folder], self._shapes[folder] = read_items(file), read_shapes(file)
            for name, items in self._items[folder].items():
                self._found.items[f"{folder}/{name}".lstrip("/")] = items
        except READ_ERRORS as e:
            self._found.troubles.append(Trouble(f"{folder}/{METADATA}".lstrip("/"), str(e)))

    def _item(self, path: str, tensor: Tensor) -> Item | None:
        """The part of a distributed checkpoint that a tensor is all of."""
        items = self._items.get(_folder(path), {}).get(_name(path), ()) if path.endswith(_DISTCP) else ()
        at = bisect_right([item.offset for item in items], tensor.offset) - 1
        return items[at] if at >= 0 and items[at].name == tensor.name else None

    def _check_indexes(self) -> None:
        """Compare what the indexes of sharded models say with what is there."""
        here: dict[str, set[str]] = defaultdict(set)
        for tensor in self._found.tensors:
            for part in tensor.parts:
                here[part.path].add(tensor.name)
        broken = {trouble.path for trouble in self._found.troubles}
        for path, entry in self._entries.items():
            if not path.endswith(INDEX_ENDING):
                continue
            try:
                index = read_index(self._reader.open(entry))
            except READ_ERRORS as e:
                self._found.troubles.append(Trouble(path, str(e)))
                continue
            folder = _folder(path)
            missing: dict[str, list[str]] = defaultdict(list)
            for name, file in index.files.items():
                shard = f"{folder}/{file}" if folder else file
                if shard not in broken and name not in here[shard]:
                    missing[shard].append(name)
            for shard, names in missing.items():
                what = f"{len(names)} of the tensors that {_name(path)} says are in it, such as {names[0][:200]!r}"
                lost = "it is not there" if shard not in self._entries else f"it lacks {what}"
                self._found.troubles.append(Trouble(shard, lost))


def joined(
    tensors: Sequence[tuple[StoredTensor, Item | None]], shapes: Mapping[str, tuple[int, ...]]
) -> list[StoredTensor]:
    """Put the parts of a distributed checkpoint together where they follow each other along the first dimension; others
    keep their place in their names."""
    groups: dict[str, list[tuple[StoredTensor, Item]]] = {}
    found: list[StoredTensor] = []
    for tensor, item in tensors:
        if item is None or tensor.name not in shapes or item.start is None:
            found.append(tensor)
        else:
            groups.setdefault(tensor.name, []).append((tensor, item))
    for name, group in groups.items():
        found += _put_together(name, sorted(group, key=lambda one: one[1].start or ()), shapes[name])
    return found


def _put_together(
    name: str, group: Sequence[tuple[StoredTensor, Item]], shape: tuple[int, ...]
) -> Iterator[StoredTensor]:
    rows = 0
    for tensor, item in group:
        start = item.start or (0,) * len(shape)
        follows = len(tensor.shape) == len(start) == len(shape) and not any(start[1:])
        if not follows or tensor.shape[1:] != shape[1:] or (shape and start[0] != rows):
            break
        rows += tensor.shape[0] if shape else 1
    else:
        if rows == (shape[0] if shape else len(group) == 1) and len({tensor.dtype for tensor, _ in group}) == 1:
            parts = tuple(part for tensor, _ in group for part in tensor.parts)
            yield StoredTensor(name, group[0][0].dtype, shape, parts)
            return
    for tensor, item in group:
        ranges = ",".join(f"{a}:{a + n}" for a, n in zip(item.start or (), tensor.shape, strict=False))
        yield tensor._replace(name=f"{name}[{ranges}]" if len(group) > 1 else name)


def _stored(path: str, tensor: Tensor) -> StoredTensor:
    return StoredTensor(tensor.name, tensor.dtype, tensor.shape, (Part(path, tensor.offset, tensor.length),))


def sound(layout: Layout, size_bytes: int) -> Layout:
    """A manifest's table, checked: packs from elsewhere may say anything.

    Raises:
        Damaged: when it cannot be true.
    """
    try:
        checked = Layout.build(layout.format, layout.tensors, size_bytes)
        for tensor in checked.tensors:
            whole = all(type(n) is int for n in (tensor.offset, tensor.length, *tensor.shape))
            if not (whole and isinstance(tensor.name, str) and isinstance(tensor.dtype, str)):
                raise TypeError("a field of the wrong type")
    except FormatError as e:
        raise Damaged(f"the table of its tensors cannot be true: {e}") from e
    except TypeError as e:
        raise Damaged(f"the table of its tensors cannot be read: {e}") from e
    return checked._replace(tensors=tuple(_fitting(tensor) for tensor in checked.tensors))


def _fitting(tensor: Tensor) -> Tensor:
    item = ITEM_BYTES.get(tensor.dtype, 0)
    return tensor if not item or prod(tensor.shape) * item == tensor.length else tensor._replace(dtype="")


def _is_nameless(tensors: Sequence[Tensor]) -> bool:
    """Whether a torch archive's storages have no names: perhaps because its pickle could not be read."""
    return any(tensor.name.startswith("data/") and not tensor.dtype for tensor in tensors)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
