"""Which earlier checkpoints and models a new checkpoint is likely to be like: its bases (cas/spec/deltas.md, Bases).

The job's own newest come first, then what it went on from, then a registered model. How deep deltas may go on top
of each other is decided per class of tensors by what the ones before took (`refresh`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from gpu_train.refresh import Spent, deepest_base
from gpu_train.tables.checkpoint import VERIFIED, Checkpoint
from gpu_train.workspace import Workspace
from gpu_train_cas import Added, Bases, Entry, Original, TensorClass
from gpu_train_cas.deltas import MAX_DEPTH
from gpu_train_cas.errors import GpuTrainError

RECENT = 24
"""Checkpoints of a job that are looked at, from the newest back."""

HISTORY = 512
"""Checkpoints of a job by which the depth of deltas is decided: more than any chain goes on for."""

MAX_ROOTS = 4
"""Directories that a writer looks in: the newest of each pattern, what the job went on from, a model."""

MAX_ORIGINALS = MAX_DEPTH + 2
"""Checkpoints whose plain files are looked for: a chain of deltas rarely reaches farther back."""

TENSOR_ENDINGS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".distcp", ".npz", ".npy", ".gguf")
_DIGITS = re.compile(r"[0-9]+")


def pattern_of(paths: Iterable[str]) -> str:
    """What files of tensors a checkpoint has, whatever the numbers in their names: equal for those of one kind.

    A run may write several kinds: adapters and merged models, or weights only in between.
    """
    names = sorted({_DIGITS.sub("#", path) for path in paths if path.endswith(TENSOR_ENDINGS)})
    return hashlib.blake2b("\n".join(names).encode(errors="surrogateescape"), digest_size=8).hexdigest()


def classes_of(added: Added) -> dict[str, list[int]]:
    """What a checkpoint's row says of each class of tensors: original, new and stored bytes, depth."""
    return {
        name.value: [cost.original_bytes, cost.new_bytes, cost.stored_bytes, cost.depth]
        for name, cost in added.classes.items()
    }


def bases_for(workspace: Workspace, job_id: str, pattern: str, folder: Path) -> Bases:
    """Where to look for a new checkpoint of a job, whose plain files lie in `folder`."""
    with closing(workspace.checkpoints.history(job_id)) as history:  # what was removed tells of costs all the same
        known = list(islice((c for c in history if c.state == VERIFIED and c.record is not None), HISTORY))
    here = [c for c in known if c.removed_ns is None]
    roots = list(_roots(workspace, _newest_of_each(here[:RECENT], pattern)))
    if not any(c.pattern == pattern for c in here):
        roots += _roots(workspace, _origins(workspace, job_id))
        roots += workspace.models.roots_for(folder)
    alike = [c for c in known if c.pattern == pattern]
    return Bases(roots[:MAX_ROOTS], _depths(alike), list(_originals(workspace, alike[:MAX_ORIGINALS])))


def _newest_of_each(checkpoints: Sequence[Checkpoint], pattern: str) -> list[Checkpoint]:
    """Of checkpoints, the newest first, the first of each pattern; those of the wanted pattern before others."""
    found: dict[str, Checkpoint] = {}
    for checkpoint in checkpoints:
        found.setdefault(checkpoint.pattern, checkpoint)
    return sorted(found.values(), key=lambda c: c.pattern != pattern)


def _origins(workspace: Workspace, job_id: str) -> Iterator[Checkpoint]:
    """The checkpoints that the job went on from or was given to load."""
    job = workspace.jobs.get(job_id)
    if job is None:
        return
    for ref in dict.fromkeys([*([job.parent] if job.parent else []), *job.loads]):
        try:
            yield workspace.checkpoints.resolve(ref)[0]
        except GpuTrainError:  # it may have been removed since
            continue


def _roots(workspace: Workspace, checkpoints: Iterable[Checkpoint]) -> Iterator[Entry]:
    for checkpoint in checkpoints:
        if checkpoint.record is None:
            continue
        try:
            yield workspace.store.record(checkpoint.record).root
        except GpuTrainError:  # collected or damaged: it only helps less
            continue


def _originals(workspace: Workspace, checkpoints: Iterable[Checkpoint]) -> Iterator[Original]:
    """Where the trainer still has checkpoints that were stored."""
    for checkpoint in checkpoints:
        source = Path(checkpoint.source)
        if checkpoint.source and source.exists():
            for root in _roots(workspace, [checkpoint]):
                yield Original(root, source if source.is_dir() else source.parent)


def _depths(newest_first: Sequence[Checkpoint]) -> Mapping[TensorClass, int]:
    """How deep the bases of each class may lie, by what the checkpoints before took."""
    rows: list[Mapping[str, Any]] = [c.classes for c in reversed(newest_first)]
    depths = {}
    for one in TensorClass:
        history = [Spent(cost[2] / cost[0], cost[3]) for row in rows if (cost := row.get(one.value)) and cost[0]]
        depths[one] = deepest_base(history, MAX_DEPTH - 1)
    return depths
