"""The bytes of an object that is to be written: they can be read at any place, more than once, by several threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from gpu_train_cas.errors import SourceChanged

PART_BYTES = 8 << 20
"""How much is read at a time where nothing else decides."""


class Content(Protocol):
    """Bytes of a known number that do not change while they are uploaded."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""

    def read(self, length: int, offset: int) -> bytes:
        """Bytes at a place; fewer only at the end."""


class Held:
    """Bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size_bytes(self) -> int:
        """See `Content`."""
        return len(self._data)

    def read(self, length: int, offset: int) -> bytes:
        """See `Content`."""
        return self._data[offset : offset + length]


class FileContent:
    """A file of our own that nobody changes, such as a pack. Close it, or use `with`.

    Attributes:
        path: where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._size_bytes = os.fstat(self._fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the file descriptor back; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def size_bytes(self) -> int:
        """See `Content`."""
        return self._size_bytes

    def read(self, length: int, offset: int) -> bytes:
        """See `Content`.

        Raises:
            SourceChanged: when the file is shorter by now.
        """
        data = os.pread(self._fd, length, offset)
        if len(data) < min(length, self._size_bytes - offset):
            raise SourceChanged(f"{self.path} became shorter while it was uploaded")
        return data


class Lazy:
    """Bytes that are read by a function, such as those of a stored file."""

    def __init__(self, size_bytes: int, read: Callable[[int, int], bytes]) -> None:
        """`read` is given length and offset."""
        self._size_bytes = size_bytes
        self._read = read

    @property
    def size_bytes(self) -> int:
        """See `Content`."""
        return self._size_bytes

    def read(self, length: int, offset: int) -> bytes:
        """See `Content`."""
        return self._read(length, offset)


def parts(content: Content, part_bytes: int = PART_BYTES) -> Iterator[bytes]:
    """All bytes of a content, front to back, so many at a time; nothing for an empty one."""
    for offset in range(0, content.size_bytes, part_bytes):
        yield content.read(part_bytes, offset)
