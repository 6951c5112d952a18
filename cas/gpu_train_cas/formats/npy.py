"""NumPy's .npy: a header in the words of Python, then the elements. Format: numpy/lib/format.py, 1.0 to 3.0.

The header is read with three patterns instead of Python's parser: these need no recursion, no bound
on nesting and emit no warnings, and they match all that numpy and other writers write for plain arrays.
"""

from __future__ import annotations

import re
from math import prod

from gpu_train_cas.formats.kind import NPY_MAGIC
from gpu_train_cas.formats.layout import MAX_DIMENSIONS, FormatError, Layout, Unsupported
from gpu_train_cas.formats.source import Source, read_exactly
from gpu_train_cas.formats.tensor import Tensor

MAX_HEADER_BYTES = 10_000
"""As in numpy, which refuses longer ones unless the caller trusts the file."""

_DESCR = re.compile(r"""["']descr["']\s*:\s*["']([<>|=]?)([?a-zA-Z])(\d{0,9})(?:\[\w{1,9}\])?["']""", re.ASCII)
_ORDER = re.compile(r"""["']fortran_order["']\s*:\s*(True|False)""")
_SHAPE = re.compile(r"""["']shape["']\s*:\s*\(([\d\sL,]*)\)""", re.ASCII)
_DTYPES = {
    "f2": "F16", "f4": "F32", "f8": "F64", "i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64",
    "u1": "U8", "u2": "U16", "u4": "U32", "u8": "U64", "b1": "BOOL", "c8": "C64", "c16": "C128",
}  # fmt: skip


def array(source: Source, name: str) -> Tensor:
    """The one array of a .npy, which need not reach to the end of the source.

    Raises:
        FormatError: for a header that is broken, of objects or records, or promises more than there is.
    """
    tensor = _described(source, name)
    if tensor is None:
        raise Unsupported("the .npy does not hold a plain array (of numbers, strings or times)")
    if tensor.offset + tensor.length > source.size_bytes:
        raise FormatError(
            f"an array of {tensor.length} bytes at {tensor.offset} needs more than the {source.size_bytes} there are"
        )
    return tensor


def parse(source: Source) -> Layout:
    """The one array of a .npy file.

    Raises:
        FormatError: as `array` does.
    """
    return Layout.build("npy", [array(source, "array")], source.size_bytes)


def self_proof(source: Source) -> bool | None:
    """Whether the file is as long as its header says; None when it is longer or not a plain array.

    Raises:
        FormatError: when the header is not whole.
    """
    tensor = _described(source, "array")
    if tensor is None or tensor.offset + tensor.length < source.size_bytes:
        return None
    return tensor.offset + tensor.length == source.size_bytes


def _described(source: Source, name: str) -> Tensor | None:
    """The array as the header tells it, whatever the size of the source; None when it is not plain."""
    head = read_exactly(source, 12, 0, "a .npy header")
    major = head[6]
    if head[:6] != NPY_MAGIC or not 1 <= major <= 3:
        raise Unsupported(f".npy version {major} is not one of 1, 2 and 3")
    start, width = (10, 2) if major == 1 else (12, 4)
    length = int.from_bytes(head[8 : 8 + width], "little")
    if length > MAX_HEADER_BYTES:
        raise Unsupported(f"a .npy header of {length} bytes is longer than {MAX_HEADER_BYTES}")
    header = read_exactly(source, length, start, "a .npy header").decode("utf-8", "replace")
    descr, order, shape = _DESCR.search(header), _ORDER.search(header), _SHAPE.search(header)
    dims = _dims(shape.group(1)) if shape is not None else None
    if descr is None or order is None or dims is None or descr.group(2) == "O":
        return None
    dtype, item = _element(*descr.groups())
    size = prod(dims) * item
    if order.group(1) == "True" and sum(n != 1 for n in dims) > 1:
        dims = (prod(dims),)  # columns first: in row-major words only a flat run of elements
    return Tensor(name, dtype, dims if dtype else (size,), start + length, size)


def _element(order: str, kind: str, digits: str) -> tuple[str, int]:
    """Our name for an element type, "" for one that we have none for, and its bytes."""
    item = 8 if kind in "Mm" else 1 if kind == "?" else int(digits or 0) * (4 if kind == "U" else 1)
    little = order in "<|" or item == 1
    return (_DTYPES.get(kind + digits, "") if little else ""), item


def _dims(text: str) -> tuple[int, ...] | None:
    """The shape; Python 2 wrote its numbers with an L."""
    words = [w for w in (part.strip().rstrip("L") for part in text.split(",")) if w]
    if len(words) > MAX_DIMENSIONS or not all(w.isdecimal() and len(w) < 19 for w in words):
        return None
    return tuple(int(w) for w in words)
