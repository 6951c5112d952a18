#!/usr/bin/env python3
"""A mount that does nothing: noop_mount.py MOUNTPOINT SIZE shows one file of zeros, `zeros`, until SIGTERM.

It has the product's adapter and settings and no engine behind them, so its speed is what FUSE and Python cost.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpu_train_cas import EntryKind
from gpu_train_fuse.adapter import serve
from gpu_train_fuse.node import Attributes, Directory, File, Handle, Node
from gpu_train_fuse.tree import Folder, Totals


class Zeros(File):
    identity = b"zeros"

    def __init__(self, size: int) -> None:
        self.size = size

    def attributes(self) -> Attributes:
        return Attributes(EntryKind.FILE, 0o444, self.size, 0)

    def open(self) -> Handle:
        return self

    def readinto(self, buffer: memoryview, offset: int, /) -> int:
        return max(0, min(len(buffer), self.size - offset))

    def close(self) -> None:
        pass


class NoopTree:
    """The three questions that the adapter asks of a `FileTree`."""

    def __init__(self, size: int) -> None:
        self.root: Directory = Folder(0, {b"zeros": (EntryKind.FILE, lambda: Zeros(size))})

    def lookup(self, path: bytes) -> Node:
        found = self.root if path == b"/" else self.root.find(path[1:])
        assert found is not None
        return found

    def attributes(self, path: bytes) -> Attributes:
        return self.lookup(path).attributes()

    def changes(self) -> Iterator[bytes]:
        return iter(())

    def totals(self) -> Totals:
        return Totals(0, 1)


if __name__ == "__main__":
    serve(
        NoopTree(int(sys.argv[2])), Path(sys.argv[1]), name="noop", facts={},
        on_ready=lambda: print("ready", flush=True),
    )  # fmt: skip
