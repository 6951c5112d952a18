"""Real frameworks that keep one checkpoint only: `rotation.py transformers | lightning SAVES`.

Each save is a line in written.jsonl, as trainers/rotating.py writes it; it stays at least until the next one is there.
"""

import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))
from rotating import digest_of
from tiny import language_model, token_rows
from writing import OUT

LIVES_S = 0.05


def note(path):
    """A save is whole: note it, and let it live for a moment."""
    since = time.monotonic()
    line = {"name": path.relative_to(OUT).as_posix(), "digest": digest_of(path)}
    time.sleep(LIVES_S)
    with open("written.jsonl", "a") as written:
        print(json.dumps({**line, "from": since, "to": time.monotonic()}), file=written)


def transformers(saves):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Note(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            note(OUT / f"checkpoint-{state.global_step}")

    arguments = TrainingArguments(
        output_dir=str(OUT), max_steps=saves, save_steps=1, save_total_limit=1, logging_steps=1,
        per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    Trainer(language_model(), arguments, train_dataset=token_rows(), callbacks=[Note()]).train()


def lightning(saves):
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def training_step(self, batch, index):
            loss = self.layer(batch).pow(2).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Note(pl.Callback):
        seen = None

        def on_train_batch_end(self, *_):  # before this batch's own save
            for path in OUT.glob("*.ckpt"):
                if path != self.seen:
                    self.seen = path
                    note(path)

        on_fit_end = on_train_batch_end

    saving = pl.callbacks.ModelCheckpoint(dirpath=OUT, save_top_k=1, every_n_train_steps=1)
    rows = torch.utils.data.DataLoader(torch.randn(4 * saves, 64), batch_size=4)
    pl.Trainer(
        max_steps=saves, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[Note(), saving],
    ).fit(Model(), rows)  # fmt: skip


if __name__ == "__main__":
    {"transformers": transformers, "lightning": lightning}[sys.argv[1]](int(sys.argv[2]))
