"""How two jobs differ: code, data, arguments, environment, packages, settings, and what their metrics came to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_train.tables.checkpoint import mode_of
from gpu_train_cas.errors import GpuTrainError

if TYPE_CHECKING:
    from gpu_train.tables import Job, Metric
    from gpu_train.workspace import Workspace

CODE, DATA, ARGUMENTS, ENVIRONMENT = "code", "data", "arguments", "environment"
PACKAGES, SETTINGS, LAST, BEST = "packages", "settings", "last metrics", "best metrics"
SECTIONS = (CODE, DATA, ARGUMENTS, ENVIRONMENT, PACKAGES, SETTINGS, LAST, BEST)

_PYTHON = ("python", "implementation", "executable")
_MACHINE = ("os", "machine", "cpu", "cpus", "memory_bytes")
_SETTINGS = ("project", "provider", "gpus", "cwd", "parent", "loads", "retention")
_WORD = re.compile(r"[A-Za-z_+~][\w./+~-]*=", re.ASCII)
_NUMBER = re.compile(r"-[0-9.]")


class JobChange(NamedTuple):
    """One thing in which two jobs differ; None stands for what a job does not have.

    Attributes:
        section: one of `SECTIONS`.
        name: of an argument, package, metric, data set, setting; of code "version", else the path of a file.
        old, new: what the jobs have. Of a file of code "there" or None, and "changed" where its content differs.
    """

    section: str
    name: str
    old: Any
    new: Any


def job_difference(workspace: Workspace, old: Job, new: Job) -> list[JobChange]:
    """All in which two jobs differ, in the order of `SECTIONS`; metrics at their end, and the best of each.

    Files of code are named where both versions are in the store. Of data only the versions are named:
    `DataVersions.diff` tells which files differ.
    """
    before, after = workspace.metrics.list(old.id), workspace.metrics.list(new.id)
    sides = {
        DATA: (_data(old), _data(new)),
        ARGUMENTS: (arguments_of(old.command), arguments_of(new.command)),
        ENVIRONMENT: (_environment(old), _environment(new)),
        PACKAGES: (old.environment.get("packages") or {}, new.environment.get("packages") or {}),
        SETTINGS: tuple({name: getattr(job, name) for name in _SETTINGS} for job in (old, new)),
        LAST: (_last(before), _last(after)),
        BEST: (_best(before), _best(after)),
    }
    found = list(_code(workspace, old, new))
    for section, (left, right) in sides.items():
        found += _changes(section, left, right)
    return found


def arguments_of(command: Sequence[str]) -> dict[str, Any]:
    """A command's words by what they set: `--lr 1e-4`, `--lr=1e-4` and `lr=1e-4` by name, the others by place.

    A word that stands alone is True. An option that is given several times has a list.
    """
    found: dict[str, Any] = {}
    words = list(command)
    place = at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if word.startswith("-") and len(word) > 1 and not _NUMBER.match(word):
            name, equals, value = word.partition("=")
            if not equals and at < len(words) and (not words[at].startswith("-") or _NUMBER.match(words[at])):
                value, at, equals = words[at], at + 1, "="
            _add(found, name, value if equals else True)
        elif _WORD.match(word):
            name, _, value = word.partition("=")
            _add(found, name, value)
        else:
            _add(found, f"word {place}", word)
            place += 1
    return found


def _add(found: dict[str, Any], name: str, value: Any) -> None:
    if name in found:
        known = found[name]
        value = [*(known if isinstance(known, list) else [known]), value]
    found[name] = value


def _changes(section: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[JobChange]:
    for name in dict.fromkeys([*old, *new]):
        left, right = old.get(name), new.get(name)
        both_nan = left != left and right != right  # noqa: PLR0124  what NaN does
        if left != right and not both_nan:
            yield JobChange(section, name, left, right)


def _code(workspace: Workspace, old: Job, new: Job) -> Iterator[JobChange]:
    if old.code == new.code:
        return
    yield JobChange(CODE, "version", old.code, new.code)
    commits = [(job.git or {}).get("commit") for job in (old, new)]
    if commits[0] != commits[1]:
        yield JobChange(CODE, "commit", *commits)
    if old.code is None or new.code is None:
        return
    try:
        difference = workspace.code.diff(old.code, new.code)
    except GpuTrainError:  # one of them was removed, or is damaged
        return
    yield from (JobChange(CODE, path, None, "there") for path in difference.added)
    yield from (JobChange(CODE, path, "there", "changed") for path in difference.changed)
    yield from (JobChange(CODE, path, "there", None) for path in difference.removed)


def _data(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for ref in job.data:
        name, _, version = ref.rpartition("@")
        _add(found, name, version)
    return found


def _environment(job: Job) -> dict[str, Any]:
    gpus = [gpu if isinstance(gpu, dict) else {"name": gpu} for gpu in job.host.get("gpus") or ()]
    return {
        **{name: job.environment.get(name) for name in _PYTHON},
        **{name: job.host.get(name) for name in _MACHINE},
        "gpu models": [str(gpu.get("name", gpu)) for gpu in gpus],
        "gpu drivers": sorted({str(gpu["driver"]) for gpu in gpus if "driver" in gpu}),
    }


def _last(reports: Iterable[Metric]) -> dict[str, float]:
    return {name: value for report in reports for name, value in report.values.items()}


def _best(reports: Iterable[Metric]) -> dict[str, float]:
    found: dict[str, float] = {}
    for report in reports:
        for name, value in report.values.items():
            if math.isfinite(value):
                better = max if mode_of(name) == "max" else min
                found[name] = better(found.get(name, value), value)
    return found
