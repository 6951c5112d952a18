"""The callback in jobs of the real Trainer: rotation, evaluation, going on, two ranks, and no job at all."""

from __future__ import annotations

from gpu_train import Workspace

NEEDS = ("transformers", "accelerate", "safetensors")


def test_a_trainer_that_keeps_one_checkpoint(train):
    done = train("hf_trainer", needs=NEEDS)
    assert [(c.name, c.step, c.state, c.proof) for c in done.checkpoints.values()] == [
        *((f"checkpoint-{n}", n, "verified", "explicit") for n in (2, 4, 6)),
        ("again/checkpoint-8", 8, "verified", "explicit"),
    ]
    assert done.said == {"start": "checkpoint-6", "left": ["checkpoint-6"], "trial": "search/run-7/checkpoint-3"}
    assert "gpu-train:" not in done.errors
    for checkpoint in done.checkpoints.values():
        metrics = checkpoint.metrics
        assert {"loss", "grad_norm", "learning_rate", "eval_loss", "best_metric"} <= metrics.keys()
        assert {"loss", "eval_loss", "best_metric"} <= set(checkpoint.own_metrics)
        assert metrics["best_metric"] <= metrics["eval_loss"]
        assert not {"epoch", "step"} & metrics.keys()
    with Workspace.open(done.home) as workspace:
        reports = [m for m in workspace.metrics.list(done.job_id) if m.source == "log"]
        commits = workspace.home.control(done.job_id) / "commits.jsonl"
    assert [m.step for m in reports if "loss" in m.values] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(commits.read_text().splitlines()) == 4, "outside of the job nothing is committed"


def test_the_first_of_two_ranks_commits_when_all_have_written(train):
    done = train("hf_ranks", needs=NEEDS, ranks=2)
    assert {name: c.proof for name, c in done.checkpoints.items()} == {
        "checkpoint-2": "explicit",
        "checkpoint-4": "explicit",
    }
    for name in done.checkpoints:
        expected = {"late.bin", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json", "shards/.metadata"}
        assert expected | {"shards/__0_0.distcp", "shards/__1_0.distcp"} <= done.files(name)
    assert done.said == {"alone": False, "together": True}
    assert done.errors.count("cannot wait until all ranks have written a checkpoint") == 1
