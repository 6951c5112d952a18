"""torch.distributed.checkpoint and Accelerate in jobs of two ranks that delete each checkpoint once it is saved."""

from __future__ import annotations

import pytest

from gpu_train.integrations.meeting import Meeting

NEEDS = ("accelerate", "fsspec", "safetensors")
DCP = {".metadata", "__0_0.distcp", "__1_0.distcp"}


def test_two_ranks_save_in_every_way(train):
    done = train("ranks", needs=NEEDS, ranks=2)
    assert {name: (c.step, c.proof, c.metrics) for name, c in done.checkpoints.items()} == {
        "checkpoints/checkpoint_0": (50, "explicit", {"loss": pytest.approx(0.02)}),
        "checkpoints/checkpoint_1": (100, "explicit", {"loss": pytest.approx(0.01)}),
        **{f"step-{n}": (n, "explicit", {"loss": 0.5}) for n in (1, 3, 4, 5, 6)},
        "step-2": (2, "explicit", {"loss": 0.25}),
        "step-7": (7, "explicit", {"loss": 0.125}),
    }
    assert done.checkpoints["step-2"].tags == {"kind": "queued"}
    for name in ("step-1", "step-2", "step-3", "step-7"):
        assert done.files(name) == DCP
    shards = {f"shard-0000{n}-model-00001-of-00001.safetensors" for n in (1, 2)}
    assert done.files("step-4") == shards
    whole = {"model-00001-of-00001.safetensors", "model.safetensors.index.json"}
    assert done.files("step-5") == {f"sharded/{name}" for name in shards} | whole
    assert done.files("step-6") == {"__0.metadata", "__1.metadata", "__0_0.distcp", "__1_0.distcp"}
    states = {"random_states_0.pkl", "random_states_1.pkl", "model.safetensors"}
    assert states == done.files("checkpoints/checkpoint_1")
    assert "memory://step-8 is not on a local filesystem and is not captured" in done.errors

    back = train("dcp_load", f"{done.job_id}@latest", f"{done.job_id}@step:2", needs=NEEDS)
    assert back.said == {"latest": [[[7.0] * 4] * 8, 7.0], "step:2": [[[2.0] * 4] * 8, 2.0]}


@pytest.mark.long
def test_a_save_in_a_process_of_its_own(train):
    done = train("ranks", "process", needs=NEEDS, ranks=2)
    assert {name: c.proof for name, c in done.checkpoints.items()} == {"step-1": "explicit"}
    assert done.files("step-1") == DCP


def test_without_other_ranks_everybody_is_there(caplog, monkeypatch):
    monkeypatch.setattr("gpu_train.complaint._said", set())
    meeting = Meeting("test")
    assert meeting.is_complete("one")
    assert meeting.is_complete("two", world_size=1)
    assert not meeting.is_complete("three", world_size=8)
    assert "they do not use torch.distributed" in caplog.text
