"""Which earlier block a block is likely to be like (cas/spec/deltas.md, Pairing).

`Bases` says which earlier directories to look in. A `Pairer` finds for a file those that correspond to it, and for
each of its extents the same tensor or the same run of small tensors there. Blocks of both are cut at the same
steps, so that a block's base is the block at the same place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gpu_train_cas.chunking import Extent, Span, extents
from gpu_train_cas.codecs import Grid, Role
from gpu_train_cas.codecs.payload import PREDICTABLE
from gpu_train_cas.digest import HOLE, Digest
from gpu_train_cas.errors import Damaged, NotFound, TooNew
from gpu_train_cas.formats import ITEM_BYTES, Layout, Tensor
from gpu_train_cas.manifest import Manifest
from gpu_train_cas.originals import Original
from gpu_train_cas.reader import Reader
from gpu_train_cas.tensorclass import TensorClass, class_of, class_of_run
from gpu_train_cas.tree import Entry, EntryKind

MAX_ALIKE = 32
"""Other files of the same ending that are looked into for a file's tensors, per earlier directory."""

MAX_DROPPED = 2
"""Leading parts of a tensor's name that may be missing on one side: `bert.encoder.w` is like `encoder.w`."""

_FIRST, _SECOND = "exp_avg", "exp_avg_sq"
_Key = tuple[str, str, tuple[int, ...]]
_RunKey = tuple[tuple[str, str, tuple[int, ...], int], ...]


class Bases(NamedTuple):
    """Where a writer looks for blocks to take deltas against.

    Attributes:
        roots: earlier directories, the most promising first; they must be in the store.
        depths: per class of tensor, how many deltas may already lie below a base; -1 for none at all, so that the
            class is stored afresh. What is not named may go as deep as the engine allows.
        originals: stored directories, those of `roots` or others, whose plain files may still be there: what they
            hold is read from them rather than decoded.
    """

    roots: Sequence[Entry] = ()
    depths: Mapping[TensorClass, int] = MappingProxyType({})
    originals: Sequence[Original] = ()


class Pairer:
    """Finds partners for the files of one directory. One thread at a time."""

    def __init__(self, reader: Reader, bases: Bases | None) -> None:
        self._reader = reader
        self._bases = bases or Bases()
        self._files: list[dict[bytes, Entry]] | None = None
        self._known: dict[Digest, _BaseFile | None] = {}

    def pair(self, path: bytes, layout: Layout | None, size_bytes: int) -> Pairing:
        """The partners of a file at that relative path."""
        files = list(self._partners(path, layout)) if layout is not None and layout.tensors else []
        return Pairing(layout, size_bytes, files, self._bases.depths)

    def _partners(self, path: bytes, layout: Layout) -> Iterator[_BaseFile]:
        """In each earlier directory the file at the same path, and others where that lacks some of the tensors."""
        names = {name for tensor in layout.tensors for name in shortened(tensor.name)}
        exact = {tensor.name for tensor in layout.tensors}
        for files in self._listed():
            found = self._loaded(files[path]) if path in files else None
            if found is not None and names & found.names:
                yield found
            if found is None or not exact <= found.names:
                ending = path.rpartition(b".")[2]
                alike = [e for p, e in files.items() if p != path and p.rpartition(b".")[2] == ending]
                others = (self._loaded(entry) for entry in alike[:MAX_ALIKE])
                yield from (other for other in others if other is not None and names & other.names)

    def _listed(self) -> list[dict[bytes, Entry]]:
        if self._files is None:
            self._files = []
            for root in self._bases.roots:
                try:
                    below = dict(self._reader.walk(root))
                except (NotFound, Damaged, TooNew):  # it can help no more
                    continue
                self._files.append({p: e for p, e in below.items() if e.kind is EntryKind.FILE and e.manifest})
        return self._files

    def _loaded(self, entry: Entry) -> _BaseFile | None:
        assert entry.manifest is not None
        if entry.manifest not in self._known:
            try:
                manifest = self._reader.manifest(entry)
            except (NotFound, Damaged, TooNew):
                manifest = None
            self._known[entry.manifest] = _BaseFile(manifest) if manifest is not None and manifest.tensors else None
        return self._known[entry.manifest]


class Companion(NamedTuple):
    """Another part of the same file that helps one, [start, end), and how."""

    start: int
    end: int
    role: Role


class Pairing:
    """What the spans of one file are and what they go with. Threads may share it."""

    def __init__(
        self, layout: Layout | None, size_bytes: int, partners: Sequence[_BaseFile], depths: Mapping[TensorClass, int]
    ) -> None:
        self._extents = _extents(size_bytes, layout)
        self._starts = [found.extent.start for found in self._extents]
        self._partners = partners
        self._depths = depths
        self._moments = _moments(self._extents)

    def class_of(self, span: Span) -> TensorClass:
        """The class of a span's tensors."""
        return self.class_at(span.start)

    def class_at(self, offset: int) -> TensorClass:
        """The class of the tensors at that place of the file."""
        return self._extents[bisect_right(self._starts, offset) - 1].tensor_class

    def depth(self, span: Span, most: int) -> int:
        """How many deltas may lie below a span's base; -1 for none at all."""
        return min(most, self._depths.get(self._at(span).tensor_class, most))

    def base_of(self, span: Span) -> Digest | None:
        """The block at the same place of the same tensor in the first earlier file that has one."""
        at = self._at(span)
        for partner in self._partners:
            start = partner.start_of(at)
            if start is not None:
                return partner.block(start + span.start - at.extent.start, span.end - span.start)
        return None

    def sibling_of(self, span: Span) -> Companion | None:
        """The other moment beside a span of one, where it helps: see `_moments`."""
        at = self._at(span)
        found = self._moments.get(at.extent.start)
        if found is None:
            return None
        shift = found.start - at.extent.start
        return Companion(span.start + shift, span.end + shift, found.role)

    def grid_of(self, span: Span) -> Grid | None:
        """Where a span lies in its tensor, if that has rows."""
        at = self._at(span)
        if at.extent.tensor is None:
            return None
        (tensor,) = at.tensors
        item, shift = ITEM_BYTES.get(tensor.dtype, 0), span.start - tensor.offset
        if len(tensor.shape) < 2 or not item or shift % item:
            return None
        row = tensor.shape[-1]
        is_moment = at.tensor_class in (TensorClass.EXP_AVG, TensorClass.EXP_AVG_SQ)
        return Grid(row, shift // item % row, is_moment) if row else None

    def _at(self, span: Span) -> _Found:
        return self._extents[bisect_right(self._starts, span.start) - 1]


class _Found(NamedTuple):
    """An extent with the tensors in it; `keys` are the names to look for, the likeliest first."""

    extent: Extent
    tensors: tuple[Tensor, ...]
    tensor_class: TensorClass

    @property
    def run_key(self) -> _RunKey:
        """What makes a run of small tensors the same: all of it but where it starts."""
        return tuple((t.name, t.dtype, t.shape, t.offset - self.extent.start) for t in self.tensors)


def _extents(size_bytes: int, layout: Layout | None) -> list[_Found]:
    tensors = layout.tensors if layout else ()
    starts = [t.offset for t in tensors]
    found = []
    for extent in extents(size_bytes, layout):
        if extent.tensor is not None:
            inside: tuple[Tensor, ...] = (tensors[extent.tensor],)
            found.append(_Found(extent, inside, class_of(inside[0])))
        else:
            first, last = bisect_right(starts, extent.start - 1), bisect_right(starts, extent.end - 1)
            inside = tensors[first:last]
            found.append(_Found(extent, inside, class_of_run(inside) if extent.dtype else TensorClass.OTHER))
    return found


def _moments(found: Sequence[_Found]) -> dict[int, Companion]:
    """Where the extent of a moment starts -> the other one, which helps it.

    The second helps the first with its sizes; in F32 the first helps to predict the second, which saves more. Not
    both, since then each would need the other.
    """
    moments: dict[tuple[str, str], list[_Found]] = {}
    for one in found:
        stem, _, last = one.tensors[0].name.rpartition(".") if one.extent.tensor is not None else ("", "", "")
        if last in (_FIRST, _SECOND):
            moments.setdefault((stem, last), []).append(one)
    helped = {}
    for (stem, last), ones in moments.items():
        others = moments.get((stem, _SECOND), []) if last == _FIRST else []
        if len(ones) != 1 or len(others) != 1 or not _same(ones[0].tensors[0], others[0].tensors[0]):
            continue
        first, second = ones[0].extent, others[0].extent
        if first.dtype in PREDICTABLE:
            helped[second.start] = Companion(first.start, first.end, Role.FIRST_MOMENT)
        else:
            helped[first.start] = Companion(second.start, second.end, Role.SIZES)
    return helped


def _same(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.shape, one.length) == (other.dtype, other.shape, other.length)


class _BaseFile:
    """A stored file as a partner: where its tensors and runs start, and its blocks by their place."""

    def __init__(self, manifest: Manifest) -> None:
        self.names = {name for tensor in manifest.tensors for name in shortened(tensor.name)}
        self._manifest = manifest
        self._tensors: dict[_Key, list[int]] = {}
        self._loose: dict[_Key, list[int]] = {}
        self._runs: dict[_RunKey, int] = {}
        for found in _extents(manifest.size_bytes, Layout(manifest.format, manifest.tensors)):
            if found.extent.tensor is None:
                if found.extent.dtype:
                    self._runs.setdefault(found.run_key, found.extent.start)
                continue
            tensor = found.tensors[0]
            for dropped, name in enumerate(shortened(tensor.name)):
                table = self._loose if dropped else self._tensors
                table.setdefault((name, tensor.dtype, tensor.shape), []).append(tensor.offset)

    def start_of(self, found: _Found) -> int | None:
        """Where what corresponds to an extent starts, if there is such a thing."""
        if found.extent.tensor is None:
            return self._runs.get(found.run_key) if found.extent.dtype else None
        tensor = found.tensors[0]
        for name in shortened(tensor.name):
            key = (name, tensor.dtype, tensor.shape)
            offsets = self._tensors.get(key) or self._loose.get(key, [])
            if len(offsets) == 1 or tensor.offset in offsets:
                return tensor.offset if tensor.offset in offsets else offsets[0]
        return None

    def block(self, start: int, length: int) -> Digest | None:
        """The block that is exactly [start, start + length) of the file."""
        for ref in self._manifest.covering(start, start + 1):
            if (ref.start, ref.end) == (start, start + length) and ref.digest != HOLE:
                return ref.digest
        return None


def shortened(name: str) -> list[str]:
    """A tensor's name, and the name without its leading parts: `encoder.w` may be called `bert.encoder.w` elsewhere."""
    names = [name]
    for _ in range(MAX_DROPPED):
        rest = names[-1].partition(".")[2]
        if "." not in rest:
            break
        names.append(rest)
    return names
