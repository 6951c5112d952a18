"""Where the bytes of a checkpoint are now, and since when: the trainer's folder, a pin, the store, the sinks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_train.capture.candidate import ABOUT, FILES
from gpu_train.capture.finder import GROUP, LOOSE, find_loose, find_one, fingerprint_of, look_inside
from gpu_train.capture.pins import places_of
from gpu_train.tables.checkpoint import VERIFIED, Checkpoint
from gpu_train.workspace import Workspace

BOX = "box"
PINNED = "pinned"
LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Place:
    """One place that holds a checkpoint.

    Attributes:
        name: "box" (the trainer's plain files on this machine), "pinned" (links that keep them), "local" (the store, as
            far as they were there), "verified" (the store, whole: read back and compared before it was committed), or
            a sink's address.
        since_ns: since when all that it holds has been there.
        path: where, for files.
    """

    name: str
    since_ns: int
    path: Path | None = None


def plain_path(checkpoint: Checkpoint) -> Path | None:
    """Where the trainer still has a checkpoint just as it was stored, a folder or a file; None where it has not."""
    has_no_name = checkpoint.shape in (LOOSE, GROUP)
    if not checkpoint.source or not (has_no_name or os.path.lexists(checkpoint.source)):
        return None
    if has_no_name:
        there = list(find_loose(checkpoint.source))
    else:
        one = find_one(checkpoint.source)
        there = [one] if one else []
    is_same = any(fingerprint_of(found.members or {}) == checkpoint.fingerprint for found in there)
    return Path(checkpoint.source) if is_same else None


def whereabouts(workspace: Workspace, checkpoint: Checkpoint) -> list[Place]:
    """The places that hold a checkpoint now; none for one that is gone."""
    found = []
    plain = plain_path(checkpoint)
    if plain is not None:
        found.append(Place(BOX, checkpoint.created_ns, plain))
    found += _pins(workspace, checkpoint)
    if checkpoint.record is not None:
        found.append(Place(LOCAL, checkpoint.committed_ns, workspace.home.packs))
        if checkpoint.state == VERIFIED:
            found.append(Place(VERIFIED, checkpoint.committed_ns, workspace.home.packs))
    return found + [Place(address, since_ns) for address, since_ns in sorted(checkpoint.pushed.items())]


def _pins(workspace: Workspace, checkpoint: Checkpoint) -> Iterator[Place]:
    for folder in places_of(workspace.home, checkpoint.job_id):
        try:
            pins = [folder / name for name in sorted(os.listdir(folder))]
        except OSError:
            continue
        for pin in pins:
            about = _about(pin)
            if about.get("name") != checkpoint.base_name:
                continue
            members, _ = look_inside(str(pin / FILES))
            if fingerprint_of(members) == checkpoint.fingerprint:
                yield Place(PINNED, int(about["first_seen_ns"]), pin)


def _about(pin: Path) -> dict[str, Any]:
    try:
        about = json.loads((pin / ABOUT).read_bytes())
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) and isinstance(about.get("first_seen_ns"), int) else {}
