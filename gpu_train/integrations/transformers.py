"""Hugging Face Trainer: each checkpoint is committed when it is saved, each log is reported.

    from gpu_train.integrations.transformers import GpuTrainCallback
    args = TrainingArguments(output_dir=str(gpu_train.checkpoint_dir()), save_total_limit=2, ...)
    trainer = Trainer(model, args, callbacks=[GpuTrainCallback()], ...)

Give it to every rank: the first one commits, when the files of all are there. (transformers calls `on_save` on every
rank after its own files are written, and after the first one has rotated older checkpoints, which were committed in
their time. The one just saved is never rotated then.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from gpu_train.integrations import handover
from gpu_train.integrations.meeting import Meeting

BEST = "best_metric"
"""The metric of a checkpoint that holds the best value of `metric_for_best_model` up to its step."""


class GpuTrainCallback(TrainerCallback):
    """Commits what the Trainer saves and reports what it logs, when it runs inside of a gpu-train job.

    A checkpoint's own metrics are those logged at exactly its step, such as the evaluation before the save, and
    the Trainer's `best_metric`; the last known values of all others come from what was reported before.

    Args:
        wait: let each save return only once the checkpoint is stored and verified, not when its bytes are pinned.
    """

    def __init__(self, *, wait: bool = False) -> None:
        self._wait = wait
        self._meeting = Meeting("transformers")
        self._logged_at = -1
        self._logged: dict[str, float] = {}

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
        logs: dict[str, Any] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Report what was logged."""
        if not state.is_world_process_zero:
            return
        values = handover.numbers(logs or {})
        if self._logged_at != state.global_step:
            self._logged_at, self._logged = state.global_step, {}
        self._logged.update(values)
        handover.log(values, state.global_step)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:  # fmt: skip
        """Commit what was saved."""
        whole = self._meeting.is_complete(f"step-{state.global_step}", args.world_size)
        if not whole or not state.is_world_process_zero:
            return
        metrics = dict(self._logged) if self._logged_at == state.global_step else {}
        if state.best_metric is not None:
            metrics[BEST] = state.best_metric
        handover.commit(_folder(args, state), step=state.global_step, metrics=metrics, wait=self._wait)


def _folder(args: TrainingArguments, state: TrainerState) -> Path:
    """Where the Trainer has just saved; a search of hyperparameters has a folder per trial, which it tells nobody."""
    name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
    output = Path(args.output_dir or ".")
    if not state.is_hyper_param_search:
        return output / name
    return max(output.glob(f"*/{name}"), key=lambda path: path.stat().st_mtime_ns, default=output / name)
