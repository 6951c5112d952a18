"""Containers of tensors: where in a file each tensor's bytes lie. Stub to be replaced."""

from gpu_train_cas.formats.tensor import Tensor

__all__ = ["Tensor"]
