"""The process that test_crash.py kills while it pushes; see tests/kit/kill_points.py."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from kill_points import Announce, main

from gpu_train.sinks.pushing import push_in
from gpu_train.sinks.setting import SinkSetting
from gpu_train.workspace import Workspace


def pushing(layout: str, home: Path, sources: Path, announce: Announce) -> None:
    setting = SinkSetting("local", dest=str(home.parent / "nas"), layout=layout)
    with Workspace.open(home, cwd=home.parent) as workspace:
        for checkpoint in sorted(workspace.checkpoints.list(), key=lambda c: c.seq):
            (made,) = push_in(workspace, checkpoint.ref, [setting])
            assert not made.left
            announce(checkpoint.name)


main({layout: partial(pushing, layout) for layout in ("files", "packs")})
