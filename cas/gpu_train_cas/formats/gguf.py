"""GGUF, versions 2 and 3: typed metadata, a table of tensors, their data. Little-endian only.

Format: ggml/docs/gguf.md; type numbers and block sizes: ggml/include/ggml.h and gguf-py/gguf/constants.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

from gpu_train_cas.formats.kind import GGUF_MAGIC
from gpu_train_cas.formats.layout import FormatError, Layout, Unsupported, plain
from gpu_train_cas.formats.source import Source, read_exactly
from gpu_train_cas.formats.tensor import Tensor

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_STRINGS = 1 << 22
MAX_NESTING = 4
MAX_DIMENSIONS = 8
MAX_ALIGNMENT = 1 << 20
MAX_KEPT_BYTES = 1024
"""Longer strings of the metadata (chat templates) are passed over."""

_ALIGNMENT = 32
_READ_BYTES = 1 << 20
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"
}  # fmt: skip


class _Type(NamedTuple):
    """A ggml type: so many bytes hold so many elements."""

    name: str
    elements: int
    block_bytes: int


_TYPES: Mapping[int, _Type] = {
    number: _Type(name, elements, block_bytes)
    for number, name, elements, block_bytes in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 40), (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210),
        (15, "Q8_K", 256, 292), (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (24, "I8", 1, 1), (25, "I16", 1, 2),
        (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8), (29, "IQ1_M", 256, 56), (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
    )
}  # fmt: skip


def parse(source: Source) -> Layout:
    """The tensors, with the scalars and short strings of the metadata in words.

    A type that is not known yet keeps its place: dtype "", up to the next tensor.

    Raises:
        FormatError: for another version, a broken table, numbers beyond the limits, and a file cut short.
    """
    cursor = _Cursor(source)
    magic, version, tensor_count, key_count = cursor.unpack("<4sIQQ")
    if magic != GGUF_MAGIC or version not in (2, 3):
        raise Unsupported(f"GGUF version {version} is not 2 or 3 (little-endian)")
    if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
        raise Unsupported(f"{tensor_count} tensors and {key_count} keys are beyond the limits")
    metadata: dict[str, str] = {}
    for _ in range(key_count):
        key = cursor.text(MAX_KEPT_BYTES)
        (kind,) = cursor.unpack("<I")
        value = cursor.value(kind)
        if value is not None:
            metadata[key] = value
    entries = [_entry(cursor) for _ in range(tensor_count)]
    start = -(-cursor.at // _alignment(metadata)) * _alignment(metadata) if entries else cursor.at
    return Layout.build("gguf", _placed(entries, start, source.size_bytes), source.size_bytes, metadata)


def self_proof(source: Source) -> bool:
    """Whether the header is whole and every tensor's data lie inside the file.

    Raises:
        FormatError: as `parse` does, when they do not.
    """
    parse(source)
    return True


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _entry(cursor: _Cursor) -> _Entry:
    """One row of the table; GGUF names the innermost dimension first."""
    name = cursor.text(MAX_KEPT_BYTES)
    (dimensions,) = cursor.unpack("<I")
    if dimensions > MAX_DIMENSIONS:
        raise Unsupported(f"tensor {name[:200]!r} of {dimensions} dimensions is beyond the limits")
    *inward, kind, offset = cursor.unpack(f"<{dimensions}QIQ")
    return _Entry(name, tuple(reversed(inward)), kind, offset)


def _placed(entries: list[_Entry], start: int, size_bytes: int) -> list[Tensor]:
    """The tensors with their offsets in the file."""
    entries.sort(key=lambda e: e.offset)
    tensors = []
    for entry, following in zip_longest(entries, entries[1:]):
        kind, elements = _TYPES.get(entry.kind), prod(entry.shape)
        if kind is None:
            end = start + following.offset if following is not None else size_bytes
            length = end - start - entry.offset
        elif elements % kind.elements or (entry.shape and entry.shape[-1] % kind.elements):
            raise FormatError(f"tensor {entry.name[:200]!r} does not come out even in blocks of {kind.elements}")
        else:
            length = elements // kind.elements * kind.block_bytes
        tensors.append(Tensor(entry.name, kind.name if kind else "", entry.shape, start + entry.offset, length))
    return tensors


def _alignment(metadata: Mapping[str, str]) -> int:
    """What the start of the data is a multiple of."""
    text = metadata.get("general.alignment", str(_ALIGNMENT))
    alignment = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 1 <= alignment <= MAX_ALIGNMENT:
        raise Unsupported(f"an alignment of {text[:20]} bytes is beyond the limits")
    return alignment


class _Cursor:
    """A place in the header that moves on, reading ahead in large steps."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.at = 0
        self.steps = 0
        self._buffer = b""
        self._buffered_at = 0

    def take(self, length: int) -> bytes:
        """The next bytes, which must all be there."""
        begin = self.at - self._buffered_at
        if not 0 <= begin <= len(self._buffer) - length:
            ahead = max(length, min(_READ_BYTES, self.source.size_bytes - self.at))
            self._buffer, self._buffered_at = read_exactly(self.source, ahead, self.at, "the header"), self.at
            begin = 0
        self.at += length
        return self._buffer[begin : begin + length]

    def unpack(self, form: str) -> tuple[Any, ...]:
        """The next numbers."""
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def skip(self, length: int) -> None:
        """Pass over bytes without reading them."""
        self.at += length
        if self.at > self.source.size_bytes:
            raise FormatError(f"the header runs past the end of the file ({self.source.size_bytes} bytes)")

    def text(self, most: int) -> str:
        """The next string."""
        length = int.from_bytes(self.take(8), "little")
        if length > most:
            raise Unsupported(f"a name of {length} bytes is longer than {most}")
        return plain(self.take(length).decode("utf-8", "replace"))

    def value(self, kind: int) -> str | None:
        """The next value in words; None for an array or a long string, which are passed over."""
        if kind in _SCALARS:
            return str(self.unpack(_SCALARS[kind])[0])
        if kind == _STRING:
            length = int.from_bytes(self.take(8), "little")
            if length <= MAX_KEPT_BYTES:
                return plain(self.take(length).decode("utf-8", "replace"))
            self.skip(length)
            return None
        self.skip_array(kind, 1)
        return None

    def skip_array(self, kind: int, depth: int) -> None:
        """Pass over an array and the arrays in it."""
        if kind != _ARRAY or depth > MAX_NESTING:
            raise Unsupported(f"a value of type {kind}, {depth} deep, is beyond the limits")
        inner, count = self.unpack("<IQ")
        if inner in _SCALARS:
            self.skip(count * struct.calcsize(_SCALARS[inner]))
            return
        self.steps += count
        if self.steps > MAX_STRINGS:
            raise Unsupported(f"more than {MAX_STRINGS} strings in arrays are beyond the limits")
        for _ in range(count):
            if inner == _STRING:
                self.skip(int.from_bytes(self.take(8), "little"))
            else:
                self.skip_array(inner, depth + 1)
