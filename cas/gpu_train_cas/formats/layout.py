"""Where a file's tensors lie, and what is raised when that cannot be told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from gpu_train_cas.errors import Damaged, NotFound
from gpu_train_cas.formats.tensor import Tensor

MAX_DIMENSIONS = 64
MAX_INTEGER = 2**63 - 1


class FormatError(Damaged):
    """The file is a container of a known kind, and broken, cut short or `Unsupported`."""


class Unsupported(FormatError):
    """The file may be whole, but it is of a version that we do not read or beyond our limits."""


class UnknownFormat(NotFound):
    """The file is no container that we know; nothing says that it is damaged."""


class Layout(NamedTuple):
    """A container's tensors.

    Attributes:
        format: "safetensors", "torch", "npy", "npz" or "gguf".
        tensors: sorted by offset; they lie inside the file and do not overlap.
        metadata: what the container says of itself in words.
    """

    format: str
    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def build(
        cls, format: str, tensors: Iterable[Tensor], size_bytes: int,
        metadata: Mapping[str, str] | None = None,
    ) -> Self:  # fmt: skip
        """Sort the tensors of a file of `size_bytes` and check what a layout promises.

        Raises:
            FormatError: naming the tensor that overlaps another, leaves the file or has an absurd shape.
        """
        ordered = tuple(sorted(tensors, key=lambda t: (t.offset, t.length)))
        end = 0
        for tensor in ordered:
            if tensor.offset < end or tensor.length < 0:
                raise FormatError(f"tensor {tensor.name[:200]!r} at {tensor.offset} overlaps the one before it")
            end = tensor.offset + tensor.length
            if end > size_bytes:
                raise FormatError(f"tensor {tensor.name[:200]!r} ends at {end}, past the file's {size_bytes} bytes")
            if len(tensor.shape) > MAX_DIMENSIONS or not all(0 <= n <= MAX_INTEGER for n in tensor.shape):
                raise FormatError(f"tensor {tensor.name[:200]!r} has a shape that no tensor can have")
        return cls(format, ordered, metadata or {})


def plain(name: str) -> str:
    """The name with everything that UTF-8 cannot hold (lone surrogates) replaced by "?"."""
    return name if name.isascii() else name.encode("utf-8", "replace").decode("utf-8")
