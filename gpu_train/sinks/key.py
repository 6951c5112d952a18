"""The keys of what lies in a sink (cas/spec/remote.md)."""

from __future__ import annotations

import re

from gpu_train_cas.digest import Digest
from gpu_train_cas.pack import SUFFIX

STORE = "store"
FORMAT = f"{STORE}/format.json"

_BAD = re.compile(rb"[%\x00-\x1f\x7f]")


def escaped(name: bytes) -> str:
    """One part of a path as a part of a key: `%XX` for what keys cannot hold."""
    if name in (b".", b".."):
        return "%2E" * len(name)
    text = _BAD.sub(lambda found: b"%%%02X" % found[0][0], name).decode(errors="surrogateescape")
    return "".join(f"%{ord(char) - 0xDC00:02X}" if "\udc80" <= char <= "\udcff" else char for char in text)


def escaped_path(path: bytes) -> str:
    """A path as a key."""
    return "/".join(map(escaped, path.split(b"/")))


def checkpoint_prefix(job_id: str, name: str) -> str:
    """What the keys of a checkpoint's plain files begin with."""
    return f"{job_id}/checkpoints/{escaped_path(name.encode(errors='surrogateescape'))}/"


def log_key(job_id: str, name: str) -> str:
    """The key of a job's log."""
    return f"{job_id}/logs/{name}"


def home_key(k: int) -> str:
    """The key of the k-th home's entry."""
    return f"{STORE}/homes/{k:08}.json"


def entry_key(home: str, n: int) -> str:
    """The key of a home's n-th entry in its journal."""
    return f"{STORE}/journal/{home}/{n:08}.json"


def pack_key(name: Digest) -> str:
    """The key of a pack."""
    text = name.hex()
    return f"{STORE}/packs/{text[:2]}/{text}{SUFFIX}"
