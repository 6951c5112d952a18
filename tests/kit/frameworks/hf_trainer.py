"""A real Trainer that keeps one checkpoint: a run, another one from where that ended, and one outside of the job."""

import json
import os
from pathlib import Path

from tiny import language_model, token_rows
from transformers import Trainer, TrainerState, TrainingArguments

import gpu_train
from gpu_train.integrations import transformers as ours


def fit(folder: Path, steps: int, start: Path | None = None) -> TrainerState:
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=2,
        eval_steps=2,
        eval_strategy="steps",
        logging_steps=1,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    rows = token_rows()
    trainer = Trainer(
        language_model(), arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=[ours.GpuTrainCallback()]
    )
    trainer.train(resume_from_checkpoint=start and str(start))
    return trainer.state


out = gpu_train.checkpoint_dir()
state = fit(out, 6)
left = sorted(path.name for path in out.iterdir())

os.environ["GPU_TRAIN_RESUME_FROM"] = str(out / left[-1])
start = gpu_train.latest_checkpoint()
fit(out / "again", 8, start)

del os.environ["GPU_TRAIN_JOB_ID"]
fit(Path("outside"), 2)

trial = Path("search/run-7/checkpoint-3")
trial.mkdir(parents=True)
state.is_hyper_param_search, state.global_step = True, 3
found = ours._folder(TrainingArguments(output_dir="search", use_cpu=True), state)
print(json.dumps({"start": start and start.name, "left": left, "trial": str(found)}))
