"""Checkpoints on a hub, in repositories and in buckets, in both layouts, and back in another home."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import WRITE, Hub, running

from gpu_train.sinks.opening import open_sink
from gpu_train.sinks.pull import pull
from gpu_train.sinks.push import push
from gpu_train.sinks.setting import SinkSetting

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the client's way to send files


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HUB_TOKEN", WRITE)
    with running(tmp_path) as one:
        yield one


@pytest.mark.parametrize("place", ["you/ckpts", "buckets/you/ckpts"])
def test_there_and_back(run, other, hub: Hub, place: str, layout: str, tmp_path: Path) -> None:
    setting = SinkSetting.of(f"hf://{place}/runs?endpoint={hub.url}&layout={layout}&token_ref=env://HUB_TOKEN")
    with open_sink(run.workspace, setting) as to:
        push(run.workspace, to, run.checkpoints)
        assert to.objects.few_files == (place == "you/ckpts")
    if place == "you/ckpts":
        assert hub.commits() <= 8
    with open_sink(other, setting) as there:
        there.sync()
        pulled = pull(other, there, there.records())
    for checkpoint, folder in zip(pulled.checkpoints, run.folders, strict=True):
        back = tmp_path / "back" / checkpoint.name
        other.store.restore(other.store.record(checkpoint.record).root, back)
        same = subprocess.run(["rsync", "-aicn", "--delete", f"{folder}/", f"{back}/"], capture_output=True, check=True)
        assert same.stdout == b""
