"""What the options before the command said, and the way from there to the workspace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

import gpu_train

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

        A home that cannot be written is opened for reading when `write` is not asked for.
        """
        try:
            workspace = gpu_train.Workspace.open(self.home)
        except gpu_train.errors.ReadOnly:
            if write:
                raise
            workspace = gpu_train.Workspace.open(self.home, create=False, read_only=True)
        with workspace:
            yield workspace


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)
