"""The callback and the CheckpointIO in jobs of the real Lightning, under both its names."""

from __future__ import annotations

import pytest

EPOCHS = ("epoch=0-step=4.ckpt", "epoch=1-step=8.ckpt", "epoch=2-step=12.ckpt")


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_a_trainer_that_keeps_the_best_checkpoint(train, package):
    done = train("lightning_fit", package, needs=(package,))
    found = {name: (c.step, c.proof) for name, c in done.checkpoints.items() if not name.startswith("outside/")}
    assert found == {
        **{f"callback/{name}": (step, "explicit") for name, step in zip(EPOCHS, (4, 8, 12), strict=True)},
        **{f"callback/last.ckpt{v}": (s, "explicit") for v, s in (("", 4), ("~2", 8), ("~3", 12))},
        "by-hand.ckpt": (12, "explicit"),
        **{f"queued/{name}": (step, "explicit") for name, step in zip(EPOCHS, (4, 8, 12), strict=True)},
        f"base/{EPOCHS[0]}": (4, "explicit"),
        f"under/{EPOCHS[0]}": (4, "explicit"),
        **{f"sharded/{name}": (step, "explicit") for name, step in zip(EPOCHS[:2], (4, 8), strict=True)},
        "fabric.ckpt": (41, "explicit"),
    }
    assert "gpu-train:" not in done.errors

    losses = done.said["losses"]
    for name, step in zip(EPOCHS, (4, 8, 12), strict=True):
        assert done.checkpoints[f"callback/{name}"].metrics["val_loss"] == losses[str(step)]
        assert "loss" in done.checkpoints[f"callback/{name}"].metrics
        assert "val_loss" in done.checkpoints[f"queued/{name}"].own_metrics, "a plugin alone knows what is monitored"
    assert {".metadata", "__0_0.distcp", "meta.pt"} == done.files(f"sharded/{EPOCHS[0]}")

    # Nothing was removed before what replaced it had been saved; nothing stayed that should have gone.
    assert done.said["order"] == [
        ["saved", EPOCHS[0]],
        ["saved", EPOCHS[1]],
        ["removed", EPOCHS[0]],
        ["saved", EPOCHS[2]],
        ["removed", EPOCHS[1]],
    ]
    assert done.said["queued"] == [EPOCHS[2]]
    assert done.said["callback"] == [EPOCHS[2], "last.ckpt"]
    assert (done.said["restored"], done.said["untouched"]) == (True, "TorchCheckpointIO")
    assert done.said["loaded"] == 41
