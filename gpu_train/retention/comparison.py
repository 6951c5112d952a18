"""Whether plain files are, byte for byte, what the store holds of a checkpoint."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from gpu_train.capture.finder import FOLDER, Found, Member, fingerprint_of
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.workspace import Workspace
from gpu_train_cas import Entry, EntryKind
from gpu_train_cas.digest import Digest, FileHasher
from gpu_train_cas.errors import UNREADABLE

RACY_NS = 2 * 10**9
"""A file changed so shortly before it was stored could have been written again without another time: it is hashed."""

READ_BYTES = 1 << 20


def differences(workspace: Workspace, found: Found, row: Checkpoint, *, deep: bool) -> Iterator[str]:
    """Why the files are not, or not surely, what is stored; nothing when they are.

    What has the inodes, sizes and times that it was stored with is believed to be the same. The rest is hashed if
    `deep`, and else counts as different.
    """
    members = found.members or {}
    newest_ns = max((m.mtime_ns for m in members.values() if m.is_file), default=0)
    assert row.record is not None
    try:
        damage = workspace.store.known_damage(row.record)
        if damage is not None:
            yield f"what is stored is damaged: {damage.reason}; `gpu-train verify` tells more"
            return
        unseen = next(_unseen(found), None)
        if unseen is not None:
            yield f"{unseen} is not stored"
            return
        same = fingerprint_of(members) == row.fingerprint
        if not (same or deep):
            yield "its files are not those that were stored"
        elif not same or row.committed_ns - newest_ns < RACY_NS:
            yield from unlike_stored(workspace, found, row.record)
    except UNREADABLE as e:
        yield f"what is stored cannot be read: {e}"
    except OSError as e:
        yield f"it changes just now: {e}"


def unlike_stored(workspace: Workspace, found: Found, record: Digest) -> Iterator[str]:
    """The first thing about the files that is not what the record holds; sizes are compared before anything is read."""
    reader, members = workspace.store.reader, dict(found.members or {})
    stored = {os.fsdecode(path): entry for path, entry in reader.walk(workspace.store.record(record).root)}
    if found.shape != FOLDER:  # folders around loose files are not among them
        stored = {rel: entry for rel, entry in stored.items() if entry.kind is not EntryKind.DIRECTORY}
    for rel in sorted({rel for rel, m in members.items() if not m.is_folder} - stored.keys()):
        yield f"{rel} is not stored"
        return
    for compare in (_looks_like, _holds):
        for rel, entry in stored.items():
            if not compare(f"{found.base}/{rel}", members.get(rel), entry):
                yield f"{rel} is not what is stored"
                return


def _unseen(found: Found) -> Iterator[str]:
    """Files with content below a checkpoint's folders that capture does not count as its own."""
    members = found.members or {}
    tops = [""] if found.shape == FOLDER else [rel for rel, m in members.items() if m.is_folder and "/" not in rel]
    for top in tops:
        for folder, folders, files in os.walk(f"{found.base}/{top}" if top else found.base):
            for name in (*files, *folders):
                path = f"{folder}/{name}"
                rel = path[len(found.base) + 1 :]
                if rel not in members and (name in folders or os.lstat(path).st_size):
                    yield rel


def _looks_like(path: str, member: Member | None, entry: Entry) -> bool:
    """Whether what lies at a path can be a stored entry, by what `stat` says."""
    if member is None or _kind_of(member) is not entry.kind:
        return False
    return entry.kind is EntryKind.DIRECTORY or member.size_bytes == entry.size_bytes


def _holds(path: str, member: Member | None, entry: Entry) -> bool:
    """Whether what lies at a path has the content of a stored entry."""
    if entry.kind is EntryKind.SYMLINK:
        return os.fsencode(os.readlink(path)) == entry.target
    return entry.kind is EntryKind.DIRECTORY or _digest_of(path) == entry.digest


def _digest_of(path: str) -> Digest | None:
    """The plain BLAKE3 of a file; None when it cannot be read."""
    hasher = FileHasher()
    try:
        with open(path, "rb") as file:
            while data := file.read(READ_BYTES):
                hasher.update(data)
    except OSError:
        return None
    return hasher.digest()


def _kind_of(member: Member) -> EntryKind:
    if member.is_folder:
        return EntryKind.DIRECTORY
    return EntryKind.SYMLINK if stat.S_ISLNK(member.mode) else EntryKind.FILE
