"""What a shell may complete a word to: jobs, refs, sinks, versions of code and data, as a command's arguments ask for.

A parameter says by its metavar what it takes. Only what the registry and the settings hold is read (of models, their
records): no sink, no network. Whatever goes wrong, there is nothing to suggest: a shell has no place for an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from gpu_train_cas.errors import GpuTrainError
from gpu_train_cli.invocation import Invocation

if TYPE_CHECKING:
    from gpu_train import Workspace

NEWEST = 1_000
"""Checkpoints of a job that are looked at, from the newest back: more would keep a person waiting."""

_WORD = re.compile(r"[A-Z]+")
_PATHS = frozenset({"DIR", "PATH", "MOUNTPOINT", "D", "FOLDER"})
_NAMED = {"--sort": "FIELD", "--columns": "FIELD", "--job": "JOB", "--project": "PROJECT"}


def values(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str] | None:
    """The values that begin so; None for a parameter that takes something else."""
    found = _taken(context, parameter)
    suggest = next((SUGGESTIONS[word] for word in found if word in SUGGESTIONS), None)
    if suggest is None:
        return None
    invocation = context.find_object(Invocation) or Invocation()
    try:
        with invocation.reading() as workspace:
            return [value for value in dict.fromkeys(suggest(workspace, incomplete)) if value.startswith(incomplete)]
    except GpuTrainError:
        return []


def _taken(context: click.Context, parameter: click.Parameter) -> list[str]:
    """The words in a parameter's metavar: REF|JOB is a ref first."""
    for option in parameter.opts:
        if option in _NAMED:
            return [_NAMED[option]]
    if context.info_name == "diff" and context.parent is not None and context.parent.info_name == "jobs":
        return ["JOB"]  # its metavars are A and B
    group = context.parent.info_name if context.parent is not None else None
    metavar = parameter.metavar or (parameter.name or "").upper()
    if metavar == "NAME":
        return {"projects": ["PROJECT"], "models": ["MODEL"], "data": ["DATA"]}.get(group or "", [])
    if metavar.startswith(("NAME@", "NAME[@")):
        return ["DATA"]
    if metavar == "V":
        return ["CODE"]
    found = _WORD.findall(metavar)
    return [] if _PATHS.intersection(found) and not {"JOB", "REF"}.intersection(found) else found


def _jobs(workspace: Workspace, _: str) -> Iterator[str]:
    jobs = workspace.jobs.list()
    yield from (job.id for job in jobs)
    yield from (job.name for job in jobs)


def _refs(workspace: Workspace, incomplete: str) -> Iterator[str]:
    """Jobs until there is an @; then the newest checkpoints of that job."""
    name, at, rest = incomplete.partition("@")
    if not at:
        yield from _jobs(workspace, incomplete)
        return
    job = workspace.jobs.look_up(name)
    if job is None:
        return
    yield from (f"{name}@latest", f"{name}@best")
    with workspace.store.registry.read() as txn:
        rows = list(islice(workspace.checkpoints.scan(txn, job.id, reverse=True), NEWEST))
    if rest.startswith("step:"):
        yield from (f"{name}@step:{row.step}" for row in rows if row.step is not None)
    else:
        yield f"{name}@step:"
        yield from (f"{name}@{row.name}" for row in rows)


def _sinks(workspace: Workspace, _: str) -> Iterable[str]:
    sinks = workspace.config.sinks
    return [setting.name or setting.address for setting in (*sinks.checkpoints, *sinks.logs)]


def _data(workspace: Workspace, incomplete: str) -> Iterable[str]:
    refs = workspace.data.refs()
    return refs if "@" in incomplete else [ref.rpartition("@")[0] for ref in refs]


def _code(workspace: Workspace, _: str) -> Iterable[str]:
    return workspace.code.ids()


def _models(workspace: Workspace, _: str) -> Iterable[str]:
    return [model.name for model in workspace.models.list()]


def _projects(workspace: Workspace, _: str) -> Iterable[str]:
    return [job.project for job in workspace.jobs.list()]


def _fields(workspace: Workspace, incomplete: str) -> Iterable[str]:
    from gpu_train_cli.checkpoint_list import SHOWN  # noqa: PLC0415

    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name.removesuffix('NAME')}" for name in SHOWN]


SUGGESTIONS: dict[str, Callable[[Workspace, str], Iterable[str]]] = {
    "REF": _refs, "JOB": _jobs, "JOBS": _jobs, "SINK": _sinks, "DATA": _data, "CODE": _code, "MODEL": _models,
    "PROJECT": _projects, "FIELD": _fields,
}  # fmt: skip
