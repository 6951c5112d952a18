"""What of a training is in a checkpoint beside the weights, and so whether a run can go on from it or only serve it.

Names decide: those of files and folders, of tensors, of the parts of a distributed checkpoint, and of the keys of what
torch saved. Nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gpu_train.retention.optimizer import ENDINGS, FOLDERS, PART, WORD
from gpu_train.tensor_table import READ_ERRORS, StoredTensor, TensorTable
from gpu_train_cas.formats import Tensor, outer_keys
from gpu_train_cas.tensorclass import TensorClass, class_of

WEIGHTS, OPTIMIZER, SCHEDULER, RNG = "weights", "optimizer", "scheduler", "rng"

MAX_LOOKED_INTO = 16
"""Archives of torch whose keys are read; the ranks of one run all have the same ones."""

_MODEL = re.compile(r"(?:^|[_.\-])model(?:$|[_.\-])", re.IGNORECASE)
_SCHEDULER = re.compile(r"(?:^|[_.\-])(?:lr_?)?sched(?:uler)?s?(?:$|[_.\-0-9])", re.IGNORECASE)
_RNG = re.compile(r"(?:^|[_.\-])(?:rngs?|random_states?)(?:$|[_.\-0-9])", re.IGNORECASE)
_WORDS = ((WORD, OPTIMIZER), (_SCHEDULER, SCHEDULER), (_RNG, RNG))
_TORCH = (".pt", ".pth", ".ckpt", ".bin", ".tar")
_ONLY_MODELS = (".safetensors", ".gguf")
_CLOSED_MODELS = (".h5", ".keras", ".msgpack")
INTEGERS = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}


class TrainingState(NamedTuple):
    """What a checkpoint holds of a training, and which of its files could not be looked into: more may be there."""

    weights: bool = False
    optimizer: bool = False
    scheduler: bool = False
    rng: bool = False
    unread: tuple[str, ...] = ()

    @property
    def use(self) -> str | None:
        """What it is good for: "resume", "serve", or None for what has no weights."""
        if not self.weights:
            return None
        return "resume" if self.optimizer else "serve"

    def to_row(self) -> dict[str, object]:
        """The same as JSON types."""
        holds = {WEIGHTS: self.weights, OPTIMIZER: self.optimizer, SCHEDULER: self.scheduler, RNG: self.rng}
        return {"use": self.use, "holds": holds}

    def __str__(self) -> str:
        words = (("a scheduler", self.scheduler), ("random number generators", self.rng))
        missing = " and of ".join(word for word, there in words if not there)
        if self.use is None:
            said = "neither resume nor serve: it has no weights that gpu-train knows of"
        elif self.use == "serve":
            said = "serve, not resume: it has no optimizer state"
        elif missing:
            said = f"resume; it has no state of {missing}"
        else:
            said = "resume: the states of optimizer, scheduler and random number generators are there"
        return f"{said}; files that cannot be read: {len(self.unread)}" if self.unread else said


def training_state(table: TensorTable) -> TrainingState:
    """What a stored checkpoint holds of its training."""
    found = {role for path in table.paths for role in _of_path(path)}
    found |= {role_of(tensor) for tensor in table.tensors if role_of(tensor) != WEIGHTS or is_weight(tensor)}
    if any(path.lower().endswith(_CLOSED_MODELS) and not _of_path(path) for path in table.paths):
        found.add(WEIGHTS)
    broken = {trouble.path for trouble in table.troubles}
    readable = [path for path in table.files if path.lower().endswith(_TORCH) and path not in broken]
    torch = [path for path in readable if len(_of_path(path)) != 1]
    for path in torch[:MAX_LOOKED_INTO]:
        try:
            found |= _of_names(outer_keys(table.files[path], path))
        except READ_ERRORS:  # the table tells of it
            continue
    for path, items in table.items.items():
        found |= {_of_item(item.name) for item in items} - {WEIGHTS} if not _of_path(path) else set()
    unread = tuple(dict.fromkeys(trouble.path for trouble in table.troubles if trouble.damaged))
    return TrainingState(WEIGHTS in found, OPTIMIZER in found, SCHEDULER in found, RNG in found, unread)


def role_of(tensor: StoredTensor) -> str:
    """What a tensor belongs to, by its names and its file's: WEIGHTS, OPTIMIZER, SCHEDULER or RNG."""
    roles = _of_path(tensor.path)
    if len(roles) == 1:
        return next(iter(roles))
    if tensor.path.endswith(".distcp"):
        return _of_item(tensor.name)
    found = _of_names([tensor.name.partition(".")[0]])
    if found:
        return next(role for _, role in _WORDS if role in found)
    moment = class_of(Tensor(tensor.name, tensor.dtype, tensor.shape, 0, 0))
    return OPTIMIZER if moment in (TensorClass.EXP_AVG, TensorClass.EXP_AVG_SQ) else WEIGHTS


def is_weight(tensor: StoredTensor) -> bool:
    """Whether a tensor's elements count as parameters: floats and quantised blocks that belong to the model."""
    if role_of(tensor) != WEIGHTS or tensor.dtype in INTEGERS:
        return False
    return bool(tensor.dtype) or tensor.path.endswith(_ONLY_MODELS)


def _of_path(path: str) -> set[str]:
    """What a file holds by its name; several for one such as `model_optim_rng.pt`, in which the tensors' names tell."""
    *folders, name = path.split("/")
    if any(FOLDERS.fullmatch(folder) for folder in folders):
        return {OPTIMIZER}
    stem, dot, ending = name.rpartition(".")
    if f"{dot}{ending}".lower() not in ENDINGS:
        return set()
    found = _of_names([stem])
    return found | {WEIGHTS} if found and _MODEL.search(stem) and len(found) > 1 else found


def _of_item(name: str) -> str:
    """What a part of a distributed checkpoint is."""
    parts = name.split(".")[:2]
    if any(PART.fullmatch(part) for part in parts):
        return OPTIMIZER
    found = _of_names(parts) - {OPTIMIZER}
    return next((role for _, role in _WORDS if role in found), WEIGHTS)


def _of_names(names: Iterable[str]) -> set[str]:
    return {role for name in names for word, role in _WORDS if word.search(name)}
