"""safetensors: a JSON header behind its length, then the tensors.

The header is taken apart one tensor at a time, so that a hostile one of the greatest length costs
no more memory than its own bytes and the tensors it names. Format and limits: the README and
safetensors/src/tensor.rs of the reference implementation; gaps between tensors, which that one
refuses, are accepted here as opaque bytes, but such a file does not prove itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import prod
from typing import Any

from gpu_train_cas.formats.kind import MAX_HEADER_BYTES
from gpu_train_cas.formats.layout import MAX_INTEGER, FormatError, Layout, Unsupported, plain
from gpu_train_cas.formats.source import Source, read_exactly
from gpu_train_cas.formats.tensor import ITEM_BYTES, Tensor

MAX_TENSORS = 1 << 18
MAX_METADATA_BYTES = 16 << 20

_STRING = rb'"((?:[^"\\]++|\\.)*+)"'
_SPACE = rb"[ \t\r\n]*+"
_NAME = re.compile(_SPACE + _STRING + _SPACE + rb":" + _SPACE, re.DOTALL)
_VALUE = re.compile(rb"\{[^{}]{0,4096}+\}")
_PAIR = _STRING + _SPACE + rb":" + _SPACE + _STRING + _SPACE
_METADATA = re.compile(rb"\{" + _SPACE + rb"(?:" + _PAIR + rb"(?:," + _SPACE + _PAIR + rb")*+)?\}", re.DOTALL)
_EMPTY = re.compile(rb"\{" + _SPACE + rb"\}" + _SPACE)
_NEXT = re.compile(_SPACE + rb"([,}])")


def parse(source: Source) -> Layout:
    """The tensors of the file.

    Raises:
        FormatError: for a header that is broken or beyond the limits, tensors that overlap, leave the
            file or are not as long as their shape says, and a file that is cut short.
    """
    length = int.from_bytes(read_exactly(source, 8, 0, "the header's length"), "little")
    if length > MAX_HEADER_BYTES:
        raise FormatError(f"a header of {length} bytes is longer than the {MAX_HEADER_BYTES} of the format")
    header = read_exactly(source, length, 8, "the header")
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] | None = None
    for name, value in _entries(header):
        if name == "__metadata__" and metadata is None:
            metadata = value
        elif name in tensors or name == "__metadata__":
            raise FormatError(f"the header names {name[:200]!r} twice")
        elif len(tensors) >= MAX_TENSORS:
            raise Unsupported(f"more than {MAX_TENSORS} tensors are beyond the limits")
        else:
            tensors[name] = _tensor(name, value, 8 + length)
    return Layout.build("safetensors", tensors.values(), source.size_bytes, metadata)


def self_proof(source: Source) -> bool | None:
    """Whether the tensors fill the file from the header to its last byte, as the reference demands.

    None when they leave gaps or bytes behind them, which a file written in any order could have.

    Raises:
        FormatError: as `parse` does.
    """
    tensors = parse(source).tensors
    end = 8 + int.from_bytes(source.pread(8, 0), "little")
    for tensor in tensors:
        if tensor.offset != end:
            return None
        end += tensor.length
    return True if end == source.size_bytes else None


def _entries(header: bytes) -> Iterator[tuple[str, Any]]:
    """The names and values of the header's object, decoded one by one."""
    at, more = 1, _EMPTY.fullmatch(header) is None
    if not header.startswith(b"{"):
        raise FormatError("the header does not begin with {")
    while more:
        name = _NAME.match(header, at)
        word = _decoded(b'"' + name[1] + b'"') if name else ""
        value = (_METADATA if word == "__metadata__" else _VALUE).match(header, name.end()) if name else None
        following = _NEXT.match(header, value.end()) if value else None
        if value is None or following is None:
            raise FormatError(f"the header is broken at its byte {at}")
        yield word, _decoded(value[0]) if len(value[0]) <= MAX_METADATA_BYTES else {}
        at, more = following.end(), following[1] == b","
        if not more and header[at:].strip(b" "):
            raise FormatError(f"the header goes on behind its end at byte {at}")


def _decoded(data: bytes) -> Any:
    try:
        return _JSON.decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise FormatError(f"the header holds no JSON at {data[:80]!r}: {e}") from e


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key is there twice")
    return found


_JSON = json.JSONDecoder(object_pairs_hook=_unique)


def _tensor(name: str, value: Any, start: int) -> Tensor:
    """The tensor that an entry describes, checked for itself."""
    try:
        dtype, shape, (first, last) = value["dtype"], value["shape"], value["data_offsets"]
        numbers = [*shape, first, last]
    except (TypeError, KeyError, ValueError) as e:
        raise FormatError(f"tensor {name[:200]!r} lacks its dtype, shape or data_offsets") from e
    whole = all(type(n) is int and 0 <= n <= MAX_INTEGER for n in numbers)
    if not whole or not isinstance(dtype, str) or not isinstance(shape, list) or last < first:
        raise FormatError(f"tensor {name[:200]!r} has a dtype, shape or offsets that cannot be")
    item = ITEM_BYTES.get(dtype, 0)
    if item and prod(shape) * item != last - first:
        raise FormatError(
            f"tensor {name[:200]!r} of type {dtype} and shape {shape[:8]} takes {last - first} bytes, "
            f"not the {prod(shape) * item} that it should"
        )
    return Tensor(plain(name), dtype if item else "", tuple(shape), start + first, last - first)
