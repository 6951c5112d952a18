"""What the engine's tests share: a store, a way to put folders in, and what a folder looks like from outside."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_train_cas import Record, Store
from gpu_train_cas.digest import Digest

Seen = dict[bytes, tuple[object, ...]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "home") as store:
        yield store


@pytest.fixture
def commit() -> Callable[..., Digest]:
    """Read a folder or file in and commit a record of it."""

    def commit(store: Store, path: Path, name: str = "c") -> Digest:
        with store.writer("test") as writer:
            added = writer.add_tree(path) if path.is_dir() else writer.add_file(path)
            with writer.commit() as txn:
                return txn.put_record(Record("checkpoint", "job", name, time.time_ns(), added.root))

    return commit


@pytest.fixture
def seen() -> Callable[..., Seen]:
    """All that can be told apart about a folder: names, kinds, modes, times, bytes, targets."""

    def facts(path: bytes) -> tuple[object, ...]:
        found = os.lstat(path)
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISLNK(found.st_mode):
            return "link", found.st_mtime_ns, os.readlink(path)
        if stat.S_ISDIR(found.st_mode):
            return "folder", mode, found.st_mtime_ns
        with open(path, "rb") as f:
            return "file", mode, found.st_mtime_ns, f.read()

    def seen(path: Path) -> Seen:
        top = os.fsencode(path)
        paths = [top]
        for folder, folders, files in os.walk(top):
            paths += [os.path.join(folder, name) for name in folders + files]
        return {os.path.relpath(p, top): facts(p) for p in paths}

    return seen
