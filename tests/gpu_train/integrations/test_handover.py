"""What hooks hand over: numbers only, nothing outside of a job, and no exception whatever happens."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_train.integrations import handover


def test_only_numbers_are_metrics():
    values = {
        "loss": 0.5, "tokens": 7, "scalar": np.float32(0.25), "one": np.array(2.0), "flag": True,
        "many": np.zeros(3), "text": "0.5", "none": None, "step": 3, "epoch": 0.1, "list": [1],
    }  # fmt: skip
    assert handover.numbers(values) == {"loss": 0.5, "tokens": 7, "scalar": 0.25, "one": 2.0, "flag": 1.0}


def test_outside_of_a_job_nothing_happens(tmp_path, home, caplog):
    handover.commit(tmp_path / "not there", metrics={"loss": 1}, wait=True)
    handover.log({"loss": 1}, 1)
    assert not caplog.records
    assert not home.exists()


def test_what_cannot_be_committed_is_said_once(tmp_path, home, monkeypatch, caplog):
    monkeypatch.setenv("GPU_TRAIN_JOB_ID", "job-aaaaaa")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr("gpu_train.complaint._said", set())
    for name in ("one", "two"):
        handover.commit(tmp_path / name)
        handover.commit(f"s3://bucket/{name}")
    handover.log({"loss": 1}, step="no step")  # type: ignore[arg-type]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert f"{tmp_path}/one does not exist" in said[0]
    assert "s3://bucket/one is not on a local filesystem and is not captured" in said[1]
    assert "metrics of step no step were not taken" in said[2]


@pytest.mark.parametrize("url", [False, True])
def test_with_wait_it_is_stored_when_the_call_returns(launch, home, url):
    run = launch.script(f"""
        import os
        import gpu_train
        from gpu_train.integrations import handover
        from writing import safetensors

        path = gpu_train.checkpoint_dir() / "model-v1.safetensors"
        path.write_bytes(safetensors(1))
        where = f"file://{{path}}" if {url} else path
        handover.commit(where, step=5, metrics={{"loss": 0.5}}, tags={{"a": "b"}}, wait=True)
        with gpu_train.Workspace.open() as workspace:
            (row,) = workspace.checkpoints.list(os.environ["GPU_TRAIN_JOB_ID"])
        print((row.step, row.state, row.proof, dict(row.metrics), dict(row.tags)))
    """)
    code, out, err = run.finish()
    assert code == 0, err
    assert out.decode() == f"{(5, 'verified', 'explicit', {'loss': 0.5}, {'a': 'b'})}\n"
