"""Which tensor each stretch of a `.distcp` file is, by the `.metadata` beside it (torch.distributed.checkpoint).

Layout: torch/distributed/checkpoint/metadata.py (`Metadata.storage_data`) and filesystem.py (`_StorageInfo`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpu_train_cas.formats import pickle
from gpu_train_cas.formats.cut import Cut
from gpu_train_cas.formats.layout import MAX_DIMENSIONS, MAX_INTEGER, FormatError, Layout, plain
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
        start: where in the tensor the part begins, per dimension; None for what is no part.
    """

    offset: int
    length: int
    name: str
    start: tuple[int, ...] | None = None


Items = Mapping[str, Sequence[Item]]
"""By file, relative to the folder of the metadata: its items by rising offset."""


def read_items(source: Source) -> Items:
    """The items that a `.metadata` file lists; nothing when it cannot be read."""
    root = _root(source)
    found: dict[str, list[Item]] = {}
    for index, info in _pairs(_fields(root).get("storage_data")):
        key, place = _fields(index), _fields(info)
        name, path, offset, length = key.get("fqn"), *(place.get(k) for k in ("relative_path", "offset", "length"))
        if isinstance(name, str) and isinstance(path, str) and isinstance(offset, int) and isinstance(length, int):
            item = Item(offset, length, plain(name)[:MAX_NAME], _size(key.get("offset")))
            found.setdefault(path, []).append(item)
    return {path: sorted(items, key=lambda item: item[:3]) for path, items in found.items()}


def read_shapes(source: Source) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the whole tensors, by their names, of a `.metadata` file; nothing when it cannot be read."""
    found = {}
    for name, about in _pairs(_fields(_root(source)).get("state_dict_metadata")):
        shape = _size(_fields(about).get("size"))
        if isinstance(name, str) and shape is not None:
            found[plain(name)[:MAX_NAME]] = shape
    return found


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


def _root(source: Source) -> Any:
    """What a `.metadata` file holds; None when it cannot be read."""
    if not 0 < source.size_bytes <= MAX_METADATA_BYTES:
        return None
    try:
        return pickle.read(source.pread(source.size_bytes, 0))
    except FormatError:
        return None


def _fields(value: Any) -> dict[Any, Any]:
    """The attributes of a pickled dataclass."""
    return {
        key: held for key, held in _pairs(value.state if isinstance(value, Object) else None) if isinstance(key, str)
    }


def _pairs(value: Any) -> Sequence[tuple[Any, Any]]:
    """The entries of a pickled dict."""
    return (value.items or ()) if isinstance(value, Object) else ()


def _size(value: Any) -> tuple[int, ...] | None:
    """A pickled torch.Size."""
    numbers = value.args[0] if isinstance(value, Object) and isinstance(value.args, tuple) and value.args else None
    if not isinstance(numbers, tuple) or len(numbers) > MAX_DIMENSIONS:
        return None
    return numbers if all(type(n) is int and 0 <= n <= MAX_INTEGER for n in numbers) else None
