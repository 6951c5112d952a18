"""Deleting plain files of checkpoints that are stored, so that a kill at any moment loses nothing and misleads nobody.

What goes is first moved, by one rename, into a hidden folder beside it, where no trainer and no capture looks; there
it is looked at once more, and only then deleted. What an earlier call was killed over is found there and finished.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_train.capture.finder import (
    FOLDER,
    MAX_CONTAINERS,
    Found,
    Member,
    fingerprint_of,
    folder_of,
    look_inside,
    member_at,
)
from gpu_train.retention.plain import PlainFiles
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import mapped_os_errors
from gpu_train_cas.filesystem import FOLDER_FLAGS, remove_tree

ASIDE = ".reclaim-"
SURE = ".reclaimed-"
"""What the names of hidden folders begin with: what was moved aside, and what was found to be as planned after that."""


def reclaim(workspace: Workspace, plan: Iterable[PlainFiles]) -> list[PlainFiles]:
    """Delete the plain files that a plan says may go; those that were.

    What was written to or removed since the plan was made is left as it is.

    Raises:
        Denied, ReadOnly: when the folder cannot be changed.
        StorageFull: when there is not even room for an empty folder beside them.
    """
    gone = [one for one in plan if one.goes and _delete(workspace, one.found)]
    for one in gone:
        if not one.job.is_live:
            _remove_emptied(_container(one.found), workspace.home.artifacts(one.job.id))
    return gone


def finish_reclaim(workspace: Workspace, job: Job) -> None:
    """Finish what a call was killed over: delete what it was sure of, put the rest back."""
    for root in (workspace.home.checkpoints(job.id), workspace.home.load(job.id)):
        for hidden in list(_left_behind(root)):
            with suppress(OSError), _held(hidden):  # else somebody is at it
                (_remove if hidden.name.startswith(SURE) else _put_back)(hidden)


def _left_behind(root: Path) -> Iterator[Path]:
    for folder, folders, _ in os.walk(root):
        yield from (Path(folder, name) for name in folders if name.startswith((ASIDE, SURE)))
        depth = len(Path(folder).relative_to(root).parts)
        folders[:] = [name for name in folders if depth < MAX_CONTAINERS and not name.startswith(".")]


def _delete(workspace: Workspace, found: Found) -> bool:
    """Move a checkpoint's files aside, look at them again and delete them; False when they were no more the same."""
    before = fingerprint_of(found.members or {})
    container = _container(found)
    mark = secrets.token_hex(4)
    hidden = container / (ASIDE + mark)
    if not container.is_dir():
        return False
    workspace.store.with_reserve(lambda: _make(hidden))
    try:
        with _held(hidden):
            if not (_move(found, container, hidden) and fingerprint_of(_members_in(hidden, found)) == before):
                _put_back(hidden)
                return False
            _remove(hidden.rename(container / (SURE + mark)))
    except OSError:  # not ours to change, or somebody finished it before it was begun
        return False
    return True


def _container(found: Found) -> Path:
    """The folder that a checkpoint lies in, alone or among others."""
    return Path(folder_of(found.path) if found.shape == FOLDER else found.base)


def _remove_emptied(folder: Path, above: Path) -> None:
    """Remove a folder in which nothing is left, and those above it, but no job's own `checkpoints` and `load`."""
    with suppress(OSError):
        while folder.parent != above and above in folder.parents:
            folder.rmdir()
            folder = folder.parent


def _make(hidden: Path) -> None:
    with mapped_os_errors(f"making {hidden}"):
        hidden.mkdir()


@contextmanager
def _held(hidden: Path) -> Iterator[None]:
    """Holds a hidden folder for this process alone; BlockingIOError when another one has it."""
    fd = os.open(hidden, FOLDER_FLAGS)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _move(found: Found, container: Path, hidden: Path) -> bool:
    """Move what the checkpoint consists of; False when some of it was not there any more."""
    folder = found.shape == FOLDER
    tops = {os.path.basename(found.path)} if folder else {rel.partition("/")[0] for rel in found.members or {}}
    try:
        for name in sorted(tops):
            os.rename(container / name, hidden / name)
    except OSError:
        return False
    return True


def _members_in(hidden: Path, found: Found) -> dict[str, Member]:
    """What was moved aside, by the same paths as before."""
    if found.shape == FOLDER:
        return look_inside(str(hidden / os.path.basename(found.path)))[0]
    at = {rel: member_at(str(hidden / rel)) for rel in found.members or {}}
    return {rel: member for rel, member in at.items() if member is not None}


def _put_back(hidden: Path) -> None:
    """Give what lies in a hidden folder its place again, where that is free."""
    with suppress(OSError):
        for name in sorted(os.listdir(hidden)):
            if not os.path.lexists(hidden.parent / name):
                os.rename(hidden / name, hidden.parent / name)
        hidden.rmdir()


def _remove(hidden: Path) -> None:
    """Delete a hidden folder and all in it."""
    fd = os.open(hidden.parent, FOLDER_FLAGS)
    try:
        remove_tree(fd, os.fsencode(hidden.name))
    finally:
        os.close(fd)
