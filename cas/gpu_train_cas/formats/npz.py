"""NumPy's .npz: a zip archive of .npy files, whose arrays have extents where they are stored as they are."""

from __future__ import annotations

from gpu_train_cas.formats import npy
from gpu_train_cas.formats.archive import STORED, Archive
from gpu_train_cas.formats.layout import FormatError, Layout, plain
from gpu_train_cas.formats.source import Slice, Source
from gpu_train_cas.formats.tensor import Tensor


def is_npz(archive: Archive) -> bool:
    """Whether every record is a .npy."""
    return bool(archive.records) and all(r.name.endswith(".npy") for r in archive.records)


def parse(source: Source, archive: Archive) -> Layout:
    """The arrays that are neither deflated nor of Python objects; the others are opaque bytes.

    `metadata` says under "compressed" how many these are.

    Raises:
        FormatError: when two arrays overlap.
    """
    tensors = []
    for record in archive.records:
        if record.method == STORED:
            try:
                offset = archive.data_offset(source, record)
                held = npy.array(Slice(source, offset, record.stored_bytes), plain(record.name[:-4]))
            except FormatError:
                continue
            tensors.append(Tensor(held.name, held.dtype, held.shape, offset + held.offset, held.length))
    others = len(archive.records) - len(tensors)
    return Layout.build("npz", tensors, source.size_bytes, {"compressed": str(others)} if others else None)
