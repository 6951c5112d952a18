"""What came of reading files in: how much was new, and what it took per class of tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_train_cas.tensorclass import TensorClass
from gpu_train_cas.tree import Entry


@dataclass(slots=True)
class ClassCost:
    """What the tensors of one class took.

    Attributes:
        original_bytes: their length.
        new_bytes: of these, bytes of blocks that the store did not have.
        stored_bytes: what the new blocks take as frames.
        depth: the most deltas on top of each other among the new blocks; 0 when all stand alone.
    """

    original_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    depth: int = 0


@dataclass(slots=True)
class Added:
    """What was read in.

    Attributes:
        root: the directory, ready to be the root of a record.
        files: files in it.
        size_bytes: original bytes in it.
        new_bytes: of these, bytes of blocks that the store did not have.
        stored_bytes: what the new blocks and objects take as frames.
        skipped: relative paths of what cannot be stored (sockets, FIFOs, devices).
        classes: per class of tensor, what that took; files taken from a stat cache are not among them.
    """

    root: Entry = field(init=False)
    files: int = 0
    size_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    skipped: list[bytes] = field(default_factory=list)
    classes: dict[TensorClass, ClassCost] = field(default_factory=dict)

    def count(self, tensor_class: TensorClass, length: int, stored_bytes: int | None, depth: int = 0) -> None:
        """Add one block of a file; `stored_bytes` is None for one that the store had."""
        cost = self.classes.setdefault(tensor_class, ClassCost())
        cost.original_bytes += length
        if stored_bytes is not None:
            self.new_bytes += length
            self.stored_bytes += stored_bytes
            cost.new_bytes += length
            cost.stored_bytes += stored_bytes
            cost.depth = max(cost.depth, depth)
