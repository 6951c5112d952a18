"""The doors of the package: which container a file is, where its tensors lie, whether it is complete."""

from __future__ import annotations

from gpu_train_cas.formats import archive, gguf, npy, npz, safetensors, torchzip
from gpu_train_cas.formats.layout import FormatError, Layout, UnknownFormat
from gpu_train_cas.formats.source import Source

_HEAD_BYTES = 16
_NEVER_EMPTY = (".pt", ".pth", ".ckpt", ".npy", ".npz", ".gguf")


def parse(source: Source, name: str = "") -> Layout:
    """Where the tensors lie; for explorers, who want to know what is wrong.

    Raises:
        FormatError: for a known container that is broken, cut short or beyond the limits of the spec.
        UnknownFormat: for a file that is no container we know.
    """
    kind = _recognised(source, name)
    if kind == "npy":
        return npy.parse(source)
    if kind == "gguf":
        return gguf.parse(source)
    if kind == "safetensors":
        return safetensors.parse(source)
    if kind == "zip":
        last = archive.read_archive(source, source.size_bytes)
        if torchzip.is_torch(last):
            return torchzip.parse(source, name, last)
        if npz.is_npz(last):
            return npz.parse(source, last)
    raise UnknownFormat(f"{name or 'the file'} is no container of tensors that gpu-train knows")


def layout(source: Source, name: str = "") -> Layout | None:
    """Where the tensors lie, or None for a file that is to be treated as opaque bytes.

    Bad content never raises; OSError from reading does. One small read suffices for most files that
    are no container.
    """
    try:
        return parse(source, name)
    except (FormatError, UnknownFormat):
        return None


def self_proof(source: Source, name: str = "") -> bool | None:
    """Whether the file proves by its own bytes that it is complete, from its head and tail alone.

    True: it does. False: it is a known container and not complete. None: nothing in it can tell.
    """
    kind = _recognised(source, name)
    if kind == "npy":
        return npy.self_proof(source)
    if kind == "gguf":
        return gguf.self_proof(source)
    if kind == "safetensors":
        return safetensors.self_proof(source)
    if kind == "zip":
        return archive.self_proof(source)
    return False if not source.size_bytes and name.endswith(_NEVER_EMPTY) else None


def _recognised(source: Source, name: str) -> str:
    """The kind of container by the first bytes, "" for none; the name decides where there is no magic."""
    head = source.pread(_HEAD_BYTES, 0)
    for magic, kind in ((archive.LOCAL_MAGIC, "zip"), (npy.MAGIC, "npy"), (gguf.MAGIC, "gguf")):
        if head.startswith(magic):
            return kind
    return "safetensors" if safetensors.looks_right(head, source.size_bytes, name) else ""
