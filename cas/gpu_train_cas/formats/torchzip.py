"""torch's zip archives (`torch.save` since 1.6, TorchScript) and files of several of them (.distcp).

Every record `data/<key>` that is stored as it is gives an extent, whatever else is wrong; names, types
and shapes come from `data.pkl` when that can be read. Layout of the records: torch/serialization.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from gpu_train_cas.formats import pickle
from gpu_train_cas.formats.archive import STORED, Archive, Record, read_archive
from gpu_train_cas.formats.layout import FormatError, Layout, plain
from gpu_train_cas.formats.source import Source
from gpu_train_cas.formats.state import View, views
from gpu_train_cas.formats.tensor import ITEM_BYTES, Tensor

MAX_ARCHIVES = 1 << 16
MAX_PICKLE_BYTES = 32 << 20

_PICKLES = {"data/": "data.pkl", "constants/": "constants.pkl"}
"""Folders of storages, and the pickle that names them (the second is TorchScript's)."""


def is_torch(archive: Archive) -> bool:
    """Whether the archive was written by torch: it holds a data.pkl."""
    return any(r.name.rpartition("/")[2] == "data.pkl" for r in archive.records)


def parse(source: Source, name: str, last: Archive) -> Layout:
    """The tensors of the file whose last archive that is.

    Names of tensors in a file of several archives begin with `item-N`, in the order of the file; so
    do those of a `.distcp`, whose items' names are in the `.metadata` beside it, by their offsets.

    `metadata` says under "pickle" why the names could not be read, when so.

    Raises:
        FormatError: when two extents overlap.
    """
    archives = list(_archives(source, last))
    archives.reverse()
    several = len(archives) > 1 or name.endswith(".distcp")
    tensors: list[Tensor] = []
    wrong: dict[str, str] = {}
    for index, archive in enumerate(archives):
        try:
            tensors += _tensors(source, archive, f"item-{index}", several, wrong)
        except FormatError:
            if archive is last:
                raise
    return Layout.build("torch", tensors, source.size_bytes, wrong)


def outer_keys(source: Source, last: Archive) -> list[str]:
    """The keys of the outermost dict of an archive's state; none when it is no dict.

    Raises:
        FormatError: when the pickle cannot be read.
    """
    record = next(r for r in last.records if r.name.rpartition("/")[2] == "data.pkl")
    root = pickle.read(last.inflate(source, record, MAX_PICKLE_BYTES))
    pairs = (root.items or ()) if isinstance(root, pickle.Object) else ()
    return [plain(key) for key, _ in pairs if isinstance(key, str)]


def _archives(source: Source, last: Archive) -> Iterator[Archive]:
    """The archives from the last one back, until something else ends where one should."""
    archive = last
    for _ in range(MAX_ARCHIVES):
        yield archive
        if archive.start == 0:
            return
        try:
            archive = read_archive(source, archive.start)
        except FormatError:
            return
        if not is_torch(archive):
            return


def _tensors(source: Source, archive: Archive, item: str, several: bool, wrong: dict[str, str]) -> Iterator[Tensor]:
    records = {r.name: r for r in archive.records}
    root = min((n for n in records if n.rpartition("/")[2] == "data.pkl"), key=len)[: -len("data.pkl")]
    order = records.get(root + "byteorder")
    foreign = order is not None and archive.inflate(source, order, 64).strip() == b"big"
    for folder, pickled in _PICKLES.items():
        known = _views(source, archive, records.get(root + pickled), wrong)
        prefix = root + folder
        for record in archive.records:
            if record.method != STORED or not record.name.startswith(prefix):
                continue
            view = known.get(record.name[len(prefix) :])
            word = record.name[len(root) :] if view is None else str(view.path)
            name = f"{item}.{word}".rstrip(".") if several or not word else word
            dtype, shape = _fitting(view, record.size_bytes, foreign)
            yield Tensor(plain(name), dtype, shape, archive.data_offset(source, record), record.size_bytes)


def _views(source: Source, archive: Archive, record: Record | None, wrong: dict[str, str]) -> Mapping[str, View]:
    """Per storage its first whole view, else its first view; nothing when `wrong` says why it cannot be read."""
    best: dict[str, View] = {}
    if record is not None:
        try:
            root = pickle.read(archive.inflate(source, record, MAX_PICKLE_BYTES))
        except FormatError as e:
            wrong.setdefault("pickle", str(e))
            return {}
        for view in views(root):
            held = best.get(view.key)
            if held is None or (view.whole and not held.whole):
                best[view.key] = view
    return best


def _fitting(view: View | None, length: int, foreign: bool) -> tuple[str, tuple[int, ...]]:
    """The type and shape, where the record's length bears them out; else so many bytes."""
    item = ITEM_BYTES.get(view.dtype, 0) if view is not None else 0
    if view is None or foreign or not item or prod(view.shape) * item != length:
        return "", (length,)
    return view.dtype, view.shape
