"""torch.distributed.checkpoint: a checkpoint is committed when its `.metadata` has been renamed into place.

    from gpu_train.integrations.dcp import GpuTrainReader, GpuTrainWriter
    dcp.save(state, storage_writer=GpuTrainWriter(gpu_train.checkpoint_dir() / f"step-{step}", metrics={"loss": loss}))
    dcp.load(state, storage_reader=GpuTrainReader("JOB@latest"))  # also what has been deleted since

The writers work with `save` and with `async_save`, in a thread or a process; use one on every rank. Where the writer
is not yours to choose, as in torchtitan, `commit_after` takes what `async_save` returned.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from io import BufferedReader, IOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from gpu_train.file import open_file
from gpu_train.integrations import handover
from gpu_train.integrations.meeting import Meeting
from gpu_train.ref import Ref
from gpu_train.workspace import Workspace

if TYPE_CHECKING:
    _Writer = FileSystemWriter
else:
    _Writer = object

PATIENCE_S = 300.0
"""For other ranks that save without collectives: nothing keeps them in step."""


class CommitsOnFinish(_Writer):
    """Mixed in before a storage writer's class: commits the checkpoint once the writer has finished it.

    `finish` runs on the coordinator when all ranks have written, and ends with the rename of `.metadata`. Without
    collectives each rank finishes its own part; then the first one waits for the others, up to five minutes.

    Attributes:
        step, metrics, tags: of the next checkpoint; set them again when a writer is used again. Without a step the
            folder's name tells it; without metrics what `gpu_train.log` reported does.
        wait: let the save return only once the checkpoint is stored and verified.
    """

    def __init__(
        self, *args: Any, step: int | None = None, metrics: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None, wait: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **options)
        self.step = step
        self.metrics = metrics
        self.tags = tags
        self.wait = wait

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Finish, then commit."""
        super().finish(metadata, results)
        # A writer that consolidates shards keeps them in a folder below the checkpoint's.
        folder = getattr(self, "consolidated_output_path", None) or self.path
        if not getattr(self, "use_collectives", True):
            whole = Meeting("dcp", PATIENCE_S).is_complete(os.fspath(folder))
            if not whole:
                return
        handover.commit(folder, step=self.step, metrics=self.metrics, tags=self.tags, wait=self.wait)


class GpuTrainWriter(CommitsOnFinish, FileSystemWriter):
    """`FileSystemWriter` that commits; its arguments and those of `CommitsOnFinish`."""


class GpuTrainFsspecWriter(CommitsOnFinish, FsspecWriter):
    """`FsspecWriter` that commits what lies on a local filesystem (`file://`)."""


class GpuTrainHuggingFaceWriter(CommitsOnFinish, HuggingFaceStorageWriter):
    """`HuggingFaceStorageWriter` that commits. Shards that it does not consolidate have no other mark of the end."""


def commit_after(
    saving: Any, path: str | os.PathLike[str], *, step: int | None = None, metrics: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None, wait: bool = False,
) -> Future[Any]:  # fmt: skip
    """Have the checkpoint at `path` committed when the `async_save` that returned `saving` has succeeded.

    Returns at once: a future with the outcome of the save, which is done when the commit is. Wait for that one
    before anything is deleted; waiting for `saving` itself may end before the commit.
    """
    saved: Future[Any] = getattr(saving, "upload_completion", saving)
    committed: Future[Any] = Future()
    committed.set_running_or_notify_cancel()

    def finish(saved: Future[Any]) -> None:
        try:
            outcome = saved.result()
            handover.commit(path, step=step, metrics=metrics, tags=tags, wait=wait)
        except BaseException as e:  # the save's own, for whoever waits for it
            committed.set_exception(e)
        else:
            committed.set_result(outcome)

    saved.add_done_callback(finish)
    return committed


class GpuTrainReader(FileSystemReader):
    """Reads a stored checkpoint by its ref, such as "JOB@step:500", without restoring it. Every byte is verified.

    Args:
        ref: of the checkpoint, or of the folder in it that holds `.metadata`. "@latest" is settled here and now.
        home: which home, by default $GPU_TRAIN_HOME.

    Raises:
        NotFound: when the job or the checkpoint is not there.
    """

    def __init__(self, ref: Ref | str, *, home: Path | str | None = None) -> None:
        super().__init__(str(ref))
        with Workspace.open(home, create=False) as workspace:
            checkpoint, path = workspace.checkpoints.resolve(ref)
        self.fs = _StoredFiles(home)
        self.path = f"{checkpoint.ref}/{path}" if path else str(checkpoint.ref)


class _StoredFiles(FileSystem):
    """The files of stored checkpoints, as torch wants to see them: paths are refs."""

    def __init__(self, home: Path | str | None) -> None:
        self._home = home

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[IOBase, None, None]:
        if mode != "rb":
            raise ValueError(f"{path} is stored and can only be read, not opened with mode {mode!r}")
        with BufferedReader(open_file(str(path), home=self._home)) as stream:
            yield stream

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{path}/{suffix}"
