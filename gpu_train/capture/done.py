"""What has been handed over: files that were stored, or are about to be, are not taken again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpu_train.capture.candidate import Candidate, Key
from gpu_train.capture.finder import FILE, FOLDER, Found, Member

FORGET_S = 30.0


@dataclass(slots=True)
class _Done:
    """What was last handed over under a name."""

    shape: str
    members: dict[str, Member]
    inode: tuple[int, int]
    stamp: int
    seen: float


class Done:
    """The checkpoints of one job that are not watched any more, as long as they lie there. Used by one thread."""

    def __init__(self) -> None:
        self._done: dict[Key, _Done] = {}
        self._files: dict[Member, str] = {}
        self._turn = 0

    def add(self, candidate: Candidate, now: float) -> None:
        """A candidate is handed over as it is."""
        found = candidate.found
        if candidate.absent_since is None:
            self._done[candidate.key] = _Done(found.shape, dict(candidate.members), found.inode, found.stamp, now)
        if found.shape == FILE:
            for member in candidate.members.values():
                self._files[member] = found.path

    def take_back(self, candidate: Candidate) -> None:
        """What was handed over turned out to have changed: whatever lies there now is new."""
        done = self._done.get(candidate.key)
        if done is not None and done.members == candidate.members:
            del self._done[candidate.key]
        for member in candidate.files:
            self._files.pop(member, None)

    def members_of(self, key: Key) -> Mapping[str, Member]:
        """What was last handed over under a name."""
        return self._done[key].members if key in self._done else {}

    def is_known(self, key: Key) -> bool:
        """Whether something was handed over under a name."""
        return key in self._done

    def is_file(self, path: str) -> bool:
        """Whether what was last handed over with that path was a file by itself."""
        done = self._done.get((False, path))
        return done is not None and done.shape == FILE

    def holds(self, key: Key, found: Found, now: float) -> bool:
        """Whether all that lies there was handed over already, under this name or before a rename."""
        # Folders that `commit` pinned are not the trainer's own, and have other numbers.
        members = {rel: m for rel, m in (found.members or {}).items() if not m.is_folder}
        done = self._done.get(key)
        if done is not None and members.items() <= done.members.items():
            done.seen, done.stamp = now, found.stamp
            return True
        if found.shape == FILE:
            member = next(iter(members.values()))
            earlier = self._files.get(member)
            return earlier is not None and earlier != found.path  # renamed, or a second link: an alias
        for other, earlier_done in self._done.items():
            moved = found.shape == FOLDER and earlier_done.inode == found.inode and other != key
            if moved and members and members.items() <= earlier_done.members.items():
                self._done[key] = _Done(FOLDER, members, found.inode, found.stamp, now)
                return True
        return False

    def unchanged(self) -> dict[str, tuple[int, int, int]]:
        """Folders that need no look inside (`finder.Known`); by turns one of them gets it all the same."""
        known = {
            path: (*done.inode, done.stamp) for (loose, path), done in self._done.items() if not loose and done.stamp
        }
        if known:
            self._turn = (self._turn + 1) % len(known)
            known.pop(list(known)[self._turn])
        return known

    def forget(self, present: Collection[Key], now: float) -> None:
        """Forget what has not been there for a while."""
        for key in [k for k, d in self._done.items() if k not in present and now - d.seen > FORGET_S]:
            for member in self._done.pop(key).members.values():
                self._files.pop(member, None)
        for key in present:
            if key in self._done:
                self._done[key].seen = now
