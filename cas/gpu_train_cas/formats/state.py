"""Which tensors a pickled torch state holds: their names, types and shapes, by the storages they view.

The graph of `pickle.read` is walked without recursion, each object once, so that shared and cyclic
structures cost what they take in memory. A tensor's name is the path to it, joined with dots. How
torch spells tensors: torch/_utils.py (`_rebuild_*`), torch/serialization.py (`persistent_id`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from gpu_train_cas.formats.layout import MAX_DIMENSIONS, MAX_INTEGER, plain
from gpu_train_cas.formats.pickle import Global, Object, Reference
from gpu_train_cas.formats.tensor import ITEM_BYTES

MAX_DEPTH = 100
MAX_NAME = 1024
MAX_PART = 256

_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL", "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128", "QInt8Storage": "I8", "QUInt8Storage": "U8", "QInt32Storage": "I32",
}  # fmt: skip
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16",
    "uint8": "U8", "bool": "BOOL", "complex64": "C64", "complex128": "C128",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip

_TENSOR_MAKERS = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"}
_WRAPPERS = {"_rebuild_parameter", "_rebuild_parameter_with_state", "_rebuild_device_tensor_from_cpu_tensor"}
_SPARSE = {
    "torch.sparse_coo": ("indices", "values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}
_SILENT = {"_modules", "_parameters", "_buffers", "_local_tensor"}
"""Attributes that hold a module's or a wrapper's content; a state_dict does not spell them either."""

_Child = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class View:
    """A storage as one tensor shows it.

    Attributes:
        key: the storage's record name.
        path: to the tensor; its string is the tensor's name.
        shape: the tensor's when its elements are the whole storage in order, else the storage's, flat.
        whole: which of the two it is.
    """

    key: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The way from the root to a value, spelled out only when somebody asks."""

    parent: Path | None = None
    part: str = ""

    def __truediv__(self, part: str) -> Path:
        return Path(self, part)

    def __str__(self) -> str:
        parts, path = [], self
        while path.parent is not None:
            parts.append(path.part)
            path = path.parent
        return plain(".".join(reversed(parts)))[:MAX_NAME]


def views(root: Any) -> Iterator[View]:
    """Every tensor and bare storage in the state, in the order of the pickle; "" names the root itself."""
    seen: set[int] = set()
    kept: list[Any] = []  # ids in `seen` stay taken as long as their objects live
    todo: list[tuple[Path, Iterator[_Child]]] = [(Path(), iter([(None, root)]))]
    while todo:
        parent, children = todo[-1]
        for key, value in children:
            if not _holds(value) or id(value) in seen:
                continue
            seen.add(id(value))
            kept.append(value)
            path = parent if key is None else parent / _part(key)
            view = _view(value, path)
            if view is not None:
                yield view
            elif not isinstance(value, Reference) and len(todo) <= MAX_DEPTH:
                todo.append((path, _children(value)))
                break
        else:
            todo.pop()


def _holds(value: Any) -> bool:
    """Whether there can be a storage in the value."""
    if isinstance(value, Object):
        return bool(value.args or value.items or value.elements or value.state is not None)
    return isinstance(value, Reference) or (isinstance(value, tuple) and bool(value))


def _children(value: Object | tuple[Any, ...]) -> Iterator[_Child]:
    """What a value holds, each with its key; None is the key of what goes by the name of its holder."""
    if isinstance(value, tuple):
        yield from enumerate(value)
        return
    yield from _arguments(value)
    yield from enumerate(value.elements or ())
    yield from value.items or ()
    for state in value.state if isinstance(value.state, tuple) else (value.state,):
        if isinstance(state, Object):
            for key, held in state.items or ():
                yield (None if isinstance(key, str) and key in _SILENT else key), held


def _arguments(call: Object) -> Iterator[_Child]:
    """What a maker was given, under the keys that tell most."""
    name, args = _name(call.maker), call.args
    if not isinstance(args, tuple):
        return
    if name == "_rebuild_from_type_v2" and len(args) == 4:
        yield None, Object(args[0], args[2], state=args[3])
    elif name == "_rebuild_sparse_tensor" and len(args) == 2 and isinstance(args[1], tuple):
        layout = args[0].args[0] if isinstance(args[0], Object) and _is_tuple(args[0].args, 1) else ""
        keys = _SPARSE.get(layout, ()) if isinstance(layout, str) else ()
        yield from zip(keys, args[1], strict=False)
    elif name in _WRAPPERS or len(args) == 1:
        yield from ((None, v) for v in args[:1])
    else:
        yield from enumerate(args)


def _view(value: Any, path: Path) -> View | None:
    """The view that a bare storage is, or a call of torch's rebuilding functions would have made."""
    if isinstance(value, Reference):
        storage = storage_of(value)
        return View(storage[0], path, storage[1], (storage[2],)) if storage else None
    if not isinstance(value, Object) or _name(value.maker) not in _TENSOR_MAKERS:
        return None
    args = value.args
    if not _is_tuple(args, 4) or not isinstance(args[0], Reference):
        return None
    storage = storage_of(args[0])
    if storage is None:
        return None
    key, dtype, numel = storage
    if _name(value.maker) == "_rebuild_tensor_v3" and len(args) > 6:  # an untyped storage, counted in bytes
        dtype = _DTYPES.get(_name(args[6]), "")
        numel //= ITEM_BYTES.get(dtype, 1)
    _, offset, shape, strides = args[:4]
    whole = offset == 0 and _is_shape(shape) and _is_shape(strides) and prod(shape) == numel
    if whole and _row_major(shape, strides):
        return View(key, path, dtype, shape, whole=True)
    return View(key, path, dtype, (numel,))


def storage_of(reference: Reference) -> tuple[str, str, int] | None:
    """A storage's record name, element type and number of elements; None for what is no storage of torch's."""
    pid = reference.pid
    if not _is_tuple(pid, 5) or not isinstance(pid[0], str) or pid[0] != "storage":
        return None
    key, numel = pid[2], pid[4]
    if not isinstance(numel, int) or not isinstance(key, (str, int)) or not 0 <= numel <= MAX_INTEGER:
        return None
    return _part(key), _STORAGES.get(_name(pid[1]), ""), numel


def _name(value: Any) -> str:
    return value.name if isinstance(value, Global) else ""


def _is_tuple(value: Any, length: int) -> bool:
    return isinstance(value, tuple) and len(value) >= length


def _is_shape(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) > MAX_DIMENSIONS:
        return False
    return all(isinstance(n, int) and 0 <= n <= MAX_INTEGER for n in value)


def _row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements follow each other in order, outermost dimension slowest."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=False):
        if size != 1 and stride != step:
            return prod(shape) == 0
        step *= size
    return len(shape) == len(strides)


def _part(key: Any) -> str:
    """A key of a dict as a part of a name; "?" for what is no word."""
    if isinstance(key, str):
        return key[:MAX_PART]
    return str(key) if isinstance(key, (int, float)) and abs(key) <= MAX_INTEGER else "?"
