"""What deleting plain files frees on the disk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator

BLOCK_BYTES = 512
"""Of `st_blocks`."""


def freed_bytes(paths: Iterable[str]) -> int:
    """What the disk gets back when all these files are deleted; one that has another name elsewhere frees nothing."""
    names: Counter[tuple[int, int]] = Counter()
    total = 0
    for path in paths:
        try:
            found = os.lstat(path)
        except OSError:
            continue
        inode = (found.st_dev, found.st_ino)
        names[inode] += 1
        total += found.st_blocks * BLOCK_BYTES if names[inode] == found.st_nlink else 0
    return total


def files_below(folder: str) -> Iterator[str]:
    """The path of every file below a folder, without following links."""
    for path, _, files in os.walk(folder):
        yield from (f"{path}/{name}" for name in files)
