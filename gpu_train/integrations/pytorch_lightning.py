"""PyTorch Lightning under its older name: each checkpoint is committed when it is saved, metrics are reported.

    from gpu_train.integrations.pytorch_lightning import GpuTrainCallback
    saving = ModelCheckpoint(dirpath=gpu_train.checkpoint_dir(), save_top_k=2, monitor="val_loss")
    Trainer(callbacks=[saving, GpuTrainCallback()], ...).fit(model, ckpt_path=gpu_train.latest_checkpoint())

`GpuTrainCheckpointIO` is what the callback wraps the strategy's CheckpointIO in. It works alone as well, as a plugin of
a Trainer or of Fabric (`plugins=[GpuTrainCheckpointIO()]`), and around AsyncCheckpointIO, not inside of it.
"""

from __future__ import annotations

from pytorch_lightning import Callback
from pytorch_lightning.plugins import TorchCheckpointIO
from pytorch_lightning.plugins.io.wrapper import _WrappingCheckpointIO

from gpu_train.integrations.lightning_parts import CommittingCallback, CommittingIO


class GpuTrainCheckpointIO(CommittingIO, _WrappingCheckpointIO):
    """A CheckpointIO around another one that commits what that has saved; see `CommittingIO`."""

    default_io = TorchCheckpointIO


class GpuTrainCallback(CommittingCallback, Callback):
    """A callback that commits checkpoints and reports metrics; see `CommittingCallback`."""

    io_type = GpuTrainCheckpointIO
