"""Writes checkpoints with the real libraries, each below a folder of its own; what is recorded is in orders.toml."""

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

root = Path(sys.argv[1])


def model() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16))


data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
arguments = TrainingArguments(
    output_dir=str(root / "transformers"), max_steps=2, save_steps=2, per_device_train_batch_size=2, report_to=[],
    use_cpu=True, disable_tqdm=True,
)  # fmt: skip
Trainer(model=model(), args=arguments, train_dataset=data).train()

project = ProjectConfiguration(project_dir=str(root / "accelerate"), automatic_checkpoint_naming=True, total_limit=1)
accelerator = Accelerator(cpu=True, project_config=project)
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(layer.parameters())
accelerator.prepare(layer, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1))
for number in range(2):
    project.iteration = number
    accelerator.save_state()

for _ in range(2):  # the second time over the first
    dcp.save({"w": torch.ones(64)}, checkpoint_id=root / "torch" / "step-5", no_dist=True)

get_peft_model(model(), LoraConfig(target_modules=["c_attn"])).save_pretrained(root / "peft" / "adapter")
