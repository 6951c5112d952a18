"""Pins: hard links that keep a checkpoint's bytes when the trainer deletes or replaces its names.

A link costs no bytes and works on files that are still being written: it follows the file, not the name. It does
not protect against writing over the same file in place; whoever reads a pin checks that it did not change.
Light on purpose: a training script's `commit` links here too.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

FREED = "freed-"
"""What the name of a pin begins with while it is being removed."""


def link_file(source: str | Path, target: str | Path) -> bool:
    """Link `source` as `target`, making the folders above it; whether it worked.

    It does not where the filesystem has no links, between filesystems, for another user's files on a
    protected system, and when the source has just been deleted.
    """
    for _ in range(2):
        try:
            os.link(source, target, follow_symlinks=False)
            return True
        except FileNotFoundError:
            folder = Path(target).parent
            if folder.is_dir():
                return False
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                return False
        except OSError:
            return False
    return False


def link_tree(source: Path, target: Path) -> bool:
    """Link a file, or all files of a folder, under `target`; whether all of it is there.

    Folders are made anew with the mode and times of the original, symbolic links are copied. When
    something cannot be linked everything is taken back.
    """
    try:
        if not source.is_dir() or source.is_symlink():
            done = link_file(source, target)
        else:
            done = _link_folder(source, target)
    except OSError:
        done = False
    if not done:
        discard(target)
    return done


def _link_folder(source: Path, target: Path) -> bool:
    target.mkdir(parents=True, exist_ok=True)
    with os.scandir(source) as entries:
        for entry in entries:
            into = target / entry.name
            if entry.is_symlink():
                into.symlink_to(os.readlink(entry.path))
            elif entry.is_dir():
                if not _link_folder(Path(entry.path), into):
                    return False
            elif entry.is_file() and not link_file(entry.path, into):
                return False
    like(os.stat(source), target)
    return True


def like(model: os.stat_result, folder: Path) -> None:
    """Give a folder the mode and times of another, but keep it usable for ourselves."""
    folder.chmod(stat.S_IMODE(model.st_mode) | stat.S_IRWXU)
    os.utime(folder, ns=(model.st_atime_ns, model.st_mtime_ns))


def free(pin: Path) -> None:
    """Remove a pin in one step, so that a crash in the middle leaves no part of it that could be taken for a whole."""
    freed = pin.with_name(FREED + pin.name)
    if freed.exists():
        shutil.rmtree(freed, ignore_errors=True)
    with suppress(FileNotFoundError):
        pin.rename(freed)
        shutil.rmtree(freed, ignore_errors=True)


def discard(path: Path) -> None:
    """Remove a pin, a file or a folder; not being there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    try:
        path.unlink()
    except OSError:
        return
