"""What the callback and the CheckpointIO for Lightning do, whichever of its two packages they are for.

Lightning rotates as it goes: save the new checkpoint, remove the old one. With AsyncCheckpointIO the save is only
queued when the old one is removed, so that for a while there is none; here the removal waits (`rotation`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from gpu_train.capture.shape import is_never
from gpu_train.complaint import complain
from gpu_train.integrations import handover
from gpu_train.integrations.rotation import Rotation

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.plugins import CheckpointIO
    from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
else:
    Callback = _WrappingCheckpointIO = object

PathLike = str | os.PathLike[str]


class CommittingIO(_WrappingCheckpointIO):
    """Wraps any CheckpointIO: what it has saved is committed, and only then is removed what that replaces.

    The commit happens where the file is written. So the innermost CheckpointIO, which writes, is wrapped as well
    when there are others around it, such as AsyncCheckpointIO, which queue.

    Args:
        checkpoint_io: what saves, by default what the strategy uses.
        wait: let each save end only once the checkpoint is stored and verified.
    """

    default_io: ClassVar[type[CheckpointIO]]

    def __init__(self, checkpoint_io: CheckpointIO | None = None, *, wait: bool = False) -> None:
        super().__init__(checkpoint_io)
        self._wait = wait
        self._rotation = Rotation()
        self._taken: set[str] = set()
        if checkpoint_io is not None:
            self._wrap_innermost(lambda: None)

    @property
    def checkpoint_io(self) -> CheckpointIO:
        """What it wraps. Strategies set it whenever they use it, and only the first time counts; Fabric sets none."""
        self._wrap_innermost(self.default_io)
        return self._checkpoint_io

    @checkpoint_io.setter
    def checkpoint_io(self, checkpoint_io: CheckpointIO) -> None:
        self._wrap_innermost(lambda: checkpoint_io)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: PathLike, storage_options: Any = None) -> None:
        """Save, or have it saved later, and commit where that happens."""
        self._taken.add(_name(path))
        self._rotation.begin(_name(path))
        self.checkpoint_io.save_checkpoint(checkpoint, path, storage_options=storage_options)

    def remove_checkpoint(self, path: PathLike) -> None:
        """Remove, once what was saved before is committed."""
        self._rotation.remove(_name(path), lambda: self.checkpoint_io.remove_checkpoint(path))

    def teardown(self) -> None:
        """Wait for what is queued, as the wrapped one does."""
        self.checkpoint_io.teardown()

    def commit(self, path: PathLike, step: int | None = None, metrics: dict[str, Any] | None = None) -> None:
        """Commit what is at `path`, unless its name says that it is temporary, as that of Lightning's tuner is."""
        if not is_never(os.path.basename(_name(path))):
            handover.commit(path, step=step, metrics=metrics, wait=self._wait)

    def take(self, path: PathLike) -> bool:
        """Whether a save to `path` has come by since this was last asked."""
        name = _name(path)
        taken = name in self._taken
        self._taken.discard(name)
        return taken

    def _wrap_innermost(self, base_if_none: Callable[[], CheckpointIO | None]) -> None:
        last: Any = self
        while hasattr(last._checkpoint_io, "_checkpoint_io"):
            last = last._checkpoint_io
        if isinstance(last._checkpoint_io, _Committed):
            return
        base = last._checkpoint_io or base_if_none()
        if base is not None:
            last._checkpoint_io = _Committed(base, self)


class _Committed:
    """The CheckpointIO that writes, with a commit after each save; everything else is its own."""

    def __init__(self, base: CheckpointIO, outer: CommittingIO) -> None:
        self._base = base
        self._outer = outer

    def save_checkpoint(self, checkpoint: dict[str, Any], path: PathLike, storage_options: Any = None) -> None:
        step, metrics = _step(checkpoint), _score(checkpoint, path)
        saved = False
        try:
            self._base.save_checkpoint(checkpoint, path, storage_options=storage_options)
            saved = True
            self._outer.commit(path, step, metrics)
        finally:
            self._outer._rotation.end(_name(path), saved=saved)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is being unpickled there is no _base
            raise AttributeError(name)
        return getattr(self._base, name)


class CommittingCallback(Callback):
    """Commits what the Trainer saves and reports what the model logs, when it runs inside of a gpu-train job.

    It wraps the strategy's CheckpointIO when the fit begins. Strategies that save without one (FSDP and others with
    sharded checkpoints, DeepSpeed) are committed when `Trainer.save_checkpoint` returns, which is when all ranks have
    written. Metrics are reported at every `log_every_n_steps`, at the end of epochs and validations, and before a
    save, when they have changed.

    Args:
        wait: let each save end only once the checkpoint is stored and verified, not when its bytes are pinned.
    """

    io_type: ClassVar[type[CommittingIO]]

    def __init__(self, *, wait: bool = False) -> None:
        super().__init__()
        self._wait = wait
        self._sent: dict[str, float] = {}

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Take over saving."""
        if stage != "fit" or not handover.is_wanted():
            return
        self._sent.clear()
        try:
            io = trainer.strategy.checkpoint_io
            if not isinstance(io, CommittingIO):
                io = trainer.strategy.checkpoint_io = self.io_type(io, wait=self._wait)
        except Exception as e:  # whatever a strategy does not like must not end the training
            complain("lightning", f"checkpoints are not committed explicitly ({e}); capture takes them by their files")
            return
        if "save_checkpoint" not in vars(trainer):
            trainer.save_checkpoint = self._committing(trainer, io)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Leave the trainer's own way of saving as it was; its CheckpointIO stays wrapped."""
        if stage == "fit":
            vars(trainer).pop("save_checkpoint", None)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        """Report at the trainer's interval."""
        every = trainer.log_every_n_steps
        if every and trainer.global_step % every == 0:
            self._report(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Report."""
        self._report(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Report, but not what the check before the training gave."""
        if not trainer.sanity_checking:
            self._report(trainer)

    def _report(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero or not handover.is_wanted():
            return
        values = handover.numbers(trainer.callback_metrics)
        changed = {name: value for name, value in values.items() if self._sent.get(name) != value}
        self._sent.update(changed)
        handover.log(changed, trainer.global_step)

    def _committing(self, trainer: Trainer, io: CommittingIO) -> Any:
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def save_checkpoint(filepath: PathLike, *args: Any, **options: Any) -> None:
            self._report(trainer)
            io.take(filepath)
            save(filepath, *args, **options)
            if trainer.is_global_zero and not io.take(filepath):
                io.commit(filepath, trainer.global_step)

        return save_checkpoint


def _name(path: PathLike) -> str:
    return os.path.abspath(path)


def _step(checkpoint: dict[str, Any]) -> int | None:
    step = checkpoint.get("global_step", checkpoint.get("step"))
    return step if isinstance(step, int) else None


def _score(checkpoint: dict[str, Any], path: PathLike) -> dict[str, Any]:
    """What a ModelCheckpoint monitors, as it was for the checkpoint at exactly this path."""
    found = {}
    callbacks = checkpoint.get("callbacks")
    for state in callbacks.values() if isinstance(callbacks, dict) else ():
        scores = state.get("best_k_models") if isinstance(state, dict) else None
        if scores and state.get("monitor") and os.fspath(path) in scores:
            found[state["monitor"]] = scores[os.fspath(path)]
    return found
