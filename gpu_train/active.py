"""What a training script calls while it runs: where to write, what was finished, what to note.

Light on purpose: no engine, no third-party package. Inside a job everything is handed to the capture agent
by appending lines to files in the job's folder (`O_APPEND`, one write per line, so threads and processes
may call at once); outside of a job folders still work and notes go nowhere.

With several ranks only rank 0 speaks for the job: on the others `log`, `event`, `commit` and `flush` do nothing,
and `checkpoint` gives the same folder but leaves finishing it to rank 0.

Trouble on gpu-train's side, such as a full disk under the home, is logged once and never stops a training.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import count
from numbers import Real
from pathlib import Path

from gpu_train.capture.answer import COMMITS, Answers
from gpu_train.capture.pin import link_tree
from gpu_train.complaint import complain
from gpu_train.environment import JobEnvironment
from gpu_train.home import Home

OUTSIDE_DIR = "checkpoints"
TEMPORARY = "tmp-"
"""What the name of a checkpoint begins with while `checkpoint` has it filled; capture takes no such name."""

FLUSH_S = 600.0
UNPINNED_S = 120.0
"""How long `commit` waits for a checkpoint to be stored that it could not link: a delete would lose it until then."""

_numbers_of_commits = count()


def checkpoint_dir() -> Path:
    """The folder to write checkpoints to; made when it is not there. Outside of a job ./checkpoints."""
    path = JobEnvironment.read().checkpoint_dir or Path(OUTSIDE_DIR).absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def load_dir() -> Path | None:
    """The folder with the checkpoints that the run was told to load, one folder each; None when there are none."""
    return JobEnvironment.read().load_dir


def log(metrics: Mapping[str, float], step: int | None = None) -> None:
    """Report numbers, at a step. Values may be anything that float() takes, such as a tensor of one element.

    Raises:
        ValueError: for a value that is no number.
    """
    values = _numbers(metrics)
    _append("logs", "metrics.jsonl", {"time_ns": time.time_ns(), "step": _step(step), "values": values})


def event(text: str, **fields: str | float | bool | None) -> None:
    """Note something that happened, in words, with facts for programs if there are any."""
    line: dict[str, object] = {"time_ns": time.time_ns(), "text": str(text), "kind": "note", "source": "job"}
    _append("logs", "events.jsonl", line | ({"fields": fields} if fields else {}))


def commit(
    path: str | os.PathLike[str], step: int | None = None, metrics: Mapping[str, float] | None = None,
    tags: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Say that a checkpoint, a file or a folder, is finished. Nothing may write to it afterwards.

    Inside a job its files are hard-linked aside before this returns (links cost no bytes), so that it is
    captured even when it is deleted right away. It need not lie in the checkpoint folder; where it cannot be
    linked, as from another filesystem, this returns once it is stored, at most after two minutes.

    Raises:
        FileNotFoundError: when there is nothing at `path`.
        ValueError: for a metric that is no number.
    """
    where = Path(os.path.abspath(path))
    if not where.exists():
        raise FileNotFoundError(f"checkpoint {where} does not exist; commit it after it was written")
    now = time.time_ns()
    name = f"c{now}-{os.getpid()}-{next(_numbers_of_commits)}"
    line: dict[str, object] = {
        "time_ns": now, "id": name, "path": str(where), "step": _step(step), "metrics": _numbers(metrics or {}),
        "tags": {str(k): str(v) for k, v in (tags or {}).items()},
    }  # fmt: skip
    job = JobEnvironment.read()
    if job.home is None or job.job_id is None or not job.is_first_rank:
        return
    pins = Home(job.home).pins(job.job_id) / name
    line["pin"] = str(pins) if link_tree(where, pins / where.name) else None
    if _append("control", COMMITS, line) and line["pin"] is None:
        complain("unpinned", f"{where} cannot be linked into {job.home}; such a commit waits until it is stored")
        _answers(job.home, job.job_id).wait(UNPINNED_S, name)


def flush(timeout_s: float = FLUSH_S) -> bool:
    """Wait until everything that the job has committed so far is stored and verified; whether all of it is.

    What is not is named in a warning of the logger "gpu_train". True at once outside of a job. A job need not
    call it at its end: what was committed is stored before `gpu-train run` returns.
    """
    job = JobEnvironment.read()
    if job.home is None or job.job_id is None or not job.is_first_rank:
        return True
    settled = _answers(job.home, job.job_id).wait(timeout_s)
    for path, why in settled.lost:
        complain(f"lost {path}", f"checkpoint {path} was committed but is not stored: {why}")
    if settled.waiting:
        paths = ", ".join(settled.waiting)
        complain("waiting", f"not stored after {timeout_s:g} s: {paths}; they go on being stored in the background")
    return settled.is_all_stored


@contextmanager
def checkpoint(
    step: int | None = None, metrics: Mapping[str, float] | None = None, tags: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Iterator[Path]:  # fmt: skip
    """A folder to write one checkpoint into, which appears as a whole or not at all.

    The folder has a temporary name. When the block ends it is made durable (fsync), renamed to `name`, by
    default checkpoint-<step>, and committed; an older one of that name is replaced. When the block
    raises, the folder is removed. With several ranks all get the same folder: let them meet at a barrier
    before rank 0 leaves the block.

    Raises:
        ValueError: when neither step nor name is given, or the name has a slash.
    """
    if name is None:
        if step is None:
            raise ValueError("checkpoint() needs a step or a name; write gpu_train.checkpoint(step=500)")
        name = f"checkpoint-{step}"
    if not name or "/" in name or name in (".", ".."):
        raise ValueError(f"checkpoint name {name!r} must be a plain folder name")
    values = _numbers(metrics or {})
    job = JobEnvironment.read()
    final = checkpoint_dir() / name
    temporary = final.with_name(TEMPORARY + name)
    if job.is_first_rank and job.world_size == 1:
        shutil.rmtree(temporary, ignore_errors=True)  # what a killed run left
    temporary.mkdir(exist_ok=True)
    if not job.is_first_rank:
        yield temporary
        return
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_tree(temporary)
    _replace(temporary, final)
    commit(final, step=step, metrics=values, tags=tags)


def _replace(temporary: Path, final: Path) -> None:
    """Rename over what may be there already; a folder with files in it cannot be renamed over."""
    old = None
    if os.path.lexists(final):
        old = final.with_name(f"{TEMPORARY}old-{os.getpid()}-{final.name}")
        os.rename(final, old)
    os.rename(temporary, final)
    _sync(final.parent)
    if old is not None and old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    elif old is not None:
        old.unlink()


def _sync_tree(root: Path) -> None:
    for folder, _, files in os.walk(root, topdown=False):
        for file in files:
            path = Path(folder, file)
            if path.is_file() and not path.is_symlink():
                _sync(path)
        _sync(Path(folder))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    values = {}
    for key, value in metrics.items():
        try:
            values[str(key)] = value if type(value) is int else float(value)
        except (TypeError, ValueError) as e:
            raise ValueError(f"metric {key!r} is no number: {value!r}") from e
    return values


def _step(step: object) -> int | None:
    if step is None:
        return None
    if isinstance(step, Real) or hasattr(step, "__index__") or hasattr(step, "__int__"):
        return int(step)  # type: ignore[call-overload, no-any-return]
    raise ValueError(f"step {step!r} is no number")


def _append(folder: str, file: str, line: Mapping[str, object]) -> bool:
    """Tell the agent; whether there is one to tell and it worked."""
    job = JobEnvironment.read()
    if job.home is None or job.job_id is None or not job.is_first_rank:
        return False
    path = Home(job.home).artifacts(job.job_id) / folder / file
    try:
        append_line(path, line)
    except OSError as e:
        complain(f"append {file}", f"{path} cannot be written, so what the job reports is lost for now: {e}")
        return False
    return True


@cache
def _answers(home: Path, job_id: str) -> Answers:
    return Answers(Home(home).control(job_id))


def append_line(path: Path, line: Mapping[str, object]) -> None:
    """Append one JSON line in a single write, making the file when it is not there.

    ASCII only: names that are no UTF-8 stay readable as escapes.
    """
    data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
