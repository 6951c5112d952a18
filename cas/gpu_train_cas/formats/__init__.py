"""Containers of tensors: where in a file each tensor's bytes lie, without importing their libraries.

A `Source` is bytes to look at (`FileSource` for an open file, `BytesSource` for memory). `layout`
gives a `Layout` of `Tensor` extents, or None for a file to be treated as opaque; `parse` does the
same and says what is wrong; `self_proof` tells whether a file is complete by its own account;
`read_items` and `read_shapes` read what the parts of a torch.distributed.checkpoint are called and belong to;
`outer_keys` what a torch archive's state consists of; `cut_state` says how to
take a part of a training's state out of a file. The `name` is a hint:
content decides where it can. Formats, limits and rules: cas/spec/formats.md. A format's module is loaded when
the first file of its kind is met.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_train_cas.formats.container import (
    cut_state,
    layout,
    outer_keys,
    parse,
    read_items,
    read_shapes,
    self_proof,
)
from gpu_train_cas.formats.kind import METADATA
from gpu_train_cas.formats.layout import FormatError, Layout, UnknownFormat, Unsupported
from gpu_train_cas.formats.source import BytesSource, FileSource, Source
from gpu_train_cas.formats.tensor import ITEM_BYTES, Tensor
from gpu_train_cas.lazy import lazy_names

if TYPE_CHECKING:
    from gpu_train_cas.formats import archive as archive
    from gpu_train_cas.formats import dcp as dcp
    from gpu_train_cas.formats import gguf as gguf
    from gpu_train_cas.formats import hdf5 as hdf5
    from gpu_train_cas.formats import npy as npy
    from gpu_train_cas.formats import npz as npz
    from gpu_train_cas.formats import safetensors as safetensors
    from gpu_train_cas.formats import torchcut as torchcut
    from gpu_train_cas.formats import torchzip as torchzip
    from gpu_train_cas.formats.cut import Cut
    from gpu_train_cas.formats.dcp import Items

__all__ = [
    "ITEM_BYTES",
    "METADATA",
    "BytesSource",
    "Cut",
    "FileSource",
    "FormatError",
    "Items",
    "Layout",
    "Source",
    "Tensor",
    "UnknownFormat",
    "Unsupported",
    "cut_state",
    "layout",
    "outer_keys",
    "parse",
    "read_items",
    "read_shapes",
    "self_proof",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"gpu_train_cas.formats.cut": ("Cut",), "gpu_train_cas.formats.dcp": ("Items",)},
    modules=("archive", "dcp", "gguf", "hdf5", "npy", "npz", "safetensors", "torchcut", "torchzip"),
)
