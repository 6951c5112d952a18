"""A real Trainer on two ranks, where the second one writes its part of a checkpoint when the first one is done.

The model is written as FSDP does it, sharded, by torch.distributed.checkpoint.
"""

import json
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiny import language_model, token_rows
from transformers import Trainer, TrainerCallback, TrainingArguments
from writing import wait_for

import gpu_train
from gpu_train.integrations.meeting import Meeting
from gpu_train.integrations.transformers import GpuTrainCallback


class SavedAt(TrainerCallback):
    """Says that the first rank has come to `on_save`, before the callback under test runs."""

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            Path(f"first-{state.global_step}").touch()


class Sharded(Trainer):
    def save_model(self, output_dir=None, _internal_call=False):
        super().save_model(output_dir, _internal_call)
        dcp.save(
            {"model": self.accelerator.unwrap_model(self.model).state_dict()}, checkpoint_id=f"{output_dir}/shards"
        )

    def _save_rng_state(self, output_dir):
        super()._save_rng_state(output_dir)
        if not self.is_world_process_zero():
            wait_for(Path(f"first-{self.state.global_step}").exists)
            Path(output_dir, "late.bin").write_bytes(b"late" * 1000)


arguments = TrainingArguments(
    output_dir=str(gpu_train.checkpoint_dir()),
    max_steps=4,
    save_steps=2,
    logging_steps=1,
    save_total_limit=1,
    per_device_train_batch_size=4,
    ddp_backend="gloo",
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
)
callbacks = [SavedAt(), GpuTrainCallback()]
Sharded(language_model(), arguments, train_dataset=token_rows(), callbacks=callbacks).train()

first = dist.get_rank() == 0
alone = Meeting("alone", patience_s=0.1).is_complete("x") if first else None
together = Meeting("together").is_complete("x")
dist.barrier()
if first:
    print(json.dumps({"alone": alone, "together": together}))
dist.destroy_process_group()
