"""What the library's tests share: an open workspace, and a way to see which files are opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from gpu_train.workspace import Workspace

WatchOpens = Callable[[], AbstractContextManager[list[str]]]
_opened: list[str] | None = None


def _note_open(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_note_open)  # for good, as an audit hook cannot be taken off again


@contextmanager
def _watch_opens() -> Iterator[list[str]]:
    global _opened
    _opened = found = []
    try:
        yield found
    finally:
        _opened = None


@pytest.fixture
def watch_opens() -> WatchOpens:
    """A context that lists the names, as they were given, of all files that this process opens in it."""
    return _watch_opens


@pytest.fixture
def workspace(home: Path, tmp_path: Path) -> Iterator[Workspace]:
    """The test's own home, open."""
    with Workspace.open(home, cwd=tmp_path) as opened:
        yield opened
