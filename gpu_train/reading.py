"""A part of a checkpoint, found by its ref and kept from gc while it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_train.ref import Ref
from gpu_train.tables import Checkpoint
from gpu_train.workspace import Workspace
from gpu_train_cas import Entry
from gpu_train_cas.errors import Incomplete


@contextmanager
def opened(workspace: Workspace, ref: Ref | str, purpose: str) -> Iterator[tuple[Checkpoint, Entry, str]]:
    """The checkpoint that a ref names, the entry that its path names, and that path; gc takes nothing of it meanwhile.

    Raises:
        NotFound: when one of them is not there.
        Incomplete: for a checkpoint whose bytes were never kept.
    """
    checkpoint, path = workspace.checkpoints.resolve(ref)
    if checkpoint.record is None:
        raise Incomplete(f"{checkpoint.ref} is {checkpoint.state}: its bytes were never kept")
    with workspace.store.reading(checkpoint.record, purpose) as record:
        yield checkpoint, workspace.store.reader.lookup(record.root, os.fsencode(path)), path
