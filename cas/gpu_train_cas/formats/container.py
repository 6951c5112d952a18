"""The doors of the package: which container a file is, where its tensors lie, whether it is complete."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpu_train_cas import formats
from gpu_train_cas.formats.kind import DISTCP, kind_of
from gpu_train_cas.formats.layout import FormatError, Layout, UnknownFormat, Unsupported
from gpu_train_cas.formats.source import Source

if TYPE_CHECKING:
    from gpu_train_cas.formats.cut import Cut
    from gpu_train_cas.formats.dcp import Items

_NEVER_EMPTY = (".pt", ".pth", ".ckpt", ".npy", ".npz", ".gguf", ".h5", ".hdf5", ".keras")


def parse(source: Source, name: str = "") -> Layout:
    """Where the tensors lie; for explorers, who want to know what is wrong.

    Raises:
        FormatError: for a known container that is broken, cut short or beyond the limits of the spec.
        UnknownFormat: for a file that is no container we know.
    """
    with _foreseen(name):
        return _parse(source, name)


def layout(source: Source, name: str = "", items: Items | None = None) -> Layout | None:
    """Where the tensors lie, or None for a file that is to be treated as opaque bytes.

    `items` are those of the `.metadata` in the file's folder, where there is one: they name the tensors of its
    `.distcp` files. Bad content never raises; OSError from reading does. One small read suffices for most files that
    are no container.
    """
    try:
        found = parse(source, name)
    except (FormatError, UnknownFormat):
        return None
    own = (items or {}).get(name.rpartition("/")[2])
    return formats.dcp.named(found, own) if own and name.endswith(DISTCP) else found


def read_items(source: Source) -> Items:
    """The items that a `.metadata` file lists; nothing when it cannot be read."""
    return formats.dcp.read_items(source)


def read_shapes(source: Source) -> Mapping[str, tuple[int, ...]]:
    """The shapes of the whole tensors that a `.metadata` file lists; nothing when it cannot be read."""
    return formats.dcp.read_shapes(source)


def outer_keys(source: Source, name: str) -> list[str]:
    """The keys of the outermost dict that a torch archive holds; none for another file.

    Raises:
        FormatError: when it cannot be read.
    """
    with _foreseen(name):
        if kind_of(source, name) == "zip":
            last = formats.archive.read_archive(source, source.size_bytes)
            if formats.torchzip.is_torch(last):
                return formats.torchzip.outer_keys(source, last)
    return []


def cut_state(source: Source, name: str, drop: Callable[[str], bool], items: Items | None = None) -> Cut | None:
    """How to take a part of a training's state out of a file, and leave the rest where it is; None when it has none.

    In a torch archive of a dict, `drop` is asked for the keys of that dict; in a `.distcp` file, for the names of its
    items in `items`.

    Raises:
        FormatError: when that cannot be done, saying why.
    """
    with _foreseen(name):
        if name.endswith(DISTCP):
            own = (items or {}).get(name.rpartition("/")[2], ())
            return formats.dcp.cut_items(own, source.size_bytes, drop)
        if kind_of(source, name) == "zip":
            return formats.torchcut.cut_torch(source, drop)
    return None


def self_proof(source: Source, name: str = "") -> bool | None:
    """Whether the file proves by its own bytes that it is complete, from its head and tail alone.

    True: it does. False: it is a known container that is cut short, still written or broken.
    None: nothing in it can tell, or it is of a kind that we cannot judge (`Unsupported`).
    """
    kind = kind_of(source, name)
    try:
        with _foreseen(name):
            if kind == "npy":
                return formats.npy.self_proof(source)
            if kind == "gguf":
                return formats.gguf.self_proof(source)
            if kind == "hdf5":
                return formats.hdf5.self_proof(source)
            if kind == "safetensors":
                return formats.safetensors.self_proof(source)
            if kind == "zip":
                return formats.archive.self_proof(source)
    except Unsupported:
        return None
    except FormatError:
        return False
    return False if not source.size_bytes and name.endswith(_NEVER_EMPTY) else None


def _parse(source: Source, name: str) -> Layout:
    kind = kind_of(source, name)
    if kind == "npy":
        return formats.npy.parse(source)
    if kind == "gguf":
        return formats.gguf.parse(source)
    if kind == "safetensors":
        return formats.safetensors.parse(source)
    if kind == "zip":
        last = formats.archive.read_archive(source, source.size_bytes)
        if formats.torchzip.is_torch(last):
            return formats.torchzip.parse(source, name, last)
        if formats.npz.is_npz(last):
            return formats.npz.parse(source, last)
    raise UnknownFormat(f"{name or 'the file'} is no container of tensors that gpu-train knows")


@contextmanager
def _foreseen(name: str) -> Iterator[None]:
    """A net under the parsers: a mistake in one of them must not cost anybody a checkpoint."""
    try:
        yield
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, struct.error, zlib.error) as e:
        if isinstance(e, (FormatError, UnknownFormat)):
            raise
        raise Unsupported(f"{name or 'the file'} is broken in a way not foreseen ({e!r}); please report it") from e
