"""How two checkpoints differ: which files, and of each tensor how much.

Tensors are matched by name, whatever files and containers they lie in. What consists of the same blocks is known to be
the same without being read; of the rest, memory holds a few chunks at a time.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_train.difference import Difference
from gpu_train.elements import COMPLEX, numbers, sum_of_squares
from gpu_train.tensor_stats import CHUNK_BYTES, TILE_ELEMENTS, in_order
from gpu_train.tensor_table import READ_ERRORS, StoredTensor, TensorTable, Trouble
from gpu_train.tensors import NUMPY
from gpu_train_cas import OnProgress
from gpu_train_cas.formats import ITEM_BYTES
from gpu_train_cas.pairing import shortened
from gpu_train_cas.progress import Meter

IDENTICAL, CHANGED, RETYPED, RESHAPED = "identical", "changed", "retyped", "reshaped"
NEW, REMOVED, DAMAGED = "new", "removed", "damaged"
_ORDER = (DAMAGED, CHANGED, RETYPED, RESHAPED, NEW, REMOVED, IDENTICAL)


@dataclass(slots=True)
class TensorChange:
    """What became of one tensor.

    Attributes:
        state: one of the words above.
        old, new: the tensor in either checkpoint; None where it is not.
        relative: ||old - new|| / ||new||; inf when the new one is all zeros; None where it cannot be reckoned
            (other numbers of elements, quantised or unknown types).
        largest: the greatest absolute change of one element; None for the same.
        changed: elements that are not equal; None for the same. NaN counts as equal to NaN, and 0 to -0.
        not_finite: of these, those where one side is NaN or infinite; they are left out of `relative` and `largest`.
        damage: why it could not be compared.
    """

    state: str
    old: StoredTensor | None = None
    new: StoredTensor | None = None
    relative: float | None = None
    largest: float | None = None
    changed: int | None = None
    not_finite: int = 0
    damage: str = ""

    @property
    def name(self) -> str:
        """The tensor's name, in the new checkpoint where it is there."""
        tensor = self.new or self.old
        return tensor.name if tensor is not None else ""


@dataclass(slots=True)
class Comparison:
    """What `compare` found: changes of tensors, the largest first, and files that cannot be looked into."""

    tensors: list[TensorChange] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    files: Difference | None = None

    def count(self, state: str) -> int:
        """How many tensors are in that state."""
        return sum(change.state == state for change in self.tensors)

    @property
    def damaged(self) -> bool:
        """Whether something could not be compared because it is damaged or missing."""
        return any(trouble.damaged for trouble in self.troubles) or self.count(DAMAGED) > 0


def compare(
    old: TensorTable, new: TensorTable, *, wanted: Callable[[StoredTensor], bool] = lambda _: True,
    progress: OnProgress | None = None, threads: int | None = None,
) -> Comparison:  # fmt: skip
    """Compare the tensors of two checkpoints that `wanted` accepts. What cannot be read costs only its own tensor."""
    pairs, removed, added = matched([t for t in old.tensors if wanted(t)], [t for t in new.tensors if wanted(t)])
    found = [TensorChange(REMOVED, old=tensor) for tensor in removed]
    found += [TensorChange(NEW, new=tensor) for tensor in added]
    work = []
    for pair in (_Pair(old, new, a, b) for a, b in pairs):
        if pair.is_same():
            found.append(pair.change(IDENTICAL, relative=0.0, largest=0.0, changed=0))
        else:
            work.append(pair)
    found += _reckoned(work, progress, threads)
    found.sort(key=_by_change)
    return Comparison(found, [*old.troubles, *new.troubles])


def matched(
    old: Sequence[StoredTensor], new: Sequence[StoredTensor]
) -> tuple[list[tuple[StoredTensor, StoredTensor]], list[StoredTensor], list[StoredTensor]]:
    """Which tensors are the same one, and those that have no partner on either side.

    By file and name; else by a name that occurs once on both sides; else by one that does so without its leading parts
    (`w` is `model.w` elsewhere).
    """
    pairs: list[tuple[StoredTensor, StoredTensor]] = []
    for key_of in (_exact, _plain, _short(1), _short(2)):
        pairs += _paired(old, new, key_of)
        met_old, met_new = {id(a) for a, _ in pairs}, {id(b) for _, b in pairs}
        old, new = [t for t in old if id(t) not in met_old], [t for t in new if id(t) not in met_new]
    return pairs, list(old), list(new)


_Keys = Callable[[StoredTensor], Iterable[object]]


def _exact(tensor: StoredTensor) -> Iterable[object]:
    return [(tensor.path, tensor.name)]


def _plain(tensor: StoredTensor) -> Iterable[object]:
    return [tensor.name]


def _short(dropped: int) -> _Keys:
    return lambda tensor: shortened(tensor.name)[: dropped + 1]


def _paired(
    old: Sequence[StoredTensor], new: Sequence[StoredTensor], keys_of: _Keys
) -> Iterator[tuple[StoredTensor, StoredTensor]]:
    """Pairs of tensors with a key that nothing else on their side has."""
    by_key: dict[object, tuple[list[StoredTensor], list[StoredTensor]]] = defaultdict(lambda: ([], []))
    for side, tensors in enumerate((old, new)):
        for tensor in tensors:
            for key in keys_of(tensor):
                by_key[key][side].append(tensor)
    taken: set[int] = set()
    for ours, theirs in by_key.values():
        if len(ours) == len(theirs) == 1 and not {id(ours[0]), id(theirs[0])} & taken:
            taken |= {id(ours[0]), id(theirs[0])}
            yield ours[0], theirs[0]


class _Sums(NamedTuple):
    """Of a chunk: squares of the changes and of the new values, the greatest change, elements that changed, whether any
    byte did."""

    changes: float = 0.0
    news: float = 0.0
    largest: float = 0.0
    changed: int = 0
    not_finite: int = 0
    differs: bool = False
    damage: str = ""


def _together(parts: Sequence[_Sums]) -> _Sums:
    return _Sums(
        changes=math.fsum(part.changes for part in parts),
        news=math.fsum(part.news for part in parts),
        largest=max((part.largest for part in parts), default=0.0),
        changed=sum(part.changed for part in parts),
        not_finite=sum(part.not_finite for part in parts),
        differs=any(part.differs for part in parts),
        damage=next((part.damage for part in parts if part.damage), ""),
    )


class _Pair:
    """Two tensors that are compared."""

    def __init__(self, old: TensorTable, new: TensorTable, a: StoredTensor, b: StoredTensor) -> None:
        self._tables = old, new
        self._tensors = a, b
        self._same_kind = a.dtype == b.dtype and a.size_bytes == b.size_bytes
        self._shared: list[tuple[int, int]] | None = None
        known = a.dtype in NUMPY and b.dtype in NUMPY and (a.dtype in COMPLEX) == (b.dtype in COMPLEX)
        self.elements = a.elements if known and a.elements == b.elements else 0
        self._items = (ITEM_BYTES[a.dtype], ITEM_BYTES[b.dtype]) if self.elements else (1, 1)
        self._step = CHUNK_BYTES // max(self._items)

    def is_same(self) -> bool:
        """Whether both consist of the same bytes and mean the same, told by the names of their blocks."""
        (a, b), (ours, theirs) = self._tensors, self._tables
        alike = self._same_kind and a.shape == b.shape
        return alike and (a.size_bytes == 0 or list(ours.blocks(a)) == list(theirs.blocks(b)))

    def change(self, state: str, **figures: Any) -> TensorChange:
        """What is told of the two."""
        return TensorChange(state, self._tensors[0], self._tensors[1], **figures)

    def chunks(self) -> range:
        """Where the chunks begin, in elements; those of what cannot be reckoned with are bytes."""
        return range(0, max(1, self.elements or self._opaque_bytes), self._step)

    @property
    def _opaque_bytes(self) -> int:
        return self._tensors[0].size_bytes if self._same_kind and not self.elements else 0

    def sums(self, start: int) -> _Sums:
        """One chunk."""
        try:
            return self._numbers(start) if self.elements else self._bytes(start)
        except READ_ERRORS as e:
            return _Sums(damage=str(e))

    def _numbers(self, start: int) -> _Sums:
        count = min(self._step, self.elements - start)
        (a, b), (ours, theirs), (wide, narrow) = self._tensors, self._tables, self._items
        after = theirs.pread(b, count * narrow, start * narrow)
        is_known = self._has_same_blocks(start * wide, count * wide)
        before = after if is_known else ours.pread(a, count * wide, start * wide)
        found, ours_all, theirs_all = [], memoryview(before), memoryview(after)
        with np.errstate(over="ignore", invalid="ignore"):
            for at in range(0, count, TILE_ELEMENTS):
                one = ours_all[at * wide : (at + TILE_ELEMENTS) * wide]
                other = theirs_all[at * narrow : (at + TILE_ELEMENTS) * narrow]
                new = numbers(other, b.dtype)
                if a.dtype == b.dtype and one == other:
                    found.append(_Sums(news=sum_of_squares(np.where(np.isfinite(new), new, 0).astype(np.float64))))
                else:
                    found.append(_sums(numbers(one, a.dtype), new, in_pairs=a.dtype in COMPLEX))
        return _together(found)

    def _bytes(self, start: int) -> _Sums:
        """Whether bytes differ of which nobody knows what they mean."""
        if not self._same_kind:
            return _Sums()
        (a, b), (ours, theirs) = self._tensors, self._tables
        length = min(self._step, self._opaque_bytes - start)
        if length <= 0 or self._has_same_blocks(start, length):
            return _Sums()
        return _Sums(differs=ours.pread(a, length, start) != theirs.pread(b, length, start))

    def _has_same_blocks(self, start: int, length: int) -> bool:
        """Whether a run of bytes is known to be the same on both sides."""
        if not self._same_kind:
            return False
        if self._shared is None:
            ours, theirs = (set(t.blocks(one)) for t, one in zip(self._tables, self._tensors, strict=True))
            self._shared = sorted((first, last) for first, last, *_ in ours & theirs)
        at = bisect_right(self._shared, (start, math.inf)) - 1
        return at >= 0 and start + length <= self._shared[at][1]

    def told(self, parts: Sequence[_Sums]) -> TensorChange:
        """What all chunks come to."""
        self._shared = None
        a, b = self._tensors
        whole = _together(parts)
        if whole.damage:
            return self.change(DAMAGED, damage=whole.damage)
        same_shape = a.shape == b.shape and a.size_bytes == b.size_bytes
        same = RESHAPED if not same_shape else CHANGED if whole.differs else IDENTICAL
        state = RETYPED if a.dtype != b.dtype else same
        if not self.elements:
            return self.change(state)
        changes, news = math.sqrt(whole.changes), math.sqrt(whole.news)
        relative = changes / news if news else math.inf if changes else 0.0
        return self.change(
            state, relative=relative, largest=whole.largest, changed=whole.changed, not_finite=whole.not_finite
        )


def _reckoned(pairs: Sequence[_Pair], progress: OnProgress | None, threads: int | None) -> Iterator[TensorChange]:
    meter = Meter("comparing", progress)
    meter.progress.files_total = len(pairs) or None
    jobs = ((pair, start) for pair in pairs for start in pair.chunks())
    with ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="compare") as pool:
        sums = in_order(pool, lambda job: job[0].sums(job[1]), jobs, threads)
        for pair in pairs:
            yield pair.told([next(sums) for _ in pair.chunks()])
            meter.tick()
    meter.tick(last=True)


def _sums(old: NDArray[Any], new: NDArray[Any], *, in_pairs: bool) -> _Sums:
    a, b = old.astype(np.float64), new.astype(np.float64)
    differs = (a != b) & ~(np.isnan(a) & np.isnan(b))
    if old.dtype == new.dtype and old.dtype.kind in "iu":
        differs = old != new  # 64 bits do not fit a float's
    usable = np.isfinite(a) & np.isfinite(b)
    changes = np.where(usable & differs, b - a, 0.0)
    if in_pairs:
        sizes, differs = np.hypot(changes[::2], changes[1::2]), differs[::2] | differs[1::2]
        usable = usable[::2] & usable[1::2]
    else:
        sizes = np.abs(changes)
    return _Sums(
        changes=sum_of_squares(changes),
        news=sum_of_squares(np.where(np.isfinite(b), b, 0.0)),
        largest=float(sizes.max(initial=0.0)),
        changed=int(np.count_nonzero(differs)),
        not_finite=int(np.count_nonzero(differs & ~usable)),
        differs=True,
    )


def _by_change(change: TensorChange) -> tuple[int, float, str]:
    """The order in which changes are told: what is damaged, then the largest first."""
    relative = -1.0 if change.relative is None else change.relative
    return _ORDER.index(change.state), -relative, change.name
