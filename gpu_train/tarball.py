"""A stored directory as a `.tar.gz` that depends on its content alone."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import IO

from gpu_train_cas import Entry, EntryKind, File, Reader
from gpu_train_cas.errors import Damaged
from gpu_train_cas.filesystem import replacing

COMPRESSION = 6
_READ_BYTES = 1 << 20
_TYPES = {EntryKind.FILE: tarfile.REGTYPE, EntryKind.DIRECTORY: tarfile.DIRTYPE, EntryKind.SYMLINK: tarfile.SYMTYPE}


def write_tarball(reader: Reader, root: Entry, target: Path) -> None:
    """Write the directory to `target`, which appears whole and durable or not at all.

    Entries are in the order of their names, parents first, without a common folder above them; owners
    are 0, times are 0 (1970), modes are kept. The format is GNU tar, whose names are plain bytes.

    Raises:
        Damaged, NotFound: when a block cannot be read.
        OSError: when the file cannot be written.
    """
    with replacing(target) as out:
        _write(reader, root, out)


def _write(reader: Reader, root: Entry, out: IO[bytes]) -> None:
    # No file name and no time in gzip's header: both would differ from export to export.
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=COMPRESSION, fileobj=out, mtime=0) as packed,
        tarfile.TarFile(
            fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        ) as tar,
    ):
        for path, entry in reader.walk(root):
            tar.addfile(_member(path, entry), _Stream(reader.open(entry)) if _has_bytes(entry) else None)


def _member(path: bytes, entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path.decode("utf-8", "surrogateescape"))
    member.type = _TYPES[entry.kind]
    member.mode = 0o777 if entry.kind is EntryKind.SYMLINK else entry.mode
    member.mtime = member.uid = member.gid = 0
    if entry.kind is EntryKind.FILE:
        member.size = entry.size_bytes
    member.linkname = entry.target.decode("utf-8", "surrogateescape")
    return member


def _has_bytes(entry: Entry) -> bool:
    return entry.kind is EntryKind.FILE and entry.size_bytes > 0


class _Stream:
    """A stored file read from its start, as tarfile wants it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    def read(self, length: int = -1) -> bytes:
        left = self._file.size_bytes - self._at
        data = self._file.pread(left if length < 0 else min(length, left, _READ_BYTES), self._at)
        if not data and length != 0 and left > 0:
            raise Damaged("a stored file ends before its size")
        self._at += len(data)
        return data
