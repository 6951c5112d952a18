"""What must be seen to before LMDB maps its files, since afterwards it is SIGBUS, which ends the process.

LMDB reads pages of `data.mdb` by number, also behind the end of a truncated file, and writes to the map of
`lock.mdb`, which is sparse at first and may not find room on a full disk. Layout of the meta pages: lmdb.h
and mdb.c of LMDB 0.9 (MDB_meta).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from gpu_train_cas.errors import Damaged

_PAGE_HEADER_BYTES = 16
_META = struct.Struct("=II8x8xI44x48xQQ")  # magic, version, page size, last page, transaction
_MAGIC = 0xBEEFC0DE
_MAX_BYTES = 1 << 40  # no registry is so long: a meta page that says so is garbage


_READER_BYTES = 64
_LOCK_HEADER_BYTES = 4096  # MDB_txninfo is smaller; what is left over is a few reader slots more


def ensure_locks(file: Path, readers: int) -> None:
    """Make `lock.mdb` as large as LMDB will have it, with all of it on the disk.

    Raises:
        OSError: ENOSPC when there is no room for it; EROFS and EACCES when it cannot be written.
    """
    size = readers * _READER_BYTES + _LOCK_HEADER_BYTES
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(fd)
        if found.st_size < size or found.st_blocks == 0:  # new, or copied as a hole: nobody has it mapped yet
            os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)


def ensure_length(file: Path, *, read_only: bool) -> None:
    """Make sure that every page which the file's newest state may use can be touched.

    A file may be shorter by free pages that were never written, so that shortness alone proves no damage:
    it is lengthened, and where that put zeros in the place of real pages LMDB finds those corrupt.

    Raises:
        Damaged: when it is too short and may not be written, or claims an absurd length.
        OSError: when it cannot be read or lengthened.
    """
    fd = os.open(file, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
    try:
        need = _needed_bytes(fd)
        have = os.fstat(fd).st_size  # after the meta pages: pages are written before the meta page that uses them
        if have >= need:
            return
        if need > _MAX_BYTES:
            raise Damaged(f"{file} claims {need} bytes; run `gpu-train repair --rebuild-registry`")
        if read_only:
            raise Damaged(
                f"{file} is {have} bytes long and needs {need}: it was cut off, or must be opened for writing once; "
                "if that fails run `gpu-train repair --rebuild-registry`"
            )
        os.posix_fallocate(fd, need - 1, 1)  # unlike ftruncate it cannot shorten what another process has written
    finally:
        os.close(fd)


def _needed_bytes(fd: int) -> int:
    """The length that the newest meta page implies; 0 when there is none, which LMDB itself refuses."""
    first = _meta(fd, 0)
    if first is None:
        return 0
    page_bytes = first[0]
    second = _meta(fd, page_bytes)
    if second is None:
        return 2 * page_bytes
    _, last_page, _ = max(first, second, key=lambda meta: meta[2])
    return (last_page + 1) * page_bytes


def _meta(fd: int, offset: int) -> tuple[int, int, int] | None:
    """Page size, last page and transaction of the meta page at an offset."""
    data = os.pread(fd, _META.size, offset + _PAGE_HEADER_BYTES)
    if len(data) < _META.size:
        return None
    magic, _, page_bytes, last_page, transaction = _META.unpack(data)
    return (page_bytes, last_page, transaction) if magic == _MAGIC else None
