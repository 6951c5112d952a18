"""An immutable file of frames with its own index at the end (cas/spec/packs.md, Packs)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self

from blake3 import blake3

from gpu_train_cas.codecs import Codec, Encoded
from gpu_train_cas.digest import DIGEST_BYTES, Digest, Kind
from gpu_train_cas.errors import Damaged, TooNew, mapped_os_errors
from gpu_train_cas.filesystem import remove_if_there, sync_directory
from gpu_train_cas.frame import (
    HAS_SIBLING,
    HEADER_BYTES,
    MAGIC,
    MAX_FRAME_BYTES,
    NO_DIGEST,
    SIBLING_HEADER_BYTES,
    FrameHeader,
)

PACK_MAGIC = b"\x89GTPACK\n"
FOOTER_MAGIC = b"GTPACKEND\n\x00\x00\x00\x00\x00\x00"
VERSION = 1
PACK_BYTES = 256 << 20
"""A writer starts a new pack when the present one has grown to this."""

SUFFIX = ".pack"
_HEAD = struct.Struct("<8sII")
_ENTRY = struct.Struct("<32s32sQIIBBB5x")
_FOOTER = struct.Struct("<QII32s16s")
ENTRY_BYTES = _ENTRY.size
"""What a frame takes in the index at the end; one that names a sibling takes a digest more."""

FRAME_LESS_BYTES = _HEAD.size + _FOOTER.size
"""What a pack takes besides its frames and their index entries."""

_SYNC_STEP_BYTES = 32 << 20
_LITTLE_BYTES = 1 << 20
"""Fewer bytes than this are left to `seal`: one more sync takes longer than writing them in the same one."""

_SCAN_BYTES = 8 << 20


class PackEntry(NamedTuple):
    """One frame of a pack: its header's facts and where the header starts in the file."""

    header: FrameHeader
    offset: int

    @property
    def end(self) -> int:
        """Where the payload ends in the file."""
        return self.offset + self.header.size_bytes + self.header.stored_bytes


class SealedPack(NamedTuple):
    """A finished, fsynced pack that still lies under its temporary name."""

    name: Digest
    path: Path
    size_bytes: int
    entries: Sequence[PackEntry]


def pack_path(packs: Path, name: Digest) -> Path:
    """Where a pack of that name lies: packs/<first two hex digits>/<hex>.pack."""
    text = name.hex()
    return packs / text[:2] / (text + SUFFIX)


class PackWriter:
    """Appends frames to a temporary file; `seal` makes it a pack. One thread at a time.

    Nothing is durable before `seal` returns; then all of it is. The bulk is pushed to the disk while
    frames still come, by one background thread, so that the final fsync is short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[PackEntry] = []
        self._hash = blake3()
        self._syncer = ThreadPoolExecutor(1, thread_name_prefix="pack-sync")
        self._syncing: Future[None] | None = None
        self._unsynced = 0
        with mapped_os_errors(f"writing {path}"):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self.size_bytes = 0
        try:
            self._append(_HEAD.pack(PACK_MAGIC, VERSION, 0))
        except BaseException:  # the caller has nothing yet that it could discard
            self.discard()
            raise

    def add(
        self, kind: Kind, digest: Digest, length: int, encoded: Encoded, base: Digest | None = None,
        sibling: Digest | None = None,
    ) -> PackEntry:  # fmt: skip
        """Append a frame.

        Raises:
            StorageFull: when the disk is full; the pack must then be discarded.
        """
        header = FrameHeader(kind, encoded.codec, digest, length, len(encoded.payload), base, sibling)
        entry = PackEntry(header, self.size_bytes)
        self._append(header.pack(), encoded.payload)
        self.entries.append(entry)
        return entry

    def sync(self) -> None:
        """Push what was added so far to the disk, so that a later `seal` has little left to do."""
        if self._unsynced < _LITTLE_BYTES:
            return
        with mapped_os_errors(f"writing {self.path}"):
            os.fdatasync(self._fd)
        self._unsynced = 0

    def seal(self) -> SealedPack:
        """Write the index, make the file durable and give it its name; it is not moved yet.

        Raises:
            StorageFull: when the disk is full; the pack must then be discarded.
        """
        index = b"".join(
            _ENTRY.pack(
                e.header.digest, e.header.base or NO_DIGEST, e.offset, e.header.stored_bytes, e.header.length,
                e.header.kind, e.header.codec, HAS_SIBLING if e.header.sibling else 0,
            )
            for e in self.entries
        )  # fmt: skip
        index += b"".join(e.header.sibling for e in self.entries if e.header.sibling)
        footer = _FOOTER.pack(self.size_bytes, len(self.entries), 0, blake3(index).digest(), FOOTER_MAGIC)
        self._append(index, footer)
        with mapped_os_errors(f"writing {self.path}"):
            self._settle_sync()
            os.fsync(self._fd)
            os.close(self._fd)
        self._syncer.shutdown()
        self._fd = -1
        return SealedPack(Digest(self._hash.digest()), self.path, self.size_bytes, self.entries)

    def discard(self) -> None:
        """Drop the file; safe to call at any time, also twice."""
        if self._fd >= 0:
            self._syncer.shutdown(cancel_futures=True)
            os.close(self._fd)
            self._fd = -1
        remove_if_there(self.path)

    def _append(self, *parts: bytes | memoryview) -> None:
        views = [memoryview(p).cast("B") for p in parts if len(p)]
        with mapped_os_errors(f"writing {self.path}"):
            for view in views:
                self._hash.update(view)
            left = list(views)
            while left:
                done = os.writev(self._fd, left)
                self.size_bytes += done
                self._unsynced += done
                while left and done >= len(left[0]):
                    done -= len(left.pop(0))
                if left:
                    left[0] = left[0][done:]
            if self._unsynced >= _SYNC_STEP_BYTES and (self._syncing is None or self._syncing.done()):
                self._settle_sync()
                self._unsynced = 0
                self._syncing = self._syncer.submit(os.fdatasync, self._fd)

    def _settle_sync(self) -> None:
        """Wait for the background sync and raise what it met: a lost write-back error is a lost block."""
        if self._syncing is not None:
            self._syncing.result()
            self._syncing = None


def publish(sealed: SealedPack, packs: Path) -> Path:
    """Move a sealed pack to its place and make the move durable. A pack already there is the same one."""
    final = pack_path(packs, sealed.name)
    with mapped_os_errors(f"writing {final}"):
        if not final.parent.is_dir():
            final.parent.mkdir(parents=True, exist_ok=True)
            sync_directory(packs)
        os.rename(sealed.path, final)
        sync_directory(final.parent)
    return final


class PackReader:
    """A pack opened for reading; threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size_bytes = os.fstat(self._fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def pread(self, length: int, offset: int) -> bytes:
        """Bytes of the file; fewer only at its end."""
        return os.pread(self._fd, length, offset)

    def frame(self, offset: int, stored_bytes: int) -> tuple[FrameHeader, memoryview]:
        """The frame at an offset, header and payload in one read.

        Raises:
            Damaged: when no such frame starts there.
        """
        data = memoryview(os.pread(self._fd, SIBLING_HEADER_BYTES + stored_bytes, offset))
        header = FrameHeader.unpack(data)
        if header.stored_bytes != stored_bytes:
            raise Damaged(f"{self.path.name} at {offset}: a frame of another length than the index says")
        return header, data[header.size_bytes : header.size_bytes + stored_bytes]

    def index(self) -> list[PackEntry]:
        """The entries of the pack's own index, in file order.

        Raises:
            Damaged: when the footer or the index is missing or fails its digest; `scan` still works.
            TooNew: for a later version.
        """
        head = self.pread(_HEAD.size, 0)
        if len(head) < _HEAD.size or head[:8] != PACK_MAGIC:
            raise Damaged(f"{self.path} is not a pack")
        if _HEAD.unpack(head)[1] != VERSION:
            raise TooNew(f"{self.path} was written by a newer gpu-train; install that version")
        return index_at_end(self.pread, self.size_bytes, str(self.path))

    def scan(self) -> Iterator[PackEntry]:
        """Find the frames by their own headers, whatever the index says; damaged stretches are passed over."""
        offset = 0
        while offset + HEADER_BYTES <= self.size_bytes:
            try:
                header = FrameHeader.unpack(self.pread(SIBLING_HEADER_BYTES, offset))
            except (Damaged, TooNew):
                offset = self._next_magic(offset + 1)
                continue
            entry = PackEntry(header, offset)
            if entry.end > self.size_bytes:
                offset += 1
                continue
            yield entry
            offset = entry.end

    def _next_magic(self, offset: int) -> int:
        """The next place that looks like a frame's start, or the end of the file."""
        while offset < self.size_bytes:
            window = self.pread(_SCAN_BYTES, offset)
            found = window.find(MAGIC)
            if found >= 0:
                return offset + found
            offset += max(1, len(window) - len(MAGIC) + 1)
        return self.size_bytes


def index_at_end(read: Callable[[int, int], bytes], size_bytes: int, what: str) -> list[PackEntry]:
    """The entries of the index of a pack, in file order, however its bytes are had.

    Args:
        read: gives bytes of the pack by length and offset; fewer only at its end.
        size_bytes: the pack's length.
        what: what the pack is called in messages.

    Raises:
        Damaged: when the footer or the index is missing or fails its digest, or a frame would lie outside the pack.
        TooNew: for kinds or codecs that are not known.
    """
    tail = read(_FOOTER.size, max(0, size_bytes - _FOOTER.size))
    if len(tail) < _FOOTER.size or tail[-len(FOOTER_MAGIC) :] != FOOTER_MAGIC:
        raise Damaged(f"{what} has no index at its end; `gpu-train repair` can scan it")
    start, count, _, digest, _ = _FOOTER.unpack(tail)
    length = size_bytes - _FOOTER.size - start
    if length > MAX_FRAME_BYTES:
        raise Damaged(f"{what} claims an index of {length} bytes, over the limit of {MAX_FRAME_BYTES}")
    index = read(max(0, length), start)
    if length < count * _ENTRY.size or len(index) != length or blake3(index).digest() != digest:
        raise Damaged(f"{what}: the index fails its digest; `gpu-train repair` can scan it")
    rows = [_ENTRY.unpack_from(index, i * _ENTRY.size) for i in range(count)]
    siblings = index[count * _ENTRY.size :]
    if len(siblings) != DIGEST_BYTES * sum(row[-1] & HAS_SIBLING for row in rows):
        raise Damaged(f"{what}: the index does not have the length that its entries say")
    left = (Digest(siblings[i : i + DIGEST_BYTES]) for i in range(0, len(siblings), DIGEST_BYTES))
    entries = [_entry(row, next(left) if row[-1] & HAS_SIBLING else None) for row in rows]
    if any(e.offset < _HEAD.size or e.end > start or e.header.stored_bytes > MAX_FRAME_BYTES for e in entries):
        raise Damaged(f"{what}: the index names frames that cannot lie in the pack")
    return entries


def _entry(row: tuple[Any, ...], sibling: Digest | None) -> PackEntry:
    digest, base, offset, stored, length, kind, codec, _ = row
    known = None if base == NO_DIGEST else Digest(base)
    try:
        header = FrameHeader(Kind(kind), Codec(codec), Digest(digest), length, stored, known, sibling)
    except ValueError as e:
        raise TooNew(f"a frame of a kind or codec not known here ({e}); install a newer gpu-train") from e
    return PackEntry(header, offset)
