"""A run replicates what it stores, while it runs and in the end, and a sink that fails costs it nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_train import Workspace
from gpu_train.process import start_time
from gpu_train.sinks.objects.folder import FolderObjects
from gpu_train.sinks.queue import Queue
from gpu_train.sinks.setting import SinkSetting
from gpu_train.sinks.sink import Sink

SCRIPT = """
    import json
    import gpu_train
    from writing import OUT, safetensors, wait_for_file
    for step in (1, 2, 3):
        folder = OUT / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(safetensors(step))
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        gpu_train.log({"loss": 1 / step}, step=step)
    print("written")
    wait_for_file("end")
"""


def set_sinks(cwd: Path, *sinks: str, logs: tuple[str, ...] = ()) -> None:
    quoted = json.dumps(list(sinks))
    (cwd / "gpu-train.toml").write_text(f"[sinks]\ncheckpoints = {quoted}\nlogs = {json.dumps(list(logs))}\n")


@pytest.mark.parametrize("layout", ["files", "packs"])
def test_checkpoints_are_pushed_while_the_job_runs(launch, home: Path, tmp_path: Path, eventually, layout) -> None:
    nas = tmp_path / "nas"
    set_sinks(launch.cwd, f"file://{nas}?layout={layout}", logs=(str(tmp_path / "logs"),))
    run = launch.script(SCRIPT)
    assert run.process.stdout.readline() == b"written\n"

    def pushed() -> list[bool]:
        with Workspace.open(home) as workspace:
            return [str(nas) in c.pushed for c in workspace.checkpoints.list()]

    eventually(lambda: pushed() == [True] * 3, "the third checkpoint in the sink")
    (launch.cwd / "end").touch()
    code, _, err = run.finish()
    said = err.decode()
    assert code == 0
    assert "not pushed yet" not in said
    with Workspace.open(home) as workspace:
        assert Queue(workspace.store.registry).waiting() == []
        sink = Sink(workspace, SinkSetting("local", dest=str(nas)), FolderObjects(nas))
        assert [r.name for r in sink.records()] == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    kept = tmp_path / "logs" / run.job_id / "logs"
    assert (kept / "stdout.log").read_text() == "written\n"
    assert {json.loads(line)["kind"] for line in (kept / "events.jsonl").read_text().splitlines()} >= {
        "started",
        "captured",
        "ended",
    }
    assert [json.loads(line)["values"] for line in (kept / "metrics.jsonl").read_text().splitlines()] == [
        {"loss": 1.0}, {"loss": 0.5}, {"loss": 1 / 3},
    ]  # fmt: skip


def test_a_sink_that_is_down_is_listed_as_behind(launch, home: Path, tmp_path: Path) -> None:
    set_sinks(launch.cwd, str(tmp_path / "not" / "mounted"), str(tmp_path / "nas"))
    (launch.cwd / "end").touch()
    run = launch.script(SCRIPT)
    code, _, err = run.finish()
    said = err.decode()
    assert code == 0
    assert f"not pushed yet: 3 checkpoints to {tmp_path}/not/mounted" in said
    assert "is the disk mounted?" in said
    with Workspace.open(home) as workspace:
        assert [list(c.pushed) for c in workspace.checkpoints.list()] == [[str(tmp_path / "nas")]] * 3
        waiting = Queue(workspace.store.registry).waiting()
        assert [item.address for item in waiting] == [str(tmp_path / "not" / "mounted")] * 3
        assert all("is the disk mounted?" in item.error for item in waiting)
    assert not (tmp_path / "not").exists()


def test_the_pusher_ends_with_its_home(launch, home: Path, tmp_path: Path, eventually) -> None:
    set_sinks(launch.cwd, str(tmp_path / "not" / "mounted"))
    (launch.cwd / "end").touch()
    assert launch.script(SCRIPT).finish()[0] == 0
    lock = home / "store" / "sinks" / "pusher.lock"
    pid = int(lock.read_text())
    assert start_time(pid) is not None
    home.rename(tmp_path / "gone")
    eventually(lambda: start_time(pid) is None, "the end of the pusher")
