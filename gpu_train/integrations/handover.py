"""Handing over to the job from a framework's hook: whatever goes wrong is logged once and never raised there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import SupportsFloat

import gpu_train
from gpu_train.complaint import complain
from gpu_train.environment import JobEnvironment

NOT_METRICS = ("step", "epoch")
"""What frameworks log beside numbers that say how good a model is."""

LOCAL = ("file", "local")
"""How URLs of local files begin, in fsspec's words."""


def is_wanted() -> bool:
    """Whether there is a job to hand anything over to, and this process is the one that speaks for it."""
    job = JobEnvironment.read()
    return job.home is not None and job.job_id is not None and job.is_first_rank


def commit(
    path: str | os.PathLike[str], *, step: int | None = None, metrics: Mapping[str, object] | None = None,
    tags: Mapping[str, str] | None = None, wait: bool = False,
) -> None:  # fmt: skip
    """`gpu_train.commit`, with those of the metrics that are numbers; with `wait` return once it is stored.

    Frameworks take URLs for paths: `file://` is a path, and what lies elsewhere cannot be captured.
    """
    if not is_wanted():
        return
    scheme, is_url, local = os.fspath(path).partition("://")
    if is_url and scheme not in LOCAL:
        complain(f"commit {scheme}", f"{os.fspath(path)} is not on a local filesystem and is not captured")
        return
    try:
        gpu_train.commit(local if is_url else path, step=step, metrics=numbers(metrics or {}), tags=tags)
        if wait:
            gpu_train.flush()
    except Exception as e:  # whatever it is, a training of days must not end for it
        complain(f"commit {type(e).__name__}", f"a checkpoint was not committed ({e}); capture still looks for it")


def log(metrics: Mapping[str, object], step: int | None) -> None:
    """`gpu_train.log`, with those of the metrics that are numbers."""
    values = numbers(metrics)
    if not values or not is_wanted():
        return
    try:
        gpu_train.log(values, step=step)
    except Exception as e:
        complain(f"log {type(e).__name__}", f"metrics of step {step} were not taken: {e}")


def numbers(values: Mapping[str, object]) -> dict[str, float]:
    """The values that are numbers, tensors of one element among them, without steps and epochs."""
    found = {}
    for name, value in values.items():
        if name in NOT_METRICS or isinstance(value, str | bytes) or not isinstance(value, SupportsFloat):
            continue
        try:
            found[str(name)] = value if type(value) is int else float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # a tensor of many elements, for one
            continue
    return found
