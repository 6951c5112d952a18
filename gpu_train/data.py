"""Data versions of the home in force, for scripts: `gpu_train.data.register`, `resolve`, `list` and so on.

    version = gpu_train.data.register("./data/train", name="imdb")
    path = gpu_train.data.resolve("imdb")              # its path, after a check that the bytes are that version

Each call opens the home (GPU_TRAIN_HOME, else ~/.gpu-train) and closes it again. A ref is "name", which means
the version that was registered last, or "name@version". See `data_version` for what is promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpu_train.data_version import DataVersion
from gpu_train.difference import Difference
from gpu_train.errors import DataChanged
from gpu_train.workspace import Workspace
from gpu_train_cas import OnProgress

__all__ = ["DataChanged", "DataVersion", "Difference", "diff", "list", "register", "resolve", "show", "verify"]


def register(path: Path | str, name: str, *, rehash: bool = False, progress: OnProgress | None = None) -> DataVersion:
    """Record what a file or folder holds, under a name; the data stays where it is. See DataVersions.register."""
    with Workspace.open() as workspace:
        return workspace.data.register(path, name, rehash=rehash, progress=progress)


def resolve(ref: str, *, verify: bool = False, progress: OnProgress | None = None) -> Path:
    """The path of a version's data, which still is that version; noted on the job. See DataVersions.resolve."""
    with Workspace.open(create=False) as workspace:
        return workspace.data.resolve(ref, verify=verify, progress=progress)


def show(ref: str) -> DataVersion:
    """One version's facts. Raises NotFound or UsageError."""
    with Workspace.open(create=False) as workspace:
        return workspace.data.get(ref)


def verify(ref: str, *, progress: OnProgress | None = None) -> Difference:
    """Read all files of a version and say how they differ from it; empty (false) when they do not."""
    with Workspace.open(create=False) as workspace:
        return workspace.data.verify(ref, progress=progress)


def diff(old: str, new: str) -> Difference:
    """Which files were added, removed or changed from one version to another."""
    with Workspace.open(create=False) as workspace:
        return workspace.data.diff(old, new)


def list(name: str | None = None) -> Sequence[DataVersion]:
    """All versions, of one name or all, the last registered first."""
    with Workspace.open() as workspace:
        return workspace.data.list(name)
