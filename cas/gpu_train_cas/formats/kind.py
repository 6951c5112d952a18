"""Which kind of container a file is, by its first bytes and its name; nothing of a kind is loaded for that."""

from __future__ import annotations

from gpu_train_cas.formats.source import Source

ZIP_MAGIC = b"PK\x03\x04"
NPY_MAGIC = b"\x93NUMPY"
GGUF_MAGIC = b"GGUF"
HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
MAX_HEADER_BYTES = 100_000_000
"""The longest header that safetensors allows."""

_MAGICS = ((ZIP_MAGIC, "zip"), (NPY_MAGIC, "npy"), (GGUF_MAGIC, "gguf"), (HDF5_MAGIC, "hdf5"))

METADATA = ".metadata"
"""Beside the `.distcp` files of a torch.distributed.checkpoint: what is in them."""

DISTCP = ".distcp"
_HEAD_BYTES = 16


def kind_of(source: Source, name: str) -> str:
    """zip, npy, gguf, hdf5 or safetensors by the first bytes, "" for none; the name decides where there is no magic."""
    head = source.pread(_HEAD_BYTES, 0)
    for magic, kind in _MAGICS:
        if head.startswith(magic):
            return kind
    return "safetensors" if _is_safetensors(head, source.size_bytes, name) else ""


def _is_safetensors(head: bytes, size_bytes: int, name: str) -> bool:
    """Whether the first bytes of a file are those of a safetensors file, complete or not.

    There is no magic, so: a length within the limit and a "{" behind it. A length beyond the file's
    is one cut short when the file is called .safetensors, and something else when it is not.
    """
    if name.endswith(".safetensors"):
        return True
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and 2 <= length <= min(MAX_HEADER_BYTES, size_bytes - 8)
