"""Frames that came from far away, kept as they were stored, up to a bound (cas/spec/sources.md)."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from gpu_train_cas.digest import Digest

MEMORY_BYTES = 64 << 20


class FrameCache(Protocol):
    """Bytes by digest. Threads may share it; what it gives back is proven by whoever asked, so it need not be safe."""

    def get(self, digest: Digest) -> bytes | None:
        """The bytes, when they are here."""
        ...

    def has(self, digest: Digest) -> bool:
        """Whether they are here; cheap, and no sign that somebody wants them."""
        ...

    def put(self, digest: Digest, frame: bytes) -> None:
        """Keep the bytes, and drop what was not asked for for longest where there is no room. Fails silently."""
        ...

    def drop(self, digest: Digest) -> None:
        """Keep them no longer."""
        ...


class MemoryFrames:
    """See `FrameCache`; gone with the process."""

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._frames: OrderedDict[Digest, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, digest: Digest) -> bytes | None:
        """See `FrameCache`."""
        with self._lock:
            frame = self._frames.get(digest)
            if frame is not None:
                self._frames.move_to_end(digest)
            return frame

    def has(self, digest: Digest) -> bool:
        """See `FrameCache`."""
        return digest in self._frames

    def put(self, digest: Digest, frame: bytes) -> None:
        """See `FrameCache`."""
        with self._lock:
            self._bytes += len(frame) - len(self._frames.pop(digest, b""))
            self._frames[digest] = frame
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._frames.popitem(last=False)[1])

    def drop(self, digest: Digest) -> None:
        """See `FrameCache`."""
        with self._lock:
            self._bytes -= len(self._frames.pop(digest, b""))


class FolderFrames:
    """See `FrameCache`; files in a folder that outlive the process. Each process keeps to the bound on its own."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[Digest, int] | None = None
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, digest: Digest) -> bytes | None:
        """See `FrameCache`."""
        path = self._path(digest)
        try:
            frame = path.read_bytes()
            os.utime(path)  # the order in which they go, also for the next process
        except OSError:
            return None
        with self._lock:
            if self._sizes is not None and digest in self._sizes:
                self._sizes.move_to_end(digest)
        return frame

    def has(self, digest: Digest) -> bool:
        """See `FrameCache`."""
        return self._path(digest).exists()

    def put(self, digest: Digest, frame: bytes) -> None:
        """See `FrameCache`."""
        path = self._path(digest)
        temporary = path.with_name(f".{uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(frame)
            temporary.replace(path)
        except OSError:  # a full disk, say: then it is fetched again
            with suppress(OSError):
                temporary.unlink()
            return
        with self._lock:
            sizes = self._known()
            self._bytes += len(frame) - sizes.pop(digest, 0)
            sizes[digest] = len(frame)
            gone = []
            while self._bytes > self._max_bytes:
                oldest, size = sizes.popitem(last=False)
                self._bytes -= size
                gone.append(oldest)
        for oldest in gone:
            self._unlink(oldest)

    def drop(self, digest: Digest) -> None:
        """See `FrameCache`."""
        with self._lock:
            if self._sizes is not None:
                self._bytes -= self._sizes.pop(digest, 0)
        self._unlink(digest)

    def _known(self) -> OrderedDict[Digest, int]:
        """What lies in the folder, the oldest first; looked up when something is first put in, with the lock held."""
        if self._sizes is None:
            found = []
            for path in self._folder.glob("??/*"):
                with suppress(OSError, ValueError):
                    status = path.stat()
                    found.append((status.st_mtime_ns, Digest(bytes.fromhex(path.name)), status.st_size))
            self._sizes = OrderedDict((digest, size) for _, digest, size in sorted(found))
            self._bytes = sum(self._sizes.values())
        return self._sizes

    def _path(self, digest: Digest) -> Path:
        text = digest.hex()
        return self._folder / text[:2] / text

    def _unlink(self, digest: Digest) -> None:
        with suppress(OSError):
            self._path(digest).unlink()
