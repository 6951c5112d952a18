"""Starting a job: what it is to run, what is recorded of it first, and handing it to its provider."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_train.config import CONFIGURED_ORIGIN, Config, read_section
from gpu_train.environment import current
from gpu_train.process import identity_of
from gpu_train.provider.local import Run, spawn
from gpu_train.provider.request import Request, check_runnable, command_of, gpu_environment
from gpu_train.rescue import begin_rescue
from gpu_train.retention.setting import Retention
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.tables.job import Job, clean_name, new_id
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import GpuTrainError, Incomplete, UsageError

PROVIDERS = ("local",)


@dataclass(frozen=True, slots=True)
class _Loads:
    """Checkpoints restored for a job: where, which one to go on from, and their refs."""

    folder: str | None
    resume_from: str | None
    parent: str | None
    refs: tuple[str, ...]


def run(
    task: Mapping[str, Any],
    provider: str | None = None,
    *,
    name: str | None = None,
    project: str | None = None,
    data: Sequence[str] = (),
    resume_from: str | None = None,
    load: str | Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    detach: bool = False,
    gpus: str | int | None = None,
    retention: Mapping[str, Any] | None = None,
    home: Path | str | None = None,
    on_start: Callable[[Job], None] = lambda job: None,
    notify: Callable[[str], None] = lambda text: None,
) -> Job:
    """Run a training job and capture its checkpoints; returns its row when it has ended and all is stored.

    Args:
        task: {"command": [...]}, or {"entrypoint": "train.py", "args": [...]}; "env" and "cwd" as wanted.
        provider: where; "local" unless `defaults.provider` says otherwise.
        name: what to call it, by default after the script or program.
        project: by default `defaults.project`.
        data: refs of data versions that it needs; each is checked and noted on the job.
        resume_from: ref of a checkpoint to go on from: restored, its path in GPU_TRAIN_RESUME_FROM.
        load: refs of checkpoints to restore, one folder each below GPU_TRAIN_LOAD_CHECKPOINT_DIR.
        env: variables for the command; they win over the task's.
        detach: return at once and go on in the background, without a terminal.
        gpus: "cpu", a number of GPUs, or which ("0,2").
        retention: what to keep of its checkpoints, as in `[retention]`; {} keeps all. By default what is set.
        on_start, notify: told of the running job, and of what a person at the terminal should know.

    What the command prints goes to this process's stdout and stderr, and to logs/stdout.log. Called in the
    main thread, SIGINT, SIGTERM and SIGHUP go to the job meanwhile (see `provider.local`).

    Raises:
        UsageError: for a task that makes no sense or a program that is not there; no job is made then.
        NotFound, Incomplete: for a ref that cannot be used.
        GpuTrainError: when the code cannot be recorded, naming why and the way round it.
    """
    command = command_of(task)
    cwd = Path(os.path.abspath(task.get("cwd") or Path.cwd()))
    with Workspace.open(home, cwd=cwd) as workspace:
        defaults = workspace.config.defaults
        chosen = provider or defaults.provider
        if chosen not in PROVIDERS:
            raise UsageError(f"provider {chosen!r} is not known; known are {', '.join(PROVIDERS)}")
        variables = {**task.get("env", {}), **(env or {}), **gpu_environment(gpus)}
        check_runnable(command, cwd, {**current(), **variables}.get("PATH"))
        job = _new_job(workspace, command, cwd, name=name, project=project, provider=chosen, gpus=gpus)
        job = job._replace(retention=_retention(workspace.config, job.project, retention))
        job = _record_inputs(workspace, job, data)
        loads = _restore(workspace, job, resume_from, [load] if isinstance(load, str) else list(load))
        job = job._replace(parent=loads.parent, loads=loads.refs)
        request = Request(
            {str(k): str(v) for k, v in variables.items()}, loads.resume_from, loads.folder, defaults.bt_aliases
        )
        for lost in begin_rescue(workspace):
            notify(f"job {lost.id} was lost, its runner is gone; what it left is captured in the background")
        if detach:
            workspace.jobs.put(job)
            spawn(workspace, job, request)
            on_start(job)
            return job
        workspace.jobs.put(job._replace(**identity_of(os.getpid())))
        try:
            runner = Run(workspace, job, request, attached=True, notify=notify)
        except BaseException as e:
            reason = f"it could not be started: {e!r}"
            workspace.jobs.update(job.id, status="failed", exit_code=127, ended_ns=time.time_ns(), reason=reason)
            raise
        return runner.run(on_start)


def _new_job(
    workspace: Workspace, command: tuple[str, ...], cwd: Path, *, name: str | None, project: str | None,
    provider: str, gpus: str | int | None,
) -> Job:  # fmt: skip
    called = clean_name(name or _name_of(command))
    return Job(
        id=new_id(called), name=name or called, project=project or workspace.config.defaults.project, command=command,
        cwd=str(cwd), provider=provider, created_ns=time.time_ns(), gpus=None if gpus is None else str(gpus),
    )  # fmt: skip


def _retention(config: Config, project: str, said: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What was said for this job; or for its project by `configure`, which the agent cannot know. None: nothing."""
    if said is not None:
        return Retention(**read_section(said, Retention, "retention")).to_row()
    own = config.projects.get(project)
    return own.to_row() if own is not None and config.origin(f"projects.{project}") == CONFIGURED_ORIGIN else None


def _name_of(command: Sequence[str]) -> str:
    """What to call a job: the script that it runs, else the program."""
    for word in command:
        if word.endswith((".py", ".sh")):
            return Path(word).stem
    for before, word in pairwise(command):
        if before == "-m":
            return word.rpartition(".")[2]
    return Path(command[0]).stem


def _record_inputs(workspace: Workspace, job: Job, data: Sequence[str]) -> Job:
    """Record the code and check the data, before anything runs."""
    refs = []
    for ref in data:
        workspace.data.resolve(ref)
        refs.append(workspace.data.get(ref).ref)
    defaults = workspace.config.defaults
    if not defaults.snapshot_code:
        return job._replace(data=tuple(refs))
    root = Path(job.cwd) / defaults.code_root
    try:
        version = workspace.code.snapshot(root)
    except GpuTrainError as e:
        raise type(e)(
            f"the code in {root} could not be recorded: {e}; or set defaults.snapshot_code = false in gpu-train.toml"
        ) from e
    return job._replace(data=tuple(refs), code=version.id, git=version.git.to_row() if version.git else None)


def _restore(workspace: Workspace, job: Job, resume_from: str | None, refs: Sequence[str]) -> _Loads:
    """Bring the checkpoints that were asked for back as plain files, one folder each."""
    wanted = [resume_from, *refs] if resume_from else list(refs)
    folder = workspace.home.load(job.id)
    paths: dict[str, Path] = {}
    found: list[Checkpoint] = []
    for ref in wanted:
        checkpoint, path = workspace.checkpoints.resolve(ref)
        if path:
            raise UsageError(f"{ref} names a path inside a checkpoint; a job starts from a whole one: {checkpoint.ref}")
        if checkpoint.thin and ref == resume_from:
            raise Incomplete(
                f"{checkpoint.ref} was thinned: it can serve, not resume; while its optimizer's state is in the trash, "
                f"`gpu-train checkpoints undo {checkpoint.ref}` brings it back; --load takes it as it is"
            )
        found.append(checkpoint)
        if checkpoint.ref not in paths:
            paths[checkpoint.ref] = restore_checkpoint(workspace, checkpoint, folder, taken=set(paths.values()))
    resume = paths[found[0].ref] if resume_from else None
    return _Loads(
        folder=str(folder) if wanted else None, resume_from=None if resume is None else str(resume),
        parent=found[0].ref if resume_from else None, refs=tuple(c.ref for c in found),
    )  # fmt: skip


def restore_checkpoint(workspace: Workspace, checkpoint: Checkpoint, folder: Path, taken: Iterable[Path] = ()) -> Path:
    """A checkpoint's files below `folder`; the path of its folder, or of its file when it is a single one.

    One that was restored there before is used again.
    """
    if checkpoint.record is None:
        raise UsageError(f"{checkpoint.ref} has no bytes; it was deleted before they could be kept")
    label = checkpoint.name.replace("/", "_")
    dest = folder / label
    if dest in taken:
        dest = folder / f"{checkpoint.job_id}_{label}"
    with workspace.store.reading(checkpoint.record, "restore") as record:
        if not dest.exists():
            folder.mkdir(parents=True, exist_ok=True)
            workspace.store.restore(record.root, dest)
        entries = workspace.store.reader.tree(record.root.digest).entries
    own_name = os.fsencode(Path(checkpoint.base_name).name)
    single = len(entries) == 1 and entries[0].name == own_name
    return dest / os.fsdecode(own_name) if single else dest
