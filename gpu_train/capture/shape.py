"""What counts as one checkpoint, told from names alone.

A *folder* checkpoint is named like a step (`checkpoint-500`, `step_500`, `500`) or holds weights, a framework's
marker or its parts. A *file* checkpoint is a weights file that stands for itself (`ckpt.pt`, `epoch=3-step=500.ckpt`,
`last.pt`). A *group* is the files of one checkpoint that a rule's `together` tells (`ckpt-5.index`, `ckpt-5.data-...`).
*Loose* files of one model (`model.safetensors` beside `config.json`, as the Hugging Face Trainer
leaves them in its output folder) make one checkpoint named `final`. Any other folder is a container to be
looked into; what lies in it keeps the relative path as its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from gpu_train.capture.frameworks import KNOWN
from gpu_train.capture.pattern import any_of
from gpu_train.capture.rules import Rulebook

FINAL = "final"
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".distcp", ".gguf", ".npz", ".npy", ".h5", ".hdf5",
           ".keras", ".msgpack", ".pkl", ".pickle", ".joblib", ".nemo", ".eqx", ".orbax", ".pth.tar", ".pt.tar",
           ".ckpt.tar", ".pdparams", ".pdopt")  # fmt: skip
MARKERS = frozenset((
    ".metadata", "trainer_state.json", "adapter_config.json", "model_index.json", "_CHECKPOINT_METADATA",
    "saved_model.pb", "metadata.json",
))  # fmt: skip
"""Files that make a folder a checkpoint without any weights beside them."""

_LOOSE_WEIGHTS = re.compile(
    r"(model|adapter_model|consolidated|(diffusion_)?pytorch_model(_fsdp)?|tf_model|flax_model)"
    r"(\.(fp16|bf16|fp32|ema|non_ema))?(-\d+-of-\d+)?(\.\d\d)?\.(safetensors|bin|pth|h5|msgpack)\Z"
    r"|.*-\d+-of-\d+\.\w+\Z|.*\.distcp\Z"
)
_LOOSE_COMPANIONS = any_of((
    ".metadata", "config.json", "adapter_config.json", "generation_config.json", "*.index.json", "tokenizer*",
    "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "preprocessor_config.json",
    "processor_config.json", "chat_template*", "training_args.bin", "trainer_state.json", "optimizer.pt",
    "optimizer.bin", "scheduler.pt", "scheduler.bin", "scaler.pt", "rng_state*.pth", "modules.json", "README.md",
    "model_index.json", "config_sentence_transformers.json",
    "sentence_bert_config.json", "params.json",
))  # fmt: skip
_SHARD = re.compile(r"-\d+-of-\d+\.|\.distcp$")
_STEP_NAMED = re.compile(
    r"([A-Za-z0-9]+[-_.])*(checkpoint|ckpt|step|global_?step|iter|iteration|epoch)s?[-_=]?\d+\b.*|\d+"
    r"|ep\d+-ba\d+.*|.*[-_](step|epoch)=\d+.*", re.IGNORECASE
)  # fmt: skip
_STANDS_ALONE = re.compile(
    r"(last|best|latest)([-_.].*)?\.\w+|.*\.ckpt|.*(?<!\d)\d{2,}(\.\w+)+"
    r"|.*(step|epoch)[-_=]?\d+.*|(checkpoint|ckpt)[-_=]?\d+.*", re.IGNORECASE
)  # fmt: skip
_BARE = re.compile(r"(checkpoint|ckpt)[-_]?\d+", re.IGNORECASE)
"""Flax calls a file like this, without an ending."""

_NEVER = any_of((
    ".*", "tmp-*", "tmp_*", "tmp.*", "*_tmp", "*_temp", "*.tmp", "*.tmp-*", "*.tmp.*", "*.partial", "*.part",
    "*.incomplete", "*.orbax-checkpoint-tmp*", "*-unfinished", "*.lock", "__pycache__",
))  # fmt: skip
"""Names in the checkpoint folder that are not looked into, unless a rule says what they are going to be called."""


def is_never(name: str) -> bool:
    """Whether a name in the checkpoint folder is temporary or hidden."""
    return _NEVER.fullmatch(name) is not None


def is_weights(name: str) -> bool:
    """Whether a file's name is one that weights have."""
    return name.lower().endswith(WEIGHTS) or _BARE.fullmatch(name) is not None


def is_step_named(name: str) -> bool:
    """Whether a folder is named like a training step."""
    return _STEP_NAMED.fullmatch(name) is not None


def is_loose(name: str) -> bool:
    """Whether a file is one of those that make up a model together."""
    return _LOOSE_WEIGHTS.match(name) is not None or _LOOSE_COMPANIONS.fullmatch(name) is not None


def may_have_companions(name: str) -> bool:
    """Whether other files of the same model may follow a weights file of that name."""
    return _LOOSE_WEIGHTS.match(name) is not None


def loose_group(files: Collection[str], parts: Collection[str] = ()) -> set[str]:
    """The files that make up one model in a container, of which some folders are parts; empty when there is none."""
    group = {f for f in files if is_loose(f)}
    if parts:
        return group
    weights = {f for f in group if _LOOSE_WEIGHTS.match(f)}
    if not weights or (len(group) == 1 and not _SHARD.search(next(iter(group)))):
        return set()
    return group


def single_files(files: Collection[str], parts: Collection[str] = ()) -> set[str]:
    """The files in a container that are a checkpoint each."""
    return {f for f in files if is_weights(f) and not is_never(f)} - loose_group(files, parts)


def is_checkpoint_folder(name: str, files: Collection[str], folders: Collection[str], rules: Rulebook = KNOWN) -> bool:
    """Whether a folder with these names directly in it is one checkpoint, not a container of some."""
    weights = {f for f in files if is_weights(f) and not is_never(f)}
    holds_steps = any(is_step_named(f) for f in folders if not is_never(f))
    if is_step_named(name):
        return bool(weights or MARKERS.intersection(files)) or not holds_steps
    if holds_steps:
        return False
    if MARKERS.intersection(files) or rules.parts(folders, files):
        return True
    if not weights:
        return False
    if weights == {f for group in rules.groups(weights).values() for f in group}:
        return False
    alone = {f for f in weights if _STANDS_ALONE.fullmatch(f) and not _LOOSE_WEIGHTS.match(f)}
    return all(rules.rank_files.fullmatch(f) for f in alone)
