"""Figures of tensors, reckoned chunk by chunk in parallel, in memory that does not grow with the tensors."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from gpu_train.elements import COMPLEX, INTEGERS, numbers, sum_of_squares
from gpu_train.tensor_table import READ_ERRORS, StoredTensor, TensorTable
from gpu_train.tensors import NUMPY
from gpu_train_cas import OnProgress
from gpu_train_cas.errors import Damaged
from gpu_train_cas.formats import ITEM_BYTES
from gpu_train_cas.progress import Meter

CHUNK_BYTES = 1 << 20
"""A multiple of every element; blocks of a tensor end at multiples of it from the tensor's start."""

TILE_ELEMENTS = 1 << 14
"""So that a tile and what is reckoned of it stay in a core's cache: several times as fast as whole chunks."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class TensorStats:
    """Figures of one tensor. Least, largest, mean, deviation and norm are those of its finite elements.

    Attributes:
        elements: all of them.
        finite: those that are numbers.
        zeros, nans, infinities: how many.
        least, largest: None for complex numbers, and where nothing is finite.
        mean: None for the same.
        squares: the sum of the squared distances from the mean; of complex numbers, from 0.
        damage: why the tensor could not be read; the figures are those of what could.
    """

    elements: int = 0
    finite: int = 0
    zeros: int = 0
    nans: int = 0
    infinities: int = 0
    least: float | None = None
    largest: float | None = None
    mean: float | None = None
    squares: float = 0.0
    damage: str = ""

    @property
    def std(self) -> float | None:
        """The standard deviation (of the whole, not of a sample)."""
        return None if self.mean is None else math.sqrt(self.squares / self.finite)

    @property
    def norm(self) -> float | None:
        """The Euclidean norm; None where nothing is finite."""
        if not self.finite:
            return None
        return math.sqrt(self.squares + self.finite * (self.mean or 0.0) ** 2)

    def insist(self, name: str) -> TensorStats:
        """These figures, unless the tensor is damaged.

        Raises:
            Damaged: when it is.
        """
        if self.damage:
            raise Damaged(f"tensor {name!r}: {self.damage}")
        return self

    def add(self, other: TensorStats) -> None:
        """Take in the figures of another part of the tensor (Chan, Golub and LeVeque, 1979)."""
        if self.mean is None or other.mean is None:
            self.mean = other.mean if self.mean is None else self.mean
            self.squares += other.squares
        else:
            apart, both = other.mean - self.mean, self.finite + other.finite
            self.squares += other.squares + apart**2 * (self.finite * other.finite / both)
            self.mean += apart * (other.finite / both)
        self.elements += other.elements
        self.finite += other.finite
        self.zeros += other.zeros
        self.nans += other.nans
        self.infinities += other.infinities
        self.least = min((n for n in (self.least, other.least) if n is not None), default=None)
        self.largest = max((n for n in (self.largest, other.largest) if n is not None), default=None)
        self.damage = self.damage or other.damage


def stats_of_bytes(data: bytes, dtype: str) -> TensorStats:
    """Figures of some elements; `dtype` must be a key of `NUMPY`."""
    found, view, step = TensorStats(), memoryview(data), TILE_ELEMENTS * ITEM_BYTES[dtype]
    for at in range(0, len(view), step):
        found.add(_tile_stats(view[at : at + step], dtype))
    return found


def _tile_stats(data: memoryview, dtype: str) -> TensorStats:
    values = numbers(data, dtype)
    found = TensorStats(len(data) // ITEM_BYTES[dtype])
    with np.errstate(over="ignore", invalid="ignore"):
        wide = values.astype(np.float64)
        if dtype in COMPLEX:
            return _complex_stats(wide, found)
        found.zeros = values.size - int(np.count_nonzero(values))
        if dtype in INTEGERS or dtype == "BOOL":
            finite = values
        else:
            usable = np.isfinite(wide)
            if not usable.all():
                found.nans = int(np.isnan(wide).sum())
                found.infinities = int(wide.size - usable.sum()) - found.nans
                wide = wide[usable]
            finite = wide
        found.finite = finite.size
        if finite.size:
            found.least, found.largest = finite.min().item(), finite.max().item()
            found.mean = float(wide.mean())
            away = wide - found.mean
            found.squares = sum_of_squares(away)
    return found


def _complex_stats(pairs: np.ndarray[tuple[int, ...], np.dtype[np.float64]], found: TensorStats) -> TensorStats:
    both = pairs.reshape(-1, 2)
    nans, infinite = np.isnan(both).any(axis=1), np.isinf(both).any(axis=1)
    usable = both[~(nans | infinite)].reshape(-1)
    found.nans, found.infinities = int(nans.sum()), int((infinite & ~nans).sum())
    found.finite = usable.size // 2
    found.zeros = int((both == 0).all(axis=1).sum())
    found.squares = sum_of_squares(usable)
    return found


def stats_of(
    table: TensorTable, tensors: Iterable[StoredTensor], progress: OnProgress | None = None, threads: int | None = None
) -> Iterator[tuple[StoredTensor, TensorStats | None]]:
    """The figures of tensors, in their order; None for one of a type that is not known or quantised.

    What cannot be read is told of in `damage`, and the rest goes on.
    """
    listed = list(tensors)
    meter = Meter("reading", progress)
    meter.progress.total_bytes = sum(tensor.size_bytes for tensor in listed if tensor.dtype in NUMPY)
    jobs = ((tensor, at) for tensor in listed for at in range(0, max(1, _readable(tensor)), CHUNK_BYTES))
    with ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="stats") as pool:
        parts = in_order(pool, partial(_part, table), jobs, threads)
        for tensor in listed:
            whole = TensorStats()
            for at in range(0, max(1, _readable(tensor)), CHUNK_BYTES):
                whole.add(next(parts))
                meter.progress.done_bytes += min(CHUNK_BYTES, _readable(tensor) - at)
                meter.tick()
            yield tensor, whole if tensor.dtype in NUMPY else None
    meter.tick(last=True)


def in_order(
    pool: ThreadPoolExecutor, do: Callable[[T], R], items: Iterable[T], threads: int | None = None
) -> Iterator[R]:
    """What `do` gives for each item, in their order, reckoned ahead by a few in the threads of a pool."""
    ahead = 2 * (threads or os.cpu_count() or 1)
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(do, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _readable(tensor: StoredTensor) -> int:
    return tensor.size_bytes if tensor.dtype in NUMPY else 0


def _part(table: TensorTable, job: tuple[StoredTensor, int]) -> TensorStats:
    tensor, at = job
    if not _readable(tensor):
        return TensorStats()
    try:
        return stats_of_bytes(table.pread(tensor, CHUNK_BYTES, at), tensor.dtype)
    except READ_ERRORS as e:
        return TensorStats(damage=str(e))
