"""The guide's scripts run as written, each as a job whose checkpoints are all committed explicitly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "callbacks.md"
SCRIPTS = {
    "finetune.py": (("transformers", "accelerate"), {"checkpoint-2", "checkpoint-4", "checkpoint-6"}),
    "fit.py": (("lightning",), {"epoch=0-step=4.ckpt", "epoch=1-step=8.ckpt", "epoch=2-step=12.ckpt"}),
    "sharded.py": (("fsspec",), {"step-100", "step-200"}),
    "loop.py": (("accelerate",), {"checkpoint-2", "checkpoint-4"}),
    "plain.py": ((), {"checkpoint-10", "checkpoint-20", "last.pt"}),
}


def scripts() -> dict[str, str]:
    return {
        block.partition("\n")[0].removeprefix("# "): block
        for block in re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    }


def test_every_script_of_the_guide_is_tried():
    assert scripts().keys() == SCRIPTS.keys()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_as_a_job(train_text, name):
    needs, expected = SCRIPTS[name]
    done = train_text(name, scripts()[name], needs=needs)
    found = done.checkpoints.values()
    assert {(c.name, c.state, c.proof) for c in found} == {(one, "verified", "explicit") for one in expected}
    assert all(c.step and (c.metrics or c.name == "last.pt") for c in found)
    assert "gpu-train:" not in done.errors
