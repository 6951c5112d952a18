"""The sentry: sees names come and go in the checkpoint folder and keeps the files' bytes at once.

A file may live for a millisecond, so nothing here waits: each name that appears is linked aside straight from its
event, before anything is asked about it, and all judgement is left to the agent, which is told in the same order. A
process of its own, since the agent's other threads would hold it up.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_train.capture.answer import COMMITS
from gpu_train.capture.watch import inotify, sighting
from gpu_train.capture.watch.catcher import Catcher
from gpu_train.capture.watch.folders import File, Folder, Folders
from gpu_train.capture.watch.hold import HIDDEN, Holder
from gpu_train.capture.watch.inotify import Event
from gpu_train.capture.watch.keeper import Keeper
from gpu_train.capture.watch.outbox import Outbox

LIMBO_S = 1.0
"""How long what was moved away is waited for under another name."""

SUSPECT_S = 1.0
"""A removal so soon after a folder's last change, which nobody saw, may be one of many that began with that change."""

_CAME = inotify.CREATE | inotify.MOVED_TO
_WENT = inotify.DELETE | inotify.MOVED_FROM
_HIDDEN = os.fsencode(HIDDEN)
_GONE = "it was deleted before it could be looked into"
_TAKEN = "something in it may have been deleted before it could be kept"


class Sentry:
    """Watches one job's checkpoint folder; used by one thread, which calls it when there are events or copies.

    Everything is told through `outbox`, in the order in which it was done.
    """

    def __init__(self, root: Path, pins: Path, control: Path, job_id: str, outbox: Outbox) -> None:
        self.keeper = Keeper()
        self.holder = Holder(pins, job_id, lambda path: outbox.say(sighting.PLACE, hold=path))
        self._root = root
        self._control = control
        self._outbox = outbox
        self._catcher = Catcher(self.holder, self.keeper, outbox, self._path)
        self._limbo: dict[int, tuple[float, File | Folder]] = {}
        self._ends: dict[tuple[int, bytes], int] = {}
        self._is_blind_told = False
        self._folders = Folders(root, control)
        self._tell_all()

    @property
    def queue(self) -> int | None:
        """The descriptor that has events to read, another one after each `begin_anew`; None when there is none."""
        return None if self._folders.inotify is None else self._folders.inotify.fileno()

    @property
    def is_blind(self) -> bool:
        """Whether not everything is watched."""
        return bool(self._folders.blind)

    @property
    def is_expecting(self) -> bool:
        """Whether something was moved away and may yet appear elsewhere."""
        return bool(self._limbo)

    def begin_anew(self) -> None:
        """Set all watches again, and tell all that is there."""
        self._folders.close()
        self._limbo.clear()
        self._catcher.begin_watch()
        self._folders = Folders(self._root, self._control)
        self._tell_all()

    def take_events(self) -> None:
        """Deal with all events that wait."""
        queue = self._folders.inotify
        self._outbox.now = time.monotonic()
        self._catcher.begin_round()
        while queue is not None and (events := queue.read()):
            self._outbox.now = time.monotonic()
            self._ends = _ends_of(events)
            for at, event in enumerate(events):
                if event.mask & inotify.OVERFLOW:
                    why = "the kernel dropped file events, so checkpoints may have been missed; all is looked at anew"
                    self._outbox.say(sighting.NOTICE, why=why)
                    self.begin_anew()
                    return
                self._take(event, at)
        self._tell_blind()
        self._forget()

    def take_copies(self) -> None:
        """Tell of the copies that are through."""
        for copy in self.keeper.done():
            self.take_events()  # a closing that the copy did not see would be among them
            self._catcher.take_copy(copy)

    def close(self) -> None:
        """Watch no more. What was held by links stays held."""
        self._folders.close()
        self.holder.close()
        self.keeper.close()

    def _tell_all(self) -> None:
        self._outbox.say(sighting.BEGIN)
        self._is_blind_told = False
        self._enter(self._folders.above, os.fsencode(self._root.name))
        self._tell_blind()
        self._outbox.say(sighting.END)

    def _tell_blind(self) -> None:
        """Tell once that not everything is watched, as soon as that is so."""
        if self._folders.blind and not self._is_blind_told:
            self._is_blind_told = True
            self._outbox.say(sighting.BLIND, why=self._folders.blind)

    def _take(self, event: Event, at: int) -> None:
        """Deal with an event; `at` is its place among those that were read with it."""
        name, mask = event.name, event.mask
        if event.watch == self._folders.control:
            if name == os.fsencode(COMMITS):
                self._outbox.say(sighting.POKE)
            return
        folder = self._folders.get(event.watch)
        if folder is None:
            return
        is_above = folder is self._folders.above
        if mask & inotify.IGNORED:
            self._folders.drop(folder)
        elif not name or name.startswith(_HIDDEN) or (is_above and name != os.fsencode(self._root.name)):
            return
        elif mask & _CAME and (mask & inotify.IS_FOLDER or is_above):
            self._folder_came(folder, name, event.cookie, is_over=at < self._ends.get((event.watch, name), 0))
        elif mask & _CAME:
            self._file_came(folder, name, event.cookie)
        elif mask & inotify.CLOSE_WRITE:
            folder.suspect_until = 0.0
            self._catcher.closed(folder, name)
        elif mask & _WENT:
            self._went(folder, name, event.cookie)

    # Coming

    def _file_came(self, folder: Folder, name: bytes, cookie: int) -> None:
        folder.suspect_until = 0.0
        if cookie:
            _, moved = self._limbo.pop(cookie, (0.0, None))
            self._catcher.moved_in(folder, name, moved if isinstance(moved, File) else None, cookie)
        else:
            self._catcher.appeared(folder, name)

    def _folder_came(self, parent: Folder, name: bytes, cookie: int, *, is_over: bool) -> None:
        """A folder has this name, or had: `is_over` when it has left it since, so that what is there now is another."""
        parent.suspect_until = 0.0
        _, known = self._limbo.pop(cookie, (0.0, None)) if cookie else (0.0, None)
        if isinstance(known, Folder) and self._folders.get(known.number) is known:
            self._folders.move(known, parent, name)
            self._tell_folder(known, cookie=cookie)
        elif is_over:
            parent.files[name] = File(None)
            self._outbox.tell(sighting.FOLDER, parent, name, cookie=cookie, why=_GONE, gone=True)
        else:
            self._enter(parent, name, cookie=cookie)

    def _enter(self, parent: Folder, name: bytes, *, cookie: int = 0, moved_ns: int = 0) -> None:
        """Watch a folder, and keep what is in it already: what was made before the watch gave no event.

        `moved_ns` is when a folder above it was moved to where it is, if it was.
        """
        is_root = parent is self._folders.above
        try:
            folder, is_new = self._folders.enter(parent, name, follow=is_root)
        except OSError as e:
            parent.files[name] = File(None)
            if e.errno in (errno.ENOTDIR, errno.ELOOP):
                self._outbox.tell(sighting.OTHER, parent, name, cookie=cookie)
            elif not is_root or e.errno != errno.ENOENT:
                is_gone = e.errno == errno.ENOENT
                why = _GONE if is_gone else str(e)
                self._outbox.tell(sighting.FOLDER, parent, name, cookie=cookie, why=why, gone=is_gone)
            return
        self._tell_folder(folder, cookie=cookie)
        if is_new:
            self.holder.open_place(folder.mount, self._folders.top_of(folder).fd)
            self._look_into(folder, moved_ns)

    def _look_into(self, folder: Folder, moved_ns: int) -> None:
        """Keep all that is in a folder."""
        try:
            own = os.fstat(folder.fd)
        except OSError:  # on some FUSE one that is gone cannot be asked any more
            return
        if own.st_mtime_ns < own.st_ctime_ns:  # the last that happened to it was no change of its names: a move
            moved_ns = max(moved_ns, own.st_ctime_ns)
        below = []
        for entry in _entries(folder.fd):
            name = os.fsencode(entry.name)
            if name.startswith(_HIDDEN):
                continue
            if _is_folder(entry):
                below.append(name)
            else:
                self._catcher.lies_there(folder, name)
        for name in below:
            self._enter(folder, name, moved_ns=moved_ns)
        if own.st_mtime_ns >= moved_ns:
            folder.suspect_until = self._outbox.now + SUSPECT_S - (time.time_ns() - own.st_mtime_ns) / 1e9

    # Going

    def _went(self, folder: Folder, name: bytes, cookie: int) -> None:
        below = self._folders.get(folder.folders.get(name, -1))
        if not cookie:
            for suspect in (folder, below):
                # Nothing was written in it since it was first looked into, so that may have been amid its removal;
                # or this went between the beginning of the watch and that look.
                is_missed = suspect is folder and below is None and name not in folder.files
                if suspect is not None and (is_missed or self._outbox.now < suspect.suspect_until):
                    self._doubt(suspect)
        file = self._catcher.disappeared(folder, name)
        if cookie:
            if below is not None:
                self._folders.take_out(below)
            what = below or file
            if what is not None:
                self._limbo[cookie] = self._outbox.now, what
        elif below is not None:
            self._folders.drop(below)
        self._outbox.tell(sighting.MOVED if cookie else sighting.DELETED, folder, name, cookie=cookie)

    def _doubt(self, folder: Folder) -> None:
        """Something in a folder may never have been seen. The root is no checkpoint."""
        folder.suspect_until = 0.0
        parent = self._folders.get(folder.parent)
        if parent is not None and parent is not self._folders.above:
            self._tell_folder(folder, why=_TAKEN)

    def _forget(self) -> None:
        """Give up what was moved away and has not come back."""
        for cookie, (since, what) in list(self._limbo.items()):
            if self._outbox.now - since > LIMBO_S:
                del self._limbo[cookie]
                if isinstance(what, Folder) and self._folders.get(what.number) is what:
                    self._folders.drop(what)

    def _path(self, folder: Folder, name: bytes) -> bytes:
        """The path of a name below the root."""
        above = self._folders.path_of(folder)
        return above + b"/" + name if above else name

    def _tell_folder(self, folder: Folder, *, cookie: int = 0, why: str = "") -> None:
        parent = self._folders.get(folder.parent)
        if parent is not None:
            self._outbox.tell(
                sighting.FOLDER, parent, folder.name, child=folder.number, inode=folder.inode, cookie=cookie, why=why
            )  # fmt: skip


def _ends_of(events: Sequence[Event]) -> dict[tuple[int, bytes], int]:
    """Where among some events a name of a folder goes last; equal names of folders in a row are different ones."""
    return {(e.watch, e.name): at for at, e in enumerate(events) if e.mask & _WENT and e.mask & inotify.IS_FOLDER}


def _entries(folder: int) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # it is being deleted, or is not ours to read
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # its file system does not list what it is, and does not say it any more
        return False
