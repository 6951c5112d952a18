"""Whether an HDF5 file is complete, by its superblock. Its tensors are not looked for: they lie in chunks and trees.

Format: HDF5 File Format Specification, II.A "Format Signature and Superblock"; that the library marks version 0 too
while a file is open for writing was seen with h5py 3.
"""

from __future__ import annotations

import struct

from gpu_train_cas.formats.layout import FormatError, Unsupported
from gpu_train_cas.formats.source import Source, read_exactly

_ADDRESS_BYTES = 8
_HEAD_BYTES = 56
_PLACES = {0: (13, 20, 24), 1: (13, 20, 28), 2: (9, 11, 12), 3: (9, 11, 12)}
"""By the superblock's version: where the size of addresses, the flags and the base address are. The end of the file is
the third address."""


def self_proof(source: Source) -> bool | None:
    """Whether a file was closed after writing and is as long as it says; None when it does not tell.

    Raises:
        FormatError: when it is cut short.
        Unsupported: for a version that is not known.
    """
    head = read_exactly(source, _HEAD_BYTES, 0, "a superblock")
    if head[8] not in _PLACES:
        raise Unsupported(f"an HDF5 superblock of version {head[8]}")
    size_at, flags_at, base_at = _PLACES[head[8]]
    if head[size_at] != _ADDRESS_BYTES:
        raise Unsupported(f"HDF5 addresses of {head[size_at]} bytes")
    base, _, end = struct.unpack_from("<3Q", head, base_at)
    if source.size_bytes < end:
        raise FormatError(f"an HDF5 file of {source.size_bytes} bytes says that it has {end}: it is cut short")
    if head[flags_at] & 1:
        raise FormatError("the HDF5 file was not closed after writing")
    return True if not base and source.size_bytes == end else None
