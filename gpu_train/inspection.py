"""Looking into checkpoints from Python: `gpu_train.list_tensors` and `gpu_train.compare_checkpoints`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from gpu_train.comparison import Comparison, compare
from gpu_train.difference import tree_difference
from gpu_train.reading import opened
from gpu_train.ref import Ref
from gpu_train.tensor_stats import TensorStats, stats_of
from gpu_train.tensor_table import StoredTensor, TensorTable, table_of
from gpu_train.training_state import is_weight
from gpu_train.workspace import Workspace
from gpu_train_cas import Entry, EntryKind, OnProgress


def list_tensors(
    ref: Ref | str, *, stats: bool = False, home: Path | str | None = None, threads: int | None = None
) -> dict[str, tuple[StoredTensor, TensorStats | None]]:
    """The tensors of a checkpoint, or of the file or folder in it that the ref's path names, by file and name.

    Keys are the name, or `file:name` where several files have one of that name. Nothing is unpickled, and with `stats`
    a few megabytes are held at a time.

    Raises:
        NotFound: when the job, the checkpoint or the path is not there.
        Damaged: when a file is broken, and with `stats` when a block is; `gpu_train.tensor_table.table_of` goes on.
    """
    with Workspace.open(home, create=False) as workspace, opened(workspace, ref, "tensors") as (_, entry, path):
        table = table_of(workspace.store.reader, entry, path)
        table.insist()
        names = table.keys()
        if not stats:
            return {name: (tensor, None) for name, tensor in zip(names, table.tensors, strict=True)}
        found = zip(names, stats_of(table, table.tensors, threads=threads), strict=True)
        return {name: (tensor, one.insist(name) if one else None) for name, (tensor, one) in found}


def compare_checkpoints(
    old: Ref | str, new: Ref | str, *, weights_only: bool = False, home: Path | str | None = None,
    threads: int | None = None,
) -> Comparison:  # fmt: skip
    """How the checkpoint `new`, or a file or folder in it, differs from `old`; see `Comparison`.

    Raises:
        NotFound: when one of them is not there.
        Damaged: when a folder cannot be read; a block that cannot be is told of for its tensor.
    """
    with Workspace.open(home, create=False) as workspace:
        return compare_refs(workspace, old, new, weights_only=weights_only, threads=threads)


def compare_refs(
    workspace: Workspace, old: Ref | str, new: Ref | str, *, weights_only: bool = False,
    progress: OnProgress | None = None, threads: int | None = None,
) -> Comparison:  # fmt: skip
    """The same, in an open home."""
    with ExitStack() as stack:
        tables: list[TensorTable] = []
        entries: list[Entry] = []
        for ref in (old, new):
            _, entry, path = stack.enter_context(opened(workspace, ref, "diff"))
            entries.append(entry)
            tables.append(table_of(workspace.store.reader, entry, path))
        wanted = is_weight if weights_only else _any
        found = compare(tables[0], tables[1], wanted=wanted, progress=progress, threads=threads)
        if all(entry.kind is EntryKind.DIRECTORY for entry in entries):
            found.files = tree_difference(workspace.store.reader, entries[0], entries[1])
        return found


def _any(_: StoredTensor) -> bool:
    return True
