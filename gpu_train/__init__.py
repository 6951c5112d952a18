"""gpu-train: keeps training runs reproducible: the code that ran, the data it read, the checkpoints it wrote.

For a training script: `checkpoint_dir`, `load_dir`, `latest_checkpoint`, `commit`, `checkpoint`, `flush`, `log`,
`event`; they are light to import and work outside of a job too. For everything else: `run` starts a job, `Workspace`
opens a home with its jobs and checkpoints, `open` reads a file of a checkpoint, `load_tensors` its tensors,
`list_tensors` tells of them, `compare_checkpoints` of two checkpoints, `data` keeps data versions, `retention` decides
what stays, `sinks` replicates it.

Map of the modules, bottom up: `environment`, `home`, `config` (where things are and what is set); `credentials`
(secrets for `sinks`, the places outside); `step`, `ref` (names); `kind` (what sort of checkpoint); `tables` (rows in
the registry); `stat_cache`, `exclude`, `listing`, `git`, `code` (what ran) and `data_listing`, `sha256`,
`data_manifest`, `data_version` (what it read); `model` (what it started from); `workspace` (all of that opened);
`refresh`, `base` (what a checkpoint is stored against); `retention` (what stays of checkpoints); `shard_index`,
`tensor_table`, `training_state`, `elements`, `tensor_stats`, `comparison`, `reading`, `inspection` (what is in
checkpoints, and how two differ); `whereabouts`, `saves`, `room` (where their bytes are, how much comes, how long there
is room); `capture` (finding, pinning and storing them); `provider` (processes); `rescue`, `launch`, `lifecycle` (jobs
from start to end), `job_status` (how they are doing), `job_difference` (in what two differ); `active` (inside a job),
`complaint` (how it complains), `integrations` (callbacks for frameworks).

Names are loaded when they are first used, so that `import gpu_train` costs a training script nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_train_cas.lazy import lazy_names

if TYPE_CHECKING:
    from gpu_train import data, retention, sinks
    from gpu_train.active import checkpoint, checkpoint_dir, commit, event, flush, load_dir, log
    from gpu_train.code import CodeVersion, CodeVersions
    from gpu_train.config import Config, configure
    from gpu_train.data_version import DataVersion, DataVersions
    from gpu_train.difference import Difference
    from gpu_train.errors import DataChanged
    from gpu_train.file import CheckpointFile, latest_checkpoint
    from gpu_train.file import open_file as open
    from gpu_train.home import Home
    from gpu_train.importer import import_checkpoints
    from gpu_train.inspection import compare_checkpoints, list_tensors
    from gpu_train.job_status import JobStatus, check_status, status
    from gpu_train.launch import run
    from gpu_train.lifecycle import kill, kill_all, reconcile, stop
    from gpu_train.model import Model, Models
    from gpu_train.ref import Ref
    from gpu_train.step import natural_key, step_of
    from gpu_train.tables import Checkpoint, Event, Job, Metric
    from gpu_train.tensors import load_tensors
    from gpu_train.workspace import Workspace

__all__ = [
    "Checkpoint",
    "CheckpointFile",
    "CodeVersion",
    "CodeVersions",
    "Config",
    "DataChanged",
    "DataVersion",
    "DataVersions",
    "Difference",
    "Event",
    "Home",
    "Job",
    "JobStatus",
    "Metric",
    "Model",
    "Models",
    "Ref",
    "Workspace",
    "check_status",
    "checkpoint",
    "checkpoint_dir",
    "commit",
    "compare_checkpoints",
    "configure",
    "data",
    "event",
    "flush",
    "import_checkpoints",
    "kill",
    "kill_all",
    "latest_checkpoint",
    "list_tensors",
    "load_dir",
    "load_tensors",
    "log",
    "natural_key",
    "open",
    "reconcile",
    "retention",
    "run",
    "sinks",
    "status",
    "step_of",
    "stop",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gpu_train.active": ("checkpoint", "checkpoint_dir", "commit", "event", "flush", "load_dir", "log"),
        "gpu_train.code": ("CodeVersion", "CodeVersions"),
        "gpu_train.config": ("Config", "configure"),
        "gpu_train.data_version": ("DataVersion", "DataVersions"),
        "gpu_train.difference": ("Difference",),
        "gpu_train.errors": ("DataChanged",),
        "gpu_train.file": ("CheckpointFile", "latest_checkpoint", "open_file"),
        "gpu_train.home": ("Home",),
        "gpu_train.importer": ("import_checkpoints",),
        "gpu_train.inspection": ("compare_checkpoints", "list_tensors"),
        "gpu_train.job_status": ("JobStatus", "check_status", "status"),
        "gpu_train.launch": ("run",),
        "gpu_train.lifecycle": ("kill", "kill_all", "reconcile", "stop"),
        "gpu_train.model": ("Model", "Models"),
        "gpu_train.ref": ("Ref",),
        "gpu_train.step": ("natural_key", "step_of"),
        "gpu_train.tables": ("Checkpoint", "Event", "Job", "Metric"),
        "gpu_train.tensors": ("load_tensors",),
        "gpu_train.workspace": ("Workspace",),
    },
    renamed={"open": "open_file"},  # within its module that name would hide the builtin
    modules=("data", "retention", "sinks"),
)
