"""What a job said with `gpu_train.commit`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Commit:
    """What `gpu_train.commit` said, and when.

    `pin` holds links that it made itself, when it could; `id` is for the answer.
    """

    path: str
    pin: str | None = None
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    time_ns: int = 0


def name_at(path: str, root: Path) -> str:
    """What a checkpoint at a path is called: its path below the checkpoint folder, outside of it its own name."""
    name = os.path.relpath(path, root)
    return os.path.basename(path) if name.startswith("..") else name
