"""Containers of tensors: where in a file each tensor's bytes lie, without importing their libraries.

A `Source` is bytes to look at (`FileSource` for an open file, `BytesSource` for memory). `layout`
gives a `Layout` of `Tensor` extents, or None for a file to be treated as opaque; `parse` does the
same and says what is wrong; `self_proof` tells whether a file is complete by its own account;
`read_items` reads what the parts of a torch.distributed.checkpoint are called. The `name` is a hint:
content decides where it can. Formats, limits and rules: cas/spec/formats.md.
"""

from gpu_train_cas.formats.container import layout, parse, self_proof
from gpu_train_cas.formats.dcp import METADATA, Items, read_items
from gpu_train_cas.formats.layout import FormatError, Layout, UnknownFormat, Unsupported
from gpu_train_cas.formats.source import BytesSource, FileSource, Source
from gpu_train_cas.formats.tensor import ITEM_BYTES, Tensor

__all__ = [
    "ITEM_BYTES",
    "METADATA",
    "BytesSource",
    "FileSource",
    "FormatError",
    "Items",
    "Layout",
    "Source",
    "Tensor",
    "UnknownFormat",
    "Unsupported",
    "layout",
    "parse",
    "read_items",
    "self_proof",
]
