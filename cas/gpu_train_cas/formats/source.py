"""Bytes that can be read at any place: what a format is recognised in."""

from __future__ import annotations

import os
from typing import Protocol

from gpu_train_cas.formats.layout import FormatError


class Source(Protocol):
    """A file's bytes. Reading moves no position, so one source serves several threads."""

    @property
    def size_bytes(self) -> int:
        """Bytes there are."""
        ...

    def pread(self, length: int, offset: int) -> bytes:
        """The bytes [offset, offset + length); fewer only where the file ends."""
        ...


class FileSource:
    """An open file, of the size that it had when this was made; the caller keeps and closes `fd`."""

    __slots__ = ("fd", "size_bytes")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size_bytes = os.fstat(fd).st_size

    def pread(self, length: int, offset: int) -> bytes:
        """The bytes [offset, offset + length); fewer only where the file ends."""
        data = os.pread(self.fd, length, offset)
        while len(data) < length and (more := os.pread(self.fd, length - len(data), offset + len(data))):
            data += more
        return data


class BytesSource:
    """Bytes in memory."""

    __slots__ = ("data", "size_bytes")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data)
        self.size_bytes = len(data)

    def pread(self, length: int, offset: int) -> bytes:
        """The bytes [offset, offset + length); fewer only where the file ends."""
        return bytes(self.data[offset : offset + length])


class Slice:
    """The bytes [start, start + size_bytes) of another source, such as one record of an archive."""

    __slots__ = ("size_bytes", "source", "start")

    def __init__(self, source: Source, start: int, size_bytes: int) -> None:
        self.source = source
        self.start = start
        self.size_bytes = size_bytes

    def pread(self, length: int, offset: int) -> bytes:
        """The bytes [offset, offset + length); fewer only where the slice ends."""
        length = max(0, min(length, self.size_bytes - offset))
        return self.source.pread(length, self.start + offset)


def read_exactly(source: Source, length: int, offset: int, what: str) -> bytes:
    """Those bytes, all of them.

    Raises:
        FormatError: naming `what`, when they do not all lie in the source.
    """
    if offset < 0 or length < 0 or offset + length > source.size_bytes:
        raise FormatError(f"{what} of {length} bytes at {offset} reaches past the file's end at {source.size_bytes}")
    data = source.pread(length, offset)
    if len(data) != length:
        raise FormatError(f"{what} at {offset}: {length} bytes expected, {len(data)} read; the file shrank")
    return data
