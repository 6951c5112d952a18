"""`gpu-train checkpoints`: the group, and a checkpoint as a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpu_train.kind import OPTIMIZER_FREE
from gpu_train_cli.command import Group, Lazy
from gpu_train_cli.text import moment

if TYPE_CHECKING:
    from gpu_train import Checkpoint

_LIST = "gpu_train_cli.checkpoint_list"
_FILES = "gpu_train_cli.checkpoint_files"
_MARKS = "gpu_train_cli.checkpoint_marks"
_REMOVAL = "gpu_train_cli.checkpoint_removal"

checkpoints = Group(
    "checkpoints",
    default="list",
    help="""List, show, read, restore, import and remove checkpoints.

    A REF names a checkpoint: JOB (its latest), JOB@latest, JOB@best, JOB@step:500 or JOB@NAME, each with
    an optional /path. JOB is a job's id, the beginning of one, or a name (the newest job of that name).
    """,
    short_help="List, show, read, restore, import and remove checkpoints.",
    lazy={
        "list": Lazy(f"{_LIST}:list_checkpoints", "List checkpoints, newest first."),
        "show": Lazy(f"{_LIST}:show_checkpoint", "Show all that is known of one."),
        "files": Lazy(f"{_FILES}:files", "List the files of a checkpoint."),
        "tree": Lazy(f"{_FILES}:tree", "Draw the files of a checkpoint as a tree."),
        "cat": Lazy(f"{_FILES}:cat", "Write one file of a checkpoint to stdout."),
        "tensors": Lazy("gpu_train_cli.checkpoint_tensors:tensors", "List the tensors of a checkpoint, with figures."),
        "diff": Lazy("gpu_train_cli.checkpoint_diff:diff", "Show how two checkpoints differ, tensor by tensor."),
        "restore": Lazy(f"{_FILES}:restore", "Write a checkpoint, or a part of one, to disk."),
        "import": Lazy("gpu_train_cli.checkpoint_import:import_checkpoints", "Bring existing checkpoints in."),
        "verify": Lazy("gpu_train_cli.verify:verify_checkpoint", "Re-read and re-hash a checkpoint."),
        "push": Lazy("gpu_train_cli.sinks:push_checkpoint", "Push a checkpoint to the sinks now."),
        "tag": Lazy(f"{_MARKS}:tag", "Set tags of a checkpoint."),
        "keep": Lazy(f"{_MARKS}:keep", "Forbid that checkpoints are removed."),
        "unkeep": Lazy(f"{_MARKS}:unkeep", "Allow it again."),
        "rm": Lazy(f"{_REMOVAL}:remove", "Move checkpoints to the trash."),
        "prune": Lazy("gpu_train_cli.prune:prune", "Move what no retention policy preserves to the trash."),
        "thin": Lazy("gpu_train_cli.thin:thin", "Drop the optimizer's state of old checkpoints."),
        "undo": Lazy(f"{_REMOVAL}:undo", "Bring removed checkpoints back."),
    },
)


def checkpoint_row(checkpoint: Checkpoint) -> dict[str, object]:
    """A checkpoint as a row of a listing; no read of the store."""
    return {
        "job_id": checkpoint.job_id,
        "checkpoint_id": checkpoint.name,
        "step": checkpoint.step,
        "state": checkpoint.state,
        "proof": checkpoint.proof,
        "type": OPTIMIZER_FREE if checkpoint.thin else checkpoint.kind or None,
        "base_model": checkpoint.base_model,
        "size_bytes": checkpoint.size_bytes,
        "stored_bytes": checkpoint.stored_bytes,
        "created_at": moment(checkpoint.created_ns or checkpoint.committed_ns),
        "metrics": checkpoint.metrics,
        "tags": checkpoint.tags,
        "sinks": list(checkpoint.pushed),
        "kept": checkpoint.kept,
    }


def ref_of(row: Mapping[str, object]) -> str:
    """The ref of a checkpoint's row."""
    return f"{row['job_id']}@{row['checkpoint_id']}"
