"""Kill -9 in the middle of a push: the rest is pushed afterwards, nothing twice, nothing missing."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from gpu_train.sinks.objects.folder import FolderObjects
from gpu_train.sinks.pushing import push_in
from gpu_train.sinks.setting import SinkSetting
from gpu_train.sinks.sink import Sink
from gpu_train.workspace import Workspace
from gpu_train_cas import EntryKind

CHILD = Path(__file__).with_name("crash_child.py")


def check_sink(workspace: Workspace, nas: Path, folders: dict[str, Path]) -> set[str]:
    """What the journal names can be read whole from the sink alone; its names."""
    sink = Sink(workspace, SinkSetting("local", dest=str(nas)), FolderObjects(nas))
    sink.sync()
    reader = sink.reader()
    for sent in sink.records():
        for path, entry in reader.walk(reader.record(sent.record).root):
            if entry.kind is EntryKind.FILE:
                data = (folders[sent.name] / path.decode(errors="surrogateescape")).read_bytes()
                assert reader.open(entry).pread(entry.size_bytes, 0) == data
    frames = Counter(e.header.digest for entry in sink.history() for p in entry.packs for e in sink.entries_of(p))
    assert [digest for digest, count in frames.items() if count > 1] == [], "the journal tells of a frame twice"
    names = Counter(record.name for entry in sink.history() for record in entry.records)
    assert set(names.values()) <= {1}, "the journal tells of a checkpoint twice"
    return {record.name for record in sink.records()}


@pytest.mark.parametrize("layout", ["files", "packs"])
@pytest.mark.parametrize("step", [60, pytest.param(2, marks=[pytest.mark.long, pytest.mark.timeout(3600)], id="many")])
def test_killed_at_any_call_of_a_function(run, sweep, tmp_path: Path, layout: str, step: int) -> None:
    workspace = run.workspace
    folders = {folder.name: folder for folder in run.folders}
    names = set(folders)
    workspace.close()
    work = tmp_path / "work"
    shutil.copytree(workspace.home.root, work / "template" / "home")
    killed = 0
    for point in sweep(CHILD, work, layout, step):
        home, nas = work / str(point) / "home", work / str(point) / "nas"
        announced = set((work / str(point) / "announced").read_text().splitlines())
        setting = SinkSetting("local", dest=str(nas), layout=layout)
        with Workspace.open(home, cwd=work) as opened:
            there = check_sink(opened, nas, folders) if nas.exists() else set()
            assert announced <= there
            noted = {c.name for c in opened.checkpoints.list() if str(nas) in c.pushed}
            assert announced <= noted <= there
            (made,) = push_in(opened, "run", [setting])
            assert not made.left
            assert check_sink(opened, nas, folders) == names
            assert all(str(nas) in c.pushed for c in opened.checkpoints.list())
            packs = list(nas.rglob("*.pack"))
            named = {p.name.hex() for e in Sink(opened, setting, FolderObjects(nas)).history() for p in e.packs}
            assert named <= {path.stem for path in packs}
            assert not list((home / "store" / "tmp").glob("*.tmp")) or opened.store.gc(trash_days=9) is not None
            assert list((home / "store" / "tmp").glob("*.tmp")) == []
        shutil.rmtree(work / str(point))
        killed += 1
    assert killed >= 300 // step
