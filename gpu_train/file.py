"""Reading files of checkpoints without restoring them: `gpu_train.open`."""

from __future__ import annotations

import io
import os
from contextlib import ExitStack
from pathlib import Path

from gpu_train.environment import JobEnvironment
from gpu_train.launch import restore_checkpoint
from gpu_train.ref import Ref
from gpu_train.whereabouts import plain_path
from gpu_train.workspace import Workspace
from gpu_train_cas import EntryKind, File
from gpu_train_cas.errors import NotFound, UsageError


class CheckpointFile(io.RawIOBase):
    """A file of a checkpoint as a binary file object: read-only, seekable; every byte is verified when read.

    Holds the home open until it is closed, and the checkpoint in the store, also if it is removed meanwhile.
    """

    def __init__(self, held: ExitStack, file: File, name: str) -> None:
        super().__init__()
        self._held = held
        self._file = file
        self._at = 0
        self.name = name

    @property
    def size_bytes(self) -> int:
        """The file's length."""
        return self._file.size_bytes

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The position."""
        self._check_open()
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; positions behind the end are allowed, before the start not (ValueError)."""
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size_bytes}.get(whence)
        if base is None or base + offset < 0:
            raise ValueError(f"cannot seek to {offset} from {whence} in a file of {self.size_bytes} bytes")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill the buffer from the position on; how many bytes, 0 at the end."""
        self._check_open()
        count = self._file.readinto(memoryview(buffer).cast("B"), self._at)
        self._at += count
        return count

    def pread(self, length: int, offset: int) -> bytes:
        """The bytes at a place, without moving; threads may call at once."""
        self._check_open()
        return self._file.pread(length, offset)

    def close(self) -> None:
        """Give the home back; safe to call twice."""
        if not self.closed:
            super().close()
            self._held.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name} is closed")


def open_file(ref: Ref | str, *, home: Path | str | None = None) -> CheckpointFile:
    """Open a file of a checkpoint, such as "JOB@latest/model.safetensors", for reading.

    The path may be left out when the checkpoint is a single file. Wrap it in io.BufferedReader for many
    small reads.

    Raises:
        NotFound: when the job, the checkpoint or the path is not there.
        UsageError: when the path is a folder.
    """
    with ExitStack() as stack:
        workspace = stack.enter_context(Workspace.open(home, create=False))
        checkpoint, path = workspace.checkpoints.resolve(ref)
        if checkpoint.record is None:
            raise NotFound(f"{checkpoint.ref} has no bytes")
        root = stack.enter_context(workspace.store.reading(checkpoint.record, "open")).root
        entry = workspace.store.reader.lookup(root, os.fsencode(path)) if path else root
        if not path and len(entries := workspace.store.reader.tree(root.digest).entries) == 1:
            entry = entries[0]
        if entry.kind is not EntryKind.FILE:
            raise UsageError(f"{ref} is a {entry.kind.name.lower()}, not a file; name a file in it")
        return CheckpointFile(stack.pop_all(), workspace.store.reader.open(entry), str(ref))


def latest_checkpoint(job: str | None = None, *, home: Path | str | None = None) -> Path | None:
    """The newest whole checkpoint as plain files: its folder, or its file. None when there is none.

    Without `job`, inside a job: the job's own newest, else the one it was told to go on from; outside of one
    there is none. The trainer's files are given where they still are what was stored; else they are restored into the
    job's folder.

    Raises:
        NotFound: when that job is not there.
    """
    inside = JobEnvironment.read()
    wanted = job or inside.job_id
    if wanted is None:
        return inside.resume_from
    with Workspace.open(home, create=False) as workspace:
        found = workspace.jobs.find(wanted)
        checkpoint = workspace.checkpoints.latest(found.id)
        if checkpoint is None:
            return inside.resume_from if job is None else None
        plain = plain_path(checkpoint)
        return plain or restore_checkpoint(workspace, checkpoint, workspace.home.load(checkpoint.job_id))
