"""A home with a run of three checkpoints that share tensors, sinks for it, and servers that sinks can be on.

There is one server of each kind for all tests of a process; each test has a prefix of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import objectservers
import pytest
from objectservers import Server

from gpu_train import import_checkpoints
from gpu_train.sinks.objects.folder import FolderObjects
from gpu_train.sinks.objects.memory import MemoryObjects
from gpu_train.sinks.setting import SinkSetting
from gpu_train.sinks.sink import Sink
from gpu_train.tables import Checkpoint
from gpu_train.workspace import Workspace

STRANGE = b"no \xff utf-8 %41 \x01"


@dataclass
class Run:
    """The run: its checkpoints, oldest first, and the plain folder that each was made from."""

    workspace: Workspace
    checkpoints: list[Checkpoint]
    folders: list[Path]

    def again(self) -> list[Checkpoint]:
        """The rows as they are now."""
        return sorted(self.workspace.checkpoints.list(), key=lambda c: c.seq)


@pytest.fixture
def run(workspace: Workspace, tmp_path: Path, safetensors) -> Run:
    """Three steps of training of a small model; with names of files that no key can hold as they are."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(600_000, dtype=np.float32)
    rows, folders = [], []
    for step in (100, 200, 300):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        (folder / "empty").mkdir(parents=True)
        (folder / "sub").mkdir()
        safetensors(folder / "model.safetensors", {"w": values})
        (folder / "trainer_state.json").write_text(f'{{"global_step": {step}}}')
        (folder / "link").symlink_to("model.safetensors")
        (folder / "nothing").touch()
        Path(os.fsdecode(os.fsencode(folder / "sub") + b"/" + STRANGE)).write_bytes(b"strange")
        (folder / "same.bin").write_bytes(b"the same in all" * 10_000)
        (stored,) = import_checkpoints(workspace, folder, "run")
        rows.append(stored.checkpoint)
        folders.append(folder)
        values = values * (1 + 1e-4 * rng.standard_normal(600_000, dtype=np.float32))
    return Run(workspace, rows, folders)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Workspace]:
    """Another home, with nothing in it."""
    with Workspace.open(tmp_path / "other", cwd=tmp_path) as opened:
        yield opened


@pytest.fixture(params=["files", "packs"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["memory", "folder"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryObjects | FolderObjects:
    return MemoryObjects(f"{tmp_path}/nas") if request.param == "memory" else FolderObjects(tmp_path / "nas")


@pytest.fixture
def sink(objects, layout: str, tmp_path: Path) -> Callable[[Workspace], Sink]:
    """The sink as a home sees it."""

    def make(workspace: Workspace) -> Sink:
        return Sink(workspace, SinkSetting("local", dest=str(tmp_path / "nas"), layout=layout), objects)

    return make


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with objectservers.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with objectservers.rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with objectservers.fake_gcs(tmp_path_factory.mktemp("fake-gcs")) as server:
        yield server
