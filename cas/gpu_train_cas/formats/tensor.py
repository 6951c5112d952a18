"""A tensor's place in a file, and the element types that occur in checkpoints."""

from __future__ import annotations

from typing import NamedTuple

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
    "C64": 8, "C128": 16,
}  # fmt: skip
"""Bytes per element, by the names that safetensors uses; "" is a type not known (quantised blocks)."""


class Tensor(NamedTuple):
    """A named run of elements in a file.

    Attributes:
        name: as the container spells it; for pickled state, the path to it joined with dots.
        dtype: a key of ITEM_BYTES, a container's own name (such as "Q4_K"), or "".
        shape: elements per dimension, outermost first.
        offset: byte offset in the file.
        length: bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
