"""Plain files that vanish once they are stored, under trainers that know nothing of it."""

from __future__ import annotations

import pytest

from gpu_train import Workspace

NEEDS = ("transformers", "accelerate", "safetensors")


@pytest.mark.parametrize("setting", ["latest", "none"])
def test_a_trainer_that_rotates_resumes_and_loads_the_best(train, launch, setting):
    launch.env |= {"GPU_TRAIN_CAPTURE_SCAN_S": "0.05", "GPU_TRAIN_DEFAULTS_PLAIN_CHECKPOINTS": setting}
    done = train("hf_plain", needs=NEEDS)
    assert {c.state for c in done.checkpoints.values()} == {"verified"}
    assert [c.name for c in done.checkpoints.values()] == [f"checkpoint-{n}" for n in range(1, 8)]
    assert done.said == {
        "best": True, "other": False, "steps": [1, 2, 3, 4, 5], "left": ["checkpoint-2", "checkpoint-7"], "end": 7,
    }  # fmt: skip
    assert "Could not locate the best model" not in done.errors
    with Workspace.open(done.home) as workspace:
        left = sorted(path.name for path in workspace.home.checkpoints(done.job_id).iterdir())
        reclaimed = [e.fields["name"] for e in workspace.events.list(done.job_id, kind="reclaimed")]
        assert not workspace.store.verify().damaged
    assert left == (["checkpoint-7"] if setting == "latest" else [])
    assert len(reclaimed) == len(set(reclaimed)) == 7 - len(left)
