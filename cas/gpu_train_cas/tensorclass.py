"""What a tensor is in training: a weight, one of Adam's moments, or something else (cas/spec/deltas.md, Classes)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from gpu_train_cas.formats import Tensor

_FLOATS = ("F64", "F32", "F16", "BF16", "F8_", "C64", "C128")
_MOMENTS = {
    "exp_avg": "exp_avg", "momentum_buffer": "exp_avg", "exp_avg_sq": "exp_avg_sq", "max_exp_avg_sq": "exp_avg_sq",
    "step": "other",
}  # fmt: skip


class TensorClass(StrEnum):
    """Numbers of one class behave alike: how much they change from step to step, how well they compress."""

    WEIGHTS = "weights"
    EXP_AVG = "exp_avg"
    EXP_AVG_SQ = "exp_avg_sq"
    OTHER = "other"


def class_of(tensor: Tensor) -> TensorClass:
    """By the last part of the name; other floats are weights, and what is no float is something else."""
    moment = _MOMENTS.get(tensor.name.rpartition(".")[2])
    if moment is not None:
        return TensorClass(moment)
    return TensorClass.WEIGHTS if tensor.dtype.startswith(_FLOATS) else TensorClass.OTHER


def class_of_run(tensors: Iterable[Tensor]) -> TensorClass:
    """The class of most bytes of a run of tensors; OTHER for none."""
    weights: Counter[TensorClass] = Counter()
    for tensor in tensors:
        weights[class_of(tensor)] += tensor.length
    return weights.most_common(1)[0][0] if weights else TensorClass.OTHER
