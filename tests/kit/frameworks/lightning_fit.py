"""Fits of the real Lightning, by the name of its package: with the callback, with the plugin, queued, sharded."""

import importlib
import json
import os
import pickle
import sys
import threading

import tiny  # noqa: F401  one thread
import torch
import torch.distributed.checkpoint as dcp

import gpu_train

name = sys.argv[1]
pl = importlib.import_module("lightning.pytorch" if name == "lightning" else name)
fabric = importlib.import_module("lightning.fabric" if name == "lightning" else "lightning_fabric")
io = importlib.import_module(f"{pl.__name__}.plugins.io")
strategies = importlib.import_module(f"{pl.__name__}.strategies")
ours = importlib.import_module(f"gpu_train.integrations.{name}")
out = gpu_train.checkpoint_dir()
said = {}


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.layer(batch).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.layer(batch).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Losses(pl.Callback):
    """What the model is worth after each epoch."""

    def __init__(self):
        self.seen = {}

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.seen[trainer.global_step] = float(trainer.callback_metrics["val_loss"])


def fit(folder, epochs=3, *, callbacks=(), plugins=(), strategy="auto", save_last=False):
    torch.manual_seed(2)
    rows = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=4)
    saving = pl.callbacks.ModelCheckpoint(dirpath=out / folder, monitor="val_loss", save_top_k=1, save_last=save_last)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        strategy=strategy,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saving, *callbacks],
        plugins=list(plugins),
    )
    trainer.fit(Model(), rows, rows)
    said[folder] = sorted(path.name for path in (out / folder).iterdir())
    return trainer


# The callback alone; what the tuner saves for itself has a hidden name.
losses = Losses()
trainer = fit("callback", callbacks=[losses, ours.GpuTrainCallback()], save_last=True)
said["losses"] = losses.seen
trainer.save_checkpoint(out / "callback" / ".lr_find_1.ckpt")
trainer.save_checkpoint(f"file://{out}/by-hand.ckpt")
said["restored"] = "save_checkpoint" not in vars(trainer)

# Around a queue: each save but the first waits until Lightning has asked for the removal of the one before.
order = []
asked = threading.Semaphore(1)


class Slow(io.TorchCheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        asked.acquire(timeout=60)
        super().save_checkpoint(checkpoint, path, storage_options)
        order.append(["saved", os.path.basename(path)])

    def remove_checkpoint(self, path):
        super().remove_checkpoint(path)
        order.append(["removed", os.path.basename(path)])


class Watched(ours.GpuTrainCheckpointIO):
    def remove_checkpoint(self, path):
        super().remove_checkpoint(path)
        asked.release()


fit("queued", plugins=[Watched(io.AsyncCheckpointIO(Slow()))])
said["order"] = order
fit("base", 1, plugins=[ours.GpuTrainCheckpointIO(io.AsyncCheckpointIO())])
fit("under", 1, plugins=[io.AsyncCheckpointIO()], callbacks=[ours.GpuTrainCallback()])


# A strategy that writes by itself, as those with sharded checkpoints do.
class Sharded(strategies.SingleDeviceStrategy):
    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        dcp.save({"model": checkpoint.pop("state_dict")}, checkpoint_id=filepath)
        torch.save(checkpoint, os.path.join(filepath, "meta.pt"))


fit("sharded", 2, strategy=Sharded("cpu"), callbacks=[ours.GpuTrainCallback()])

plugin = pickle.loads(pickle.dumps(ours.GpuTrainCheckpointIO()))
one = fabric.Fabric(accelerator="cpu", devices=1, plugins=[plugin])
one.save(out / "fabric.ckpt", {"model": torch.nn.Linear(2, 2), "step": 41})
said["loaded"] = one.load(out / "fabric.ckpt")["step"]

del os.environ["GPU_TRAIN_JOB_ID"]
trainer = fit("outside", 1, callbacks=[ours.GpuTrainCallback()])
said["untouched"] = type(trainer.strategy.checkpoint_io).__name__
print(json.dumps(said))
