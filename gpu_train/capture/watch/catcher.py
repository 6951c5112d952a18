"""What the sentry does about files: keeps each one's bytes as it appears, and has copies made of those at risk.

When it comes late, what it finds under a name may be what came there next. Nothing is lost in silence by that: each
appearance and each closing is another content, so where two of them show the same one, the first is told as lost.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from gpu_train.capture.watch import sighting
from gpu_train.capture.watch.folders import File, Folder
from gpu_train.capture.watch.hold import Held, Holder, Unheld
from gpu_train.capture.watch.keeper import COPY_BYTES, Copy, Keeper, may_be_written_over
from gpu_train.capture.watch.outbox import Outbox
from gpu_train.capture.watch.sighting import Version, version_of
from gpu_train.capture.watch.snapshot import has_writers

_AT_ONCE = "the next version came at once"


class Catcher:
    """The files of one job's checkpoint folder. Used by the sentry's one thread."""

    def __init__(
        self, holder: Holder, keeper: Keeper, outbox: Outbox, path_of: Callable[[Folder, bytes], bytes]
    ) -> None:  # fmt: skip
        """`path_of` gives the path of a name below the root."""
        self._holder = holder
        self._keeper = keeper
        self._outbox = outbox
        self._path_of = path_of
        self._round = 0
        self._watch = 0
        self._lately: dict[tuple[int, bytes], File] = {}

    def begin_watch(self) -> None:
        """All is watched anew: what was closed meanwhile is not known, so no copy under way can be told to be exact."""
        self._watch += 1

    def begin_round(self) -> None:
        """Events are read now: whatever happened before they are dealt with may show at each of them."""
        self._round += 1
        self._lately.clear()

    def appeared(self, folder: Folder, name: bytes) -> None:
        """A file was made: keep it, still open or not."""
        file = self._catch(folder, name)
        before = self._lately.pop((folder.number, name), None)
        # One that was caught in an earlier round may have been given back since, and its number have come again.
        if file is not None and before is not None and before.caught == self._round and before.inode == file.inode:
            self._lost(folder, name, file)

    def moved_in(self, folder: Folder, name: bytes, moved: File | None, cookie: int) -> None:
        """A file got this name; `moved` is what is known of it from its earlier one."""
        before = folder.files.get(name)
        if moved is not None and moved.inode is not None:
            held = self._hold(folder, name)
            # Where nothing can be held, numbers need not stay with files either.
            is_there = held.found is not None and (not moved.hold or _number_of(held.found) == moved.inode)
            if not is_there:
                # It has been moved on or replaced since, but it was kept under its earlier name.
                folder.files[name] = moved
                self._outbox.tell(
                    sighting.FILE, folder, name, cookie=cookie, inode=moved.inode, hold=moved.hold
                )  # fmt: skip
                cookie = 0
            file = self._take(folder, name, held, cookie, moved)
            if file is not None:
                file.is_early = file is not moved
        else:
            file = self._catch(folder, name, cookie)
            if file is not None and file is before and not file.is_early:
                self._lost(folder, name, file)
            elif file is not None:
                file.is_early = False
        if file is not None and not file.hold:
            self.closed(folder, name)
        elif file is not None and file.is_open:
            self.found(folder, name, file)

    def lies_there(self, folder: Folder, name: bytes) -> None:
        """A file is found that gave no event: keep it. It may have been finished before, so that no closing comes."""
        file = self._catch(folder, name)
        if file is not None and file.is_open:
            self.found(folder, name, file)

    def found(self, folder: Folder, name: bytes, file: File) -> None:
        """A file that can only be kept open is there: have it copied, unless it is being written."""
        try:
            fd = os.open(file.hold, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # on some FUSE a file that is gone cannot be opened again
            return
        try:
            is_written = has_writers(fd)
        finally:
            os.close(fd)
        if is_written is not True:
            self.closed(folder, name)

    def closed(self, folder: Folder, name: bytes) -> None:
        """Somebody who could write to a file has closed it: if it may be written over, a copy is made."""
        file = folder.files.get(name)
        if file is None or file.inode is None:
            file = self._catch(folder, name)
        found = None if file is None else _stat_of(file, folder, name)
        if file is None or file.inode is None or found is None:
            return
        version = version_of(found)
        if file.version == version and file.round == self._round:
            self._lost(folder, name, file)
        file.closes += 1
        file.round = self._round
        file.is_rewritten = file.is_rewritten or file.version not in (None, version)
        file.version = version
        coming = self._ask_for_copy(folder, name, file, version)
        self._outbox.tell(sighting.CLOSED, folder, name, inode=file.inode, version=version, coming=coming)

    def disappeared(self, folder: Folder, name: bytes) -> File | None:
        """A file's name is gone; what was known of it."""
        file = folder.files.pop(name, None)
        if file is not None:
            self._lately[folder.number, name] = file
        return file

    def take_copy(self, copy: Copy) -> None:
        """Tell of a copy that is through; all closings up to now have been dealt with."""
        if not copy.why and (copy.file.closes, self._watch) != (copy.closes, copy.watch):
            copy.why = "it was being written to again"
        now = copy.version
        try:
            now = version_of(os.fstat(copy.source))
            if not copy.why:
                copy.confirm()
        except OSError as e:
            copy.why = os.strerror(e.errno or 0)
        os.close(copy.source)
        if copy.why:
            copy.drop()
            self._outbox.say(sighting.OVERWRITTEN, version=copy.version, why=copy.why)
        else:
            self._outbox.say(sighting.KEPT, version=copy.version, now=now, hold=copy.path)

    def _catch(self, folder: Folder, name: bytes, cookie: int = 0) -> File | None:
        return self._take(folder, name, self._hold(folder, name), cookie, folder.files.get(name))

    def _hold(self, folder: Folder, name: bytes) -> Held | Unheld:
        try:
            return self._holder.take(name, folder.fd, folder.mount, self._path_of(folder, name))
        except Unheld as e:
            return e

    def _take(
        self, folder: Folder, name: bytes, held: Held | Unheld, cookie: int, known: File | None
    ) -> File | None:  # fmt: skip
        """Note and tell what is held under a name, or why nothing is; `known` is what it may be."""
        if isinstance(held, Unheld):
            if held.found is not None:
                return self._note(folder, name, held.found, cookie, known, why=str(held))
            if cookie or known is None or not held.is_gone:
                folder.files[name] = File(None)
                self._outbox.tell(sighting.FILE, folder, name, cookie=cookie, why=str(held), gone=held.is_gone)
            return None
        if not stat.S_ISREG(held.found.st_mode):
            self._holder.let_go(held.path)
            folder.files[name] = File(None)
            self._outbox.tell(sighting.OTHER, folder, name, cookie=cookie)
            return None
        file = self._note(folder, name, held.found, cookie, known, hold=held.path)
        file.is_open = held.fd is not None
        return file

    def _note(
        self, folder: Folder, name: bytes, found: os.stat_result, cookie: int, known: File | None, *, hold: str = "",
        why: str = "",
    ) -> File:  # fmt: skip
        inode = _number_of(found)
        file = known if known is not None and known.inode == inode else File(inode, caught=self._round)
        file.hold, file.is_open = hold, False
        folder.files[name] = file
        self._outbox.tell(sighting.FILE, folder, name, cookie=cookie, inode=inode, hold=hold, why=why)
        return file

    def _lost(self, folder: Folder, name: bytes, file: File) -> None:
        """What was under a name before this, or in the file before it was closed again, has not been seen."""
        found = _stat_of(file, folder, name)
        assert file.inode is not None
        lost: Version = (*file.inode, 0 if found is None else found.st_size, -self._holder.number)
        self._outbox.tell(sighting.CLOSED, folder, name, inode=file.inode, version=lost, coming=True)
        self._outbox.say(sighting.OVERWRITTEN, version=lost, why=_AT_ONCE)

    def _ask_for_copy(self, folder: Folder, name: bytes, file: File, version: Version) -> bool:
        """Have a file copied, if it needs it; whether it does and can be."""
        place = self._holder.place_for(folder.mount)
        path = self._path_of(folder, name)
        if not (file.is_open or may_be_written_over(os.fsdecode(path), is_rewritten=file.is_rewritten)):
            return False
        if not (file.is_open or place.can_clone or version[2] <= COPY_BYTES):
            return False
        source = _open(file, folder, name)
        if source is None:
            return False
        self._keeper.put(Copy(source, version, place, self._holder.next_name(path), file, file.closes, self._watch))
        return True


def _number_of(found: os.stat_result) -> tuple[int, int]:
    """Device and inode."""
    return found.st_dev, found.st_ino


def _stat_of(file: File, folder: Folder, name: bytes) -> os.stat_result | None:
    """What a file is now: by its name, or when that has come to stand for another one, by what holds it."""
    for path, fd in ((name, folder.fd), (file.hold, None)):
        try:
            found = os.stat(path, dir_fd=fd, follow_symlinks=fd is None)
        except OSError:
            continue
        if _number_of(found) == file.inode:
            return found
    return None


def _open(file: File, folder: Folder, name: bytes) -> int | None:
    """Open a file by what holds it; or, when the agent needs that no more, by its name."""
    for path, fd in ((file.hold, None), (name, folder.fd)):
        try:
            opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        except OSError:
            continue
        found = os.fstat(opened)
        if _number_of(found) == file.inode:
            return opened
        os.close(opened)
    return None
