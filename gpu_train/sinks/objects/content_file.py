"""A content as a file to read from, for libraries that want one."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from gpu_train.sinks.objects.content import PART_BYTES, Content
from gpu_train.sinks.objects.objectstore import OnBytes

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class _Raw(io.RawIOBase):
    """Reads a content from a position; tells `on_bytes` of what is read, and takes back what is read again."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._at = 0
        self._told = 0
        self.on_bytes: OnBytes | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = self._content.read(view.nbytes, self._at)
        view[: len(data)] = data
        if self.on_bytes is not None:
            if self._at < self._told:
                self.on_bytes(self._at - self._told)
            self._told = self._at + len(data)
            self.on_bytes(len(data))
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._content.size_bytes}[whence]
        self._at = start + offset
        return self._at


class ContentFile(io.BufferedReader):
    """See the module. It is read in large parts, however small the ones that are asked for."""

    def __init__(self, content: Content) -> None:
        raw = _Raw(content)
        super().__init__(raw, PART_BYTES)
        self._content_file = raw

    def tell_of(self, on_bytes: OnBytes) -> None:
        """From now on, tell this of what is read."""
        self.seek(0)
        self._content_file.on_bytes = on_bytes
