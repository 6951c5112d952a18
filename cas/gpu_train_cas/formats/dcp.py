"""Which tensor each stretch of a `.distcp` file is, by the `.metadata` beside it (torch.distributed.checkpoint).

Layout: torch/distributed/checkpoint/metadata.py (`Metadata.storage_data`) and filesystem.py (`_StorageInfo`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_train_cas.formats import pickle
from gpu_train_cas.formats.cut import Cut
from gpu_train_cas.formats.layout import FormatError, Layout, plain
from gpu_train_cas.formats.pickle import Object
from gpu_train_cas.formats.source import Source
from gpu_train_cas.formats.state import MAX_NAME
from gpu_train_cas.formats.tensor import Tensor

MAX_METADATA_BYTES = 64 << 20


class Item(NamedTuple):
    """A stretch of a file that holds one tensor or a part of it.

    Attributes:
        offset, length: where it lies in its file, in bytes.
        name: the tensor's full name in the state.
    """

    offset: int
    length: int
    name: str


Items = Mapping[str, Sequence[Item]]
"""By file, relative to the folder of the metadata: its items by rising offset."""


def read_items(source: Source) -> Items:
    """The items that a `.metadata` file lists; nothing when it cannot be read."""
    if not 0 < source.size_bytes <= MAX_METADATA_BYTES:
        return {}
    try:
        root = pickle.read(source.pread(source.size_bytes, 0))
    except FormatError:
        return {}
    found: dict[str, list[Item]] = {}
    stored = _fields(root).get("storage_data")
    for index, info in (stored.items or ()) if isinstance(stored, Object) else ():
        name, place = _fields(index).get("fqn"), _fields(info)
        path, offset, length = place.get("relative_path"), place.get("offset"), place.get("length")
        if isinstance(name, str) and isinstance(path, str) and isinstance(offset, int) and isinstance(length, int):
            found.setdefault(path, []).append(Item(offset, length, plain(name)[:MAX_NAME]))
    return {path: sorted(items) for path, items in found.items()}


def cut_items(items: Sequence[Item], size_bytes: int, drop: Callable[[str], bool]) -> Cut | None:
    """How to leave the items of a `.distcp` file out whose name `drop` accepts; None when there are none.

    The other items stay where `.metadata` says. Whoever reads one that was left out finds no archive there, and fails.

    Raises:
        FormatError: when the items do not lie in the file one after another.
    """
    ends = [0, *(item.offset + item.length for item in items)]
    if any(item.offset < end for item, end in zip(items, ends, strict=False)) or ends[-1] > size_bytes:
        raise FormatError("the items of .metadata overlap, or leave the file")
    gone = [item for item in items if drop(item.name)]
    holes = [(item.offset, item.offset + item.length) for item in gone if item.length]
    return Cut(list(dict.fromkeys(item.name for item in gone)), holes, size_bytes) if gone else None


def named(layout: Layout, items: Sequence[Item]) -> Layout:
    """The layout of a `.distcp` file with its tensors called by the names of the items that they lie in."""
    starts = [item.offset for item in items]
    return layout._replace(tensors=tuple(_named(tensor, items, starts) for tensor in layout.tensors))


def _named(tensor: Tensor, items: Sequence[Item], starts: Sequence[int]) -> Tensor:
    at = bisect_right(starts, tensor.offset) - 1
    if at < 0 or tensor.offset + tensor.length > items[at].offset + items[at].length:
        return tensor
    below = tensor.name.partition(".")[2]  # behind `item-N`
    name = f"{items[at].name}.{below}" if below else items[at].name
    return tensor._replace(name=name[:MAX_NAME])


def _fields(value: Any) -> dict[Any, Any]:
    """The attributes of a pickled dataclass."""
    state = value.state if isinstance(value, Object) else None
    pairs = (state.items or ()) if isinstance(state, Object) else ()
    return {key: held for key, held in pairs if isinstance(key, str)}
