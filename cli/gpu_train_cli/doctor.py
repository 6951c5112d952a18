"""`gpu-train doctor`: what this machine has of what gpu-train needs, and the next step for what it lacks."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import click

import gpu_train
from gpu_train.credentials.local import LocalCredentials
from gpu_train_cas import Registry
from gpu_train_cas.errors import GpuTrainError, ReadOnly
from gpu_train_cas.filesystem import mount_of
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Listing, Output, reading
from gpu_train_cli.text import count, size
from gpu_train_fuse import support

OK, WARNING, FAILED = "ok", "warning", "failed"
LOW_SPACE_BYTES = 10 << 30
REBUILD = "`gpu-train repair --rebuild-registry` makes it anew from the packs"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `next_step` says what to do when it is not ok."""

    check: str
    state: str
    found: str
    next_step: str | None = None


@click.command("doctor", cls=Command)
@reading
@pass_invocation
def doctor(invocation: Invocation, output: Output) -> None:
    """Check that this machine has what gpu-train needs.

    Looks at the home's filesystem, room and registry, at stale readers of the registry, and at the programs
    that mounting and remote machines need. Fails when something that every command needs is broken; what
    only some commands need is a warning.
    """
    root = gpu_train.Home.locate(invocation.home).root
    findings = [finding for check in CHECKS for finding in check(root)]
    columns = [
        Column("state", "STATE"),
        Column("check", "CHECK"),
        Column("found", "FOUND", wrap=True),
        Column("next_step", "NEXT STEP", lambda step: step or "", wrap=True),
    ]
    rows = [asdict(finding) for finding in findings]
    output.listing(Listing("findings", columns, rows, lambda row: str(row["check"]), "nothing was checked"))
    if any(finding.state == FAILED for finding in findings):
        click.get_current_context().exit(1)


def _programs(_: Path) -> Iterator[Finding]:
    found = f"gpu-train {version('gpu-train')}, Python {platform.python_version()}, {platform.platform()}"
    yield Finding("version", OK, found)


def _home(root: Path) -> Iterator[Finding]:
    there = root if root.exists() else next(parent for parent in root.parents if parent.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        step = "make it writable, or set GPU_TRAIN_HOME to a folder that is"
        yield Finding("home", FAILED, f"{root} cannot be written", step)
    else:
        yield Finding("home", OK, f"{root}{'' if root.exists() else ' (not made yet)'}")
    mount = mount_of(root)
    if mount is None:
        yield Finding("filesystem", WARNING, "unknown", "make sure that the home is on a local disk")
    elif not mount.fit_for_registry:
        step = "set GPU_TRAIN_HOME to a local disk; memory maps and locks are not safe here"
        yield Finding("filesystem", FAILED, f"{mount.type} at {mount.point}", step)
    else:
        yield Finding("filesystem", OK, f"{mount.type} at {mount.point}")
    usage = shutil.disk_usage(there)
    low = usage.free < LOW_SPACE_BYTES
    yield Finding(
        "disk space",
        WARNING if low else OK,
        f"{size(usage.free)} free of {size(usage.total)}",
        "free some: `gpu-train gc --dry-run` shows what it would give back" if low else None,
    )


def _registry(root: Path) -> Iterator[Finding]:
    folder = root / "registry"
    if not (folder / "data.mdb").is_file():
        if next((root / "store" / "packs").glob("*/*.pack"), None) is not None:
            yield Finding("registry", FAILED, f"{folder / 'data.mdb'} is gone, but there are packs", REBUILD)
        else:
            yield Finding("registry", OK, "not made yet; the first job makes it")
        return
    try:
        registry = _open(folder)
    except GpuTrainError as error:
        yield Finding("registry", FAILED, str(error), REBUILD)
        return
    try:
        how = "opens for reading only" if registry.read_only else "opens"
        yield Finding("registry", OK, f"{how}, {size(registry.size_bytes())} in use")
        stale = registry.stale_readers()
        found = f"{count(stale, 'slot')} of processes that are gone, freed now" if stale else "none"
        yield Finding("stale readers", OK, found)
    finally:
        registry.close()


def _open(folder: Path) -> Registry:
    try:
        return Registry.open(folder)
    except ReadOnly:  # told of as the home's own finding
        return Registry.open(folder, read_only=True)


def _credentials(root: Path) -> Iterator[Finding]:
    try:
        entries = LocalCredentials(gpu_train.Home(root)).entries()
    except GpuTrainError as error:
        found, _semicolon, step = str(error).partition("; ")
        yield Finding("credentials", FAILED, found, step)
    else:
        yield Finding("credentials", OK, f"{count(len(entries), 'secret')} added, readable by nobody else")


def _mounting(_: Path) -> Iterator[Finding]:
    try:
        support.check()
    except GpuTrainError as error:
        found, _semicolon, step = str(error).partition("; ")
        yield Finding("mount", WARNING, found, step)
    else:
        yield Finding("mount", OK, f"{support.DEVICE} and {support.find_library()}")


def _remote(_: Path) -> Iterator[Finding]:
    yield _tool(("rsync",), "`apt install rsync`; only jobs on other machines need it")
    yield _tool(("ssh",), "`apt install openssh-client`; only jobs on other machines need it")


def _tool(names: tuple[str, ...], step: str) -> Finding:
    for name in names:
        if path := shutil.which(name):
            return Finding(names[0], OK, path)
    return Finding(names[0], WARNING, "not found", step)


CHECKS: tuple[Callable[[Path], Iterator[Finding]], ...] = (
    _programs,
    _home,
    _registry,
    _credentials,
    _mounting,
    _remote,
)
