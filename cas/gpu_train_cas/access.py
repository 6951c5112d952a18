"""What a program that reads an open file will want next: guessed from where it has read and where the tensors lie."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from gpu_train_cas.manifest import Manifest

NEAR_READS = 4
NEAR_BYTES = 128 << 10
"""A read goes on with an earlier one when it starts within so many times its own length of where that ended, or so many
bytes: the kernel's requests come out of order, and small reads at random must not look like a run."""

FIRST_WINDOW_BYTES = 2 << 20
STEP_BYTES = 1 << 20
"""No less is wanted at a time, but at the end of a run: a request of 4 KiB has no time for it."""

MAX_RUNS = 8
STRIDES = 2
"""So many steps of even length are looked ahead."""


class Span(NamedTuple):
    """The bytes [start, end) of a file."""

    start: int
    end: int


@dataclass(slots=True)
class _Run:
    """A part of the file that is read from front to back.

    Attributes:
        front: where the furthest read so far ends.
        asked: what starts before this was read, or was given out to be.
        limit: where it probably ends: with the tensor that it began in, or with the file.
        window: how far ahead of the front to look.
    """

    front: int
    asked: int
    limit: int
    window: int = FIRST_WINDOW_BYTES


class Access:
    """The runs in which one open file is read, several at a time. One thread at a time may call it.

    - A read that goes on where another ended is a run: what follows is wanted, twice as far with each read.
    - One that begins a tensor wants all of it (programs that map safetensors files touch tensor after tensor, in an
      order of their own), but nothing behind it before the run has got there.
    - Reads at even distances (a column of a matrix) go on at that distance.
    - Any other read wants nothing more than it asked for.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._size_bytes = manifest.size_bytes
        tensors = [t for t in manifest.tensors if t.length]
        self._starts = [t.offset for t in tensors]
        self._ends = [t.offset + t.length for t in tensors]
        self._runs: list[_Run] = [_Run(0, 0, self._size_bytes)]
        self._jump: Span | None = None
        self._stride = 0

    def note(self, start: int, end: int, window_bytes: int) -> list[Span]:
        """Take notice of a read of the bytes [start, end); what to read ahead of the next, at most so far ahead."""
        near = max(NEAR_READS * (end - start), NEAR_BYTES)
        for run in reversed(self._runs):
            if run.front - near <= start <= run.front + near:
                if run is not self._runs[-1]:
                    self._runs.remove(run)
                    self._runs.append(run)
                return self._go_on(run, end, window_bytes)
        return self._begin(start, end, window_bytes)

    def take_back(self, offset: int) -> None:
        """Of what `note` gave out last nothing from there on is being read: it may be given out again."""
        run = self._runs[-1]
        if run.front <= offset < run.asked:
            run.asked = offset

    def _go_on(self, run: _Run, end: int, window_bytes: int) -> list[Span]:
        run.front = max(run.front, end)
        if run.front > run.limit:
            run.limit = self._size_bytes
        run.window = min(2 * run.window, window_bytes)
        return self._ahead(run)

    def _begin(self, start: int, end: int, window_bytes: int) -> list[Span]:
        limit, begins = self._tensor(start, end)
        run = _Run(end, end, max(limit, end), min(FIRST_WINDOW_BYTES, window_bytes))
        self._runs = [*self._runs[1 - MAX_RUNS :], run]
        steps = self._steps(start, end)
        return steps or (self._ahead(run) if begins else [])

    def _ahead(self, run: _Run) -> list[Span]:
        start, end = max(run.asked, run.front), min(run.front + run.window, run.limit)
        if end - start < (STEP_BYTES if end < run.limit else 1):
            return []
        run.asked = end
        return [Span(start, end)]

    def _steps(self, start: int, end: int) -> list[Span]:
        """What lies ahead at even distances, when the last two jumps were of the same length as this one."""
        before, self._jump = self._jump, Span(start, end)
        stride = 0 if before is None else start - before.start
        even, self._stride = stride != 0 and stride == self._stride, stride
        if not even:
            return []
        spans = (Span(start + i * stride, end + i * stride) for i in range(1, STRIDES + 1))
        return [Span(s.start, min(s.end, self._size_bytes)) for s in spans if 0 <= s.start < self._size_bytes]

    def _tensor(self, start: int, end: int) -> tuple[int, bool]:
        """Where the tensor ends that the end of a read lies in, else the file; and whether the read began a tensor."""
        at = bisect_right(self._starts, end) - 1
        if at < 0 or self._ends[at] <= start:
            return self._size_bytes, False
        return self._ends[at], bisect_left(self._starts, start) <= at
