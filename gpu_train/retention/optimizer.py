"""What of a checkpoint is its optimizer's state, and how it can be taken out so that the rest stays as it is.

Frameworks keep it in files of its own (`optimizer.pt`, `*_optim_states.pt`, `distrib_optim.pt`), in folders of its own
(`optimizer_0/`), in one archive with the weights (`optimizer_states` of a Lightning `.ckpt`), or as items among the
weights (`.distcp`). Names say where to look; whether the model is in what would be left is counted, not believed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from gpu_train.base import TENSOR_ENDINGS
from gpu_train_cas import Entry, EntryKind, Reader, Tensor, TensorClass
from gpu_train_cas.chunking import WHOLE_FILE_BYTES
from gpu_train_cas.formats import METADATA, Cut, FormatError, Items, cut_state, layout, read_items
from gpu_train_cas.tensorclass import class_of

ENDINGS = (*TENSOR_ENDINGS, ".pkl", ".pickle", ".msgpack")
FOLDERS = re.compile(r"(?:distrib_)?optim(?:izer)?s?(?:[_-]?\d+)?(?:[_-]?states?)?|opt_states?", re.IGNORECASE)
"""Names of folders that hold nothing else: optimizer, optimizer_0, optim, opt_state."""

WORD = re.compile(r"(?:^|[_.\-])optim(?:izer)?s?(?:$|[_.\-0-9]|(?<=r)[A-Z])", re.IGNORECASE)
"""The word in the name of a file, or in the key of a saved dict."""

PART = re.compile(r"optim(?:izer)?s?(?:_?\d+)?(?:_states?|_state_dict)?", re.IGNORECASE)
"""The first or second part of an item's name in a distributed checkpoint: optimizer.state..., app.optim.state..."""

_DISTCP = ".distcp"
_MARGIN = 1.01
"""Flattened optimizer states are padded: they may have a little more elements than the model has."""

NONE_KNOWN = "it has no optimizer state that gpu-train knows of"
NO_WEIGHTS = (
    "without its optimizer's state the model would not be whole: the weights lie in it, as with DeepSpeed's ZeRO-3"
)


@dataclass(slots=True)
class OptimizerState:
    """How to take it out of a stored directory.

    Attributes:
        edits: what becomes of files and folders, by path: None leaves one out, a cut leaves a part of it out.
        size_bytes: original bytes that go.
        reason: why it cannot be taken out; empty when it can.
    """

    edits: dict[bytes, Cut | None] = field(default_factory=dict)
    size_bytes: int = 0
    reason: str = ""


def find_optimizer(reader: Reader, root: Entry) -> OptimizerState:
    """The optimizer's state in a checkpoint.

    Raises:
        Damaged, NotFound: when something of it cannot be read.
    """
    return _Search(reader).run(root)


class _Search:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._found = OptimizerState()
        self._items: dict[bytes, Items] = {}
        self._moments = 0
        self._weights = 0

    def run(self, root: Entry) -> OptimizerState:
        try:
            for path, entry in self._reader.walk(root):
                self._take(root, path, entry)
        except FormatError as e:
            return OptimizerState(reason=f"its optimizer's state cannot be taken out: {e}")
        if not self._found.edits:
            return OptimizerState(reason=NONE_KNOWN)
        if self._weights == 0 or self._moments > self._weights * _MARGIN:
            return OptimizerState(reason=NO_WEIGHTS)
        return self._found

    def _take(self, root: Entry, path: bytes, entry: Entry) -> None:
        name = os.fsdecode(entry.name)
        if entry.kind is EntryKind.DIRECTORY and FOLDERS.fullmatch(name):
            self._drop(path, entry)
        elif entry.kind is not EntryKind.FILE or self._is_below(path):
            if entry.kind is EntryKind.FILE:
                self._count(self._tensors(root, path, name, entry), dropped=True)
        else:
            self._file(root, path, name, entry)

    def _file(self, root: Entry, path: bytes, name: str, entry: Entry) -> None:
        tensors = self._tensors(root, path, name, entry)
        cut = None
        if any(_is_state(t, name) for t in tensors):
            cut = self._cut(root, path, name, entry)
        gone = () if cut is None else [t for t in tensors if _is_in(t, cut)]
        left = [t for t in tensors if t not in set(gone)]
        is_own = name.lower().endswith(ENDINGS) and WORD.search(os.path.splitext(name)[0]) is not None
        if is_own and not (cut is not None and any(class_of(t) is TensorClass.WEIGHTS for t in left)):
            self._drop(path, entry)
            self._count(tensors, dropped=True)
            return
        if cut is not None:
            self._found.edits[path] = cut
            self._found.size_bytes += sum(end - start for start, end in cut.holes)
            self._count(gone, dropped=True)
        self._count(left, dropped=False)
        if not tensors and name.lower().endswith(ENDINGS):
            self._weights += entry.size_bytes  # of a kind that we cannot look into: at most one element a byte

    def _tensors(self, root: Entry, path: bytes, name: str, entry: Entry) -> Sequence[Tensor]:
        """The tensors of a file; those of a small one, which has no table, are looked up in it."""
        file = self._reader.open(entry)
        if file.manifest.tensors or not name.lower().endswith(ENDINGS) or entry.size_bytes > WHOLE_FILE_BYTES:
            return file.manifest.tensors
        items = self._items_of(root, path.rpartition(b"/")[0]) if name.endswith(_DISTCP) else None
        found = layout(file, name, items)
        return () if found is None else found.tensors

    def _cut(self, root: Entry, path: bytes, name: str, entry: Entry) -> Cut | None:
        file = self._reader.open(entry)
        if name.endswith(_DISTCP):
            return cut_state(file, name, _is_part, self._items_of(root, path.rpartition(b"/")[0]))
        try:
            return cut_state(file, name, lambda key: WORD.search(key) is not None)
        except FormatError as e:
            raise FormatError(f"{os.fsdecode(path)}: {e}") from e

    def _items_of(self, root: Entry, folder: bytes) -> Items:
        if folder not in self._items:
            beside = self._reader.tree(self._reader.lookup(root, folder).digest).find(METADATA.encode())
            self._items[folder] = {} if beside is None else read_items(self._reader.open(beside))
        return self._items[folder]

    def _drop(self, path: bytes, entry: Entry) -> None:
        self._found.edits[path] = None
        self._found.size_bytes += entry.size_bytes

    def _is_below(self, path: bytes) -> bool:
        """Whether a path lies in a folder that goes."""
        return any(above in self._found.edits for above in _above(path))

    def _count(self, tensors: Iterable[Tensor], *, dropped: bool) -> None:
        for tensor in tensors:
            one = class_of(tensor)
            if dropped and one is TensorClass.EXP_AVG:
                self._moments += prod(tensor.shape)
            elif not dropped and one in (TensorClass.WEIGHTS, TensorClass.OTHER):
                self._weights += prod(tensor.shape)


def _is_state(tensor: Tensor, name: str) -> bool:
    """Whether a tensor's name says that it belongs to an optimizer."""
    if name.endswith(_DISTCP):
        return _is_part(tensor.name)
    return WORD.search(tensor.name.partition(".")[0]) is not None


def _is_part(name: str) -> bool:
    return any(PART.fullmatch(part) for part in name.split(".")[:2])


def _is_in(tensor: Tensor, cut: Cut) -> bool:
    return any(start < tensor.offset + tensor.length and tensor.offset < end for start, end in cut.holes)


def _above(path: bytes) -> Iterator[bytes]:
    while path := path.rpartition(b"/")[0]:
        yield path
