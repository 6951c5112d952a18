"""What the options before the command said, and the way from there to the workspace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

import gpu_train
from gpu_train_cas.errors import ReadOnly

if TYPE_CHECKING:
    from gpu_train import Workspace


@dataclass(slots=True)
class Invocation:
    """One call of the program: where its home is and how much it says about errors."""

    home: Path | None = None
    debug: bool = False

    @contextmanager
    def workspace(self, *, write: bool = False) -> Iterator[Workspace]:
        """The open workspace. A home that is not there is made, so that a first `jobs` says "no jobs yet".

        A home that cannot be written is opened for reading, unless the command is going to `write`.
        """
        with self._open(write) as workspace:
            yield workspace

    @contextmanager
    def reading(self) -> Iterator[Workspace]:
        """The workspace for reading only, where there is a home: nothing is made and no writer is waited for.

        Raises:
            NotFound: when there is no home.
        """
        with gpu_train.Workspace.open(self.home, create=False, read_only=True) as workspace:
            yield workspace

    def _open(self, write: bool) -> Workspace:
        try:
            return gpu_train.Workspace.open(self.home)
        except ReadOnly:
            if write:
                raise
            return gpu_train.Workspace.open(self.home, read_only=True)


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)
