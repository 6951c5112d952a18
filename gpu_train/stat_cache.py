"""Digests of files that have not changed since they were read, by what `stat` says about them.

A file is taken as unchanged when its size, mtime, ctime, inode and mode are the ones noted when it was
read. Any write sets the ctime, which no program can set back; but a clock ticks only every few
milliseconds (every two seconds on some filesystems), so a file written just before it was read could be
written again within the same tick. Such a file is not trusted the next time and read once more, as
git does with its index ("racy git", https://git-scm.com/docs/racy-git).

A cache is one file. Saving replaces it in one step, so that concurrent savers cannot mix their
contents: the last one wins, and what is lost costs time only. A file that does not match its checksum is
an empty cache.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import msgpack
from blake3 import blake3

from gpu_train_cas.filesystem import replacing

RACY_NS = 2_000_000_000
"""How long before a reading a change makes it untrustworthy: the coarsest tick in use (FAT)."""

KEEP_S = 90 * 86_400
"""Caches that were not used for so long are removed, so that roots which are gone leave nothing for ever."""

_TOUCH_S = 86_400
_MAGIC = b"gpu-train stat cache 1\n"
_DIGEST_BYTES = 32


class Stat(Protocol):
    """What is needed of an `os.stat_result`."""

    @property
    def st_size(self) -> int:
        """Bytes."""

    @property
    def st_mtime_ns(self) -> int:
        """Last change of the content."""

    @property
    def st_ctime_ns(self) -> int:
        """Last change of content or inode."""

    @property
    def st_ino(self) -> int:
        """Inode."""

    @property
    def st_mode(self) -> int:
        """Kind and permissions."""


Signature = tuple[int, int, int, int, int]
"""What makes a file look unchanged: size, mtime and ctime in nanoseconds, inode, mode. A plain tuple, since
a walk makes one per file."""


def signature_of(stat: Stat) -> Signature:
    """The signature in a stat result."""
    return (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_mode)


def is_racy(signature: Signature, moment_ns: int) -> bool:
    """Whether a file read at that moment could change and still have this signature.

    A ctime after the moment means that the clock went back or belongs to a server: not trusted. An mtime far
    ahead is somebody's `touch` and proves nothing, as the ctime then tells.
    """
    _, mtime_ns, ctime_ns, _, _ = signature
    return ctime_ns >= moment_ns - RACY_NS or abs(mtime_ns - moment_ns) <= RACY_NS


class StatCache:
    """Notes of one root: by path, a signature and a value (a digest, or more).

    Not shared between threads or processes; each opens its own.

    Attributes:
        moment_ns: when this pass began; what changed less than RACY_NS before it is not saved.
        whole: a note about the root as a whole, kept beside the paths; None when there is none.
    """

    def __init__(self, file: Path, root: bytes, moment_ns: int) -> None:
        self.moment_ns = moment_ns
        self.whole: list[Any] | None = None
        self._saved_whole: list[Any] | None = None
        self._file = file
        self._root = root
        self._known: dict[bytes, tuple[Signature, bytes]] = {}
        self._noted: dict[bytes, tuple[Signature, bytes]] = {}

    @classmethod
    def open(cls, folder: Path, purpose: str, root: Path, *, clock: Callable[[], int] = time.time_ns) -> Self:
        """The cache that `folder` keeps of `root` for that purpose; empty when there is none yet."""
        key = os.path.realpath(os.fsencode(root))
        name = f"{purpose}-{blake3(key).hexdigest()[:32]}"
        cache = cls(folder / name, key, clock())
        cache._load()
        return cache

    def __len__(self) -> int:
        return len(self._known)

    def get(self, path: bytes, signature: Signature) -> bytes | None:
        """What was noted about the path, when it still looks the same; None otherwise."""
        found = self._known.get(path)
        if found is None or found[0] != signature:
            return None
        self._noted[path] = found
        return found[1]

    def put(self, path: bytes, signature: Signature, value: bytes) -> None:
        """Note a value for a path that looked like that before it was read."""
        self._noted[path] = (signature, value)

    def save(self) -> None:
        """Keep what was got and put in this pass, without what could be racy.

        A cache that cannot be written (a full disk, a read-only home) is passed over: it costs time only.
        """
        kept = {
            path: note
            for path, note in self._noted.items()
            # Trusted when it was first saved is trusted still: a note gets no racier with age.
            if self._known.get(path) == note or not is_racy(note[0], self.moment_ns)
        }
        if (kept, self.whole) != (self._known, self._saved_whole):
            self._known, self._saved_whole = kept, self.whole
            self._write()

    def _load(self) -> None:
        with contextlib.suppress(OSError, ValueError, TypeError, msgpack.UnpackException):
            data = self._file.read_bytes()
            start = len(_MAGIC) + _DIGEST_BYTES
            body = memoryview(data)[start:]
            if data[: len(_MAGIC)] != _MAGIC or blake3(body).digest() != data[len(_MAGIC) : start]:
                return
            root, whole, paths = msgpack.unpackb(body, strict_map_key=False)
            if root == self._root:
                if self._file.stat().st_mtime < time.time() - _TOUCH_S:
                    os.utime(self._file)
                self.whole = self._saved_whole = whole
                self._known = {path: (tuple(row[:5]), row[5]) for path, row in paths.items()}

    def _write(self) -> None:
        paths: Mapping[bytes, list[Any]] = {p: [*signature, v] for p, (signature, v) in self._known.items()}
        body = msgpack.packb([self._root, self.whole, paths])
        with contextlib.suppress(OSError):
            with replacing(self._file, mode=0o600, durable=False) as out:
                out.write(_MAGIC + blake3(body).digest() + body)
            _forget_unused(self._file.parent)


def _forget_unused(folder: Path) -> None:
    """Remove the caches that were not used for KEEP_S seconds, and what killed savers left."""
    oldest = time.time() - KEEP_S
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if file.stat().st_mtime < oldest:
                file.unlink()
