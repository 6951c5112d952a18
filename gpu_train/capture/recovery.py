"""What an earlier agent left in a pin, and what a dead sentry held, made candidates again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from gpu_train.capture.candidate import ABOUT, FILES, Candidate, Holds
from gpu_train.capture.commit import Commit
from gpu_train.capture.finder import FILE, FOLDER, LOOSE, Found, Member, look_inside
from gpu_train.capture.watch.view import View
from gpu_train.capture.watched import Watched

NAMELESS = "recovered-{}"


def recover(pin: Path, root: Path, now: float, holds: Holds) -> Candidate | None:
    """The candidate that an earlier agent left in a pin; None when there is nothing in it.

    `root` is the checkpoint folder, which may have been moved since. After a crash of the machine the links may be
    there without a word on what they are; then the candidate is named after its pin.
    """
    members, _ = look_inside(str(pin / FILES))
    try:
        about = json.loads((pin / ABOUT).read_bytes())
        name, shape = str(about["name"]), str(about["shape"])
        commit = Commit(**about["commit"]) if about["commit"] else None
        path = commit.path if commit else str(root / name if shape != LOOSE else (root / name).parent)
        found = Found(name, path, shape, {}, tuple(about["inode"]))
        candidate = Candidate(found, pin, now, int(about["first_seen_ns"]), holds)
        candidate.commit = commit
    except (OSError, ValueError, KeyError, TypeError):
        name = NAMELESS.format(pin.name)
        found = Found(name, str(root / name), FOLDER, {}, (0, 0))
        candidate = Candidate(found, pin, now, time.time_ns(), holds)
        members = {rel: m for rel, m in members.items() if _is_last_link(pin / FILES / rel)}
        candidate.missed["a note of what it is"] = 0  # nor is there one of what belongs to it
    candidate.members = members
    candidate.pinned = dict(members)
    return candidate if candidate.files else None


def take_over(rel: str, hold: Path, watched: Watched, view: View, now: float) -> None:
    """Take over a file that a dead sentry held and no agent had pinned; `rel` is where it lay below the root.

    It goes to the candidate of which it is a part, or is an earlier content of what lies there, or gets its name back.
    """
    for candidate in watched.left:
        below = rel.removeprefix(f"{candidate.name}/")
        if below != rel and below not in candidate.members:
            candidate.members[below] = Member.of(hold.stat(follow_symlinks=False))
            candidate.give(below, hold)
            view.drop(str(hold))
            return
    path = f"{view.root}/{rel}"
    if view.exists(path):
        watched.watch_copy(Found(rel, path, FILE, {}, (0, 0)), Member.of(hold.stat(follow_symlinks=False)), hold, now)
        view.drop(str(hold))
    else:
        view.revive(rel, str(hold))


def _is_last_link(path: Path) -> bool:
    """Whether a pin is all that holds a file: the others are found where they are."""
    return os.lstat(path).st_nlink == 1
