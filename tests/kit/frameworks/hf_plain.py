"""A real Trainer whose older folders vanish under it: it rotates, resumes from the newest and loads the best."""

import json

import torch
from tiny import language_model, token_rows
from transformers import Trainer, TrainerCallback, TrainingArguments
from writing import wait_for

import gpu_train

OUT = gpu_train.checkpoint_dir()
BEST = 2


def there():
    return sorted(path.name for path in OUT.iterdir() if path.name.startswith("checkpoint-"))


class Vanishing(TrainerCallback):
    """Goes on when only the newest checkpoint and the best one are left; the weights of each as they were saved."""

    def __init__(self):
        self.saved = {}

    def on_save(self, args, state, control, model=None, **_):
        self.saved[state.global_step] = {name: w.clone() for name, w in model.state_dict().items()}
        needed = {f"checkpoint-{state.global_step}", f"checkpoint-{min(BEST, state.global_step)}"}
        wait_for(lambda: set(there()) == needed)


class Scored(Trainer):
    """Finds the model best at one step."""

    def evaluate(self, *_, **__):
        metrics = {"eval_score": float(self.state.global_step == BEST)}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def fit(steps, start=None):
    arguments = TrainingArguments(
        output_dir=str(OUT),
        max_steps=steps,
        save_steps=1,
        eval_steps=1,
        eval_strategy="steps",
        save_total_limit=3,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    rows = token_rows()
    watch = Vanishing()
    trainer = Scored(language_model(), arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=[watch])
    trainer.train(resume_from_checkpoint=start)
    return trainer, watch.saved


trainer, saved = fit(5)
best = all(torch.equal(w, saved[BEST][name]) for name, w in trainer.model.state_dict().items())
other = all(torch.equal(w, saved[5][name]) for name, w in trainer.model.state_dict().items())
again, _ = fit(7, start=True)
print(
    json.dumps({"best": best, "other": other, "steps": sorted(saved), "left": there(), "end": again.state.global_step})
)
