"""The thread that makes exact copies of files that may be written over, while the sentry goes on watching."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from gpu_train.capture.shape import is_loose, is_weights
from gpu_train.capture.watch.folders import File
from gpu_train.capture.watch.hold import DRAFT, Place
from gpu_train.capture.watch.sighting import Version
from gpu_train.capture.watch.snapshot import COARSE_S, Changed, is_still, take
from gpu_train.step import step_of

COPY_BYTES = 64 << 20
"""Larger files are not copied where they cannot be cloned: the training needs the disk more."""

_SHARD = re.compile(r"\d+-of-\d+")
_DIGIT = re.compile(r"\d")


def may_be_written_over(path: str, *, is_rewritten: bool) -> bool:
    """Whether a file needs a copy, since a link would follow what is written over it.

    One that was written over before does, and weights whose name has no number in it: `last.pt` rather than
    `step-500.ckpt`. Other files do not: a log that is closed after each line must not be copied each time.
    """
    name = path.rpartition("/")[2]
    if not (is_weights(name) or is_loose(name)):
        return False
    return is_rewritten or not (_DIGIT.search(_SHARD.sub("", name)) or step_of(path) is not None)


@dataclass(slots=True)
class Copy:
    """A copy that is wanted, and what became of it.

    Attributes:
        source: the file, open for reading; whoever takes the copy from `Keeper.done` closes it.
        version: what it was when it was closed.
        place, name: where the copy goes; until it is known to be exact its name says that it is a draft.
        file, closes: the file as the sentry knows it, and which of its closings this was.
        watch: how often the sentry had begun to watch; what happened before it did so again is not all known.
        why: why there is none; empty when there is.
    """

    source: int
    version: Version
    place: Place
    name: bytes
    file: File
    closes: int
    watch: int
    why: str = ""

    @property
    def path(self) -> str:
        """Where the copy is."""
        return f"{self.place.path}/{os.fsdecode(self.name)}"

    @property
    def draft(self) -> bytes:
        """Its name until it is known to be exact."""
        return DRAFT + self.name

    def confirm(self) -> None:
        """Give it its name: it is exact.

        Raises:
            OSError: when that cannot be done.
        """
        os.rename(self.draft, self.name, src_dir_fd=self.place.fd, dst_dir_fd=self.place.fd)

    def drop(self) -> None:
        """Remove the draft."""
        with suppress(OSError):
            os.unlink(self.draft, dir_fd=self.place.fd)


class Keeper:
    """Makes copies in the order in which they are asked for. `fileno` becomes readable when some are done."""

    def __init__(self) -> None:
        self.spare_bytes = 0
        """How much is left free on a disk that copies go to."""

        self._wanted: SimpleQueue[Copy | None] = SimpleQueue()
        self._done: deque[Copy] = deque()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="keep", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable once copies are done."""
        return self._read

    def put(self, copy: Copy) -> None:
        """Have a copy made."""
        self._wanted.put(copy)

    def done(self) -> list[Copy]:
        """The copies that are through, once each."""
        with suppress(BlockingIOError):
            os.read(self._read, 1 << 12)
        made = []
        while self._done:
            made.append(self._done.popleft())
        return made

    def close(self) -> None:
        """End the thread, after what it has been asked for."""
        self._wanted.put(None)
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _run(self) -> None:
        while (copy := self._wanted.get()) is not None:
            try:
                self._make(copy)
            except Changed:
                copy.why = "it was being written to again"
            except OSError as e:
                copy.why = os.strerror(e.errno or 0)
            self._done.append(copy)
            with suppress(BlockingIOError):
                os.write(self._write, b"!")

    def _make(self, copy: Copy) -> None:
        if not copy.place.can_clone:
            disk = os.fstatvfs(copy.place.fd)
            if disk.f_bavail * disk.f_frsize < copy.version[2] + self.spare_bytes:
                copy.why = "there is no room for a copy of it"
                return
        take(copy.source, copy.version[2], copy.place.fd, copy.draft)
        while (still := is_still(copy.source, copy.version)) is None:
            time.sleep(COARSE_S / 4)
        if not still:
            copy.drop()
            raise Changed
