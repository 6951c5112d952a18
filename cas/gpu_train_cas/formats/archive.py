"""A zip archive's directory: which records it holds and where their bytes lie.

An archive is found from its own end, which need not be the file's: torch.distributed.checkpoint writes
several archives one after another into one file, each with offsets that count from its own start.
Only the fields that place a record are read; nothing is extracted except by `inflate`, with a bound.
Field names and sizes: PKWARE APPNOTE 6.3.10, sections 4.3.7 to 4.3.16.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from gpu_train_cas.formats.kind import ZIP_MAGIC
from gpu_train_cas.formats.layout import FormatError, Unsupported
from gpu_train_cas.formats.source import Source, read_exactly

MAX_RECORDS = 1 << 18
MAX_DIRECTORY_BYTES = 64 << 20
MAX_NAME_BYTES = 1024

STORED, DEFLATED = 0, 8

_END = struct.Struct("<4s4H2IH")  # magic, disks (2), records here, records, size, offset, comment
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_CENTRAL = struct.Struct("<4s4H2H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_MAX_COMMENT = 0xFFFF


@dataclass(frozen=True, slots=True)
class Record:
    """One member of an archive; `header` is the file offset of its local header.

    `stored_bytes` is what it takes in the archive, `size_bytes` what it is when inflated.
    """

    name: str
    method: int
    header: int
    stored_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive: the file offsets of its first record, its directory and its end."""

    start: int
    directory: int
    end: int
    records: tuple[Record, ...]

    def data_offset(self, source: Source, record: Record) -> int:
        """The file offset of the record's stored bytes.

        Raises:
            FormatError: when no local header is there, or the bytes would run into the directory.
        """
        header = read_exactly(source, _LOCAL.size, record.header, "a local header")
        magic, *_, name_bytes, extra_bytes = _LOCAL.unpack(header)
        offset = record.header + _LOCAL.size + int(name_bytes) + int(extra_bytes)
        if magic != ZIP_MAGIC or offset + record.stored_bytes > self.directory:
            raise FormatError(f"record {record.name[:200]!r} does not lie at {record.header} as the directory says")
        return offset

    def inflate(self, source: Source, record: Record, max_bytes: int) -> bytes:
        """The record's bytes, stored or deflated; never more than `max_bytes` are read or made.

        Raises:
            FormatError: for more bytes than that, another method, or damaged data.
        """
        if max(record.stored_bytes, record.size_bytes) > max_bytes:
            raise FormatError(f"record {record.name[:200]!r} is larger than the {max_bytes} bytes read of such a one")
        data = read_exactly(source, record.stored_bytes, self.data_offset(source, record), "a record")
        if record.method == DEFLATED:
            try:
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, record.size_bytes + 1)
            except zlib.error as e:
                raise FormatError(f"record {record.name[:200]!r} cannot be inflated: {e}") from e
        elif record.method != STORED:
            raise FormatError(f"record {record.name[:200]!r} is packed by method {record.method}")
        if len(data) != record.size_bytes:
            raise FormatError(f"record {record.name[:200]!r} is not the {record.size_bytes} bytes that it claims")
        return data


def read_archive(source: Source, end: int) -> Archive:
    """The archive whose last byte lies just before `end`.

    Raises:
        FormatError: when none ends there, or its directory is broken or beyond the limits.
    """
    end_record = _find_end(source, end)
    count, size, offset, directory_end = _directory(source, end_record)
    base = directory_end - size - offset
    if base < 0:
        raise FormatError(f"a zip directory of {size} bytes at {offset} does not end at {directory_end}")
    if count > MAX_RECORDS or size > MAX_DIRECTORY_BYTES:
        raise Unsupported(f"a zip directory of {count} records and {size} bytes is beyond the limits")
    data = read_exactly(source, size, directory_end - size, "a zip directory")
    records, at = [], 0
    for _ in range(count):
        record, at = _record(data, at, base)
        if record.header + _LOCAL.size + record.stored_bytes > directory_end - size:
            raise FormatError(f"record {record.name[:200]!r} reaches into the directory")
        records.append(record)
    if at != size:
        raise FormatError(f"a zip directory of {size} bytes holds {at} bytes of records")
    start = min((r.header for r in records), default=base)
    return Archive(start, directory_end - size, end, tuple(records))


def directory_entries(source: Source, archive: Archive) -> list[tuple[Record, bytes]]:
    """The records of an archive that begins where its file does, each with its own bytes of the directory.

    Raises:
        FormatError: when other bytes lie before the archive, so that its offsets count from elsewhere.
    """
    data = read_exactly(source, archive.end - archive.directory, archive.directory, "a zip directory")
    found, at = [], 0
    for expected in archive.records:
        record, following = _record(data, at, 0)
        if record != expected:
            raise FormatError("a zip archive does not begin where its file does")
        found.append((record, data[at:following]))
        at = following
    return found


def self_proof(source: Source) -> bool:
    """Whether an archive ends where the file ends, and its first and last record lie where it says.

    Raises:
        FormatError: when they do not.
    """
    archive = read_archive(source, source.size_bytes)
    for record in archive.records[:1] + archive.records[-1:]:
        archive.data_offset(source, record)
    return True


def _find_end(source: Source, end: int) -> int:
    """The file offset of the end record, behind which lies only its comment."""
    at = end - _END.size
    last = source.pread(_END.size, at) if at >= 0 else b""
    if last[:4] == b"PK\x05\x06" and last[-2:] == b"\0\0":
        return at
    reach = min(end, _END.size + _MAX_COMMENT)
    tail = read_exactly(source, reach, end - reach, "the tail")
    found = tail.rfind(b"PK\x05\x06", 0, max(0, reach - _END.size + 4))
    if found < 0 or found + _END.size + int.from_bytes(tail[found + 20 : found + 22], "little") != reach:
        raise FormatError("the file ends without the end record of a zip archive: it is cut short or still written")
    return end - reach + found


def _directory(source: Source, at: int) -> tuple[int, int, int, int]:
    """Number of records, directory's size, its offset in the archive, and its end in the file."""
    _, disk, first, _, count, size, offset, _ = _END.unpack(read_exactly(source, _END.size, at, "the end record"))
    if disk or first:
        raise Unsupported("the archive is one part of several")
    end64 = at - _LOCATOR.size - _END64.size
    both = source.pread(_END64.size + _LOCATOR.size, end64) if end64 >= 0 else b""
    if both[_END64.size : _END64.size + 4] == b"PK\x06\x07" and both[:4] == b"PK\x06\x06":
        *_, count, size, offset = _END64.unpack(both[: _END64.size])
        return int(count), int(size), int(offset), end64
    return int(count), int(size), int(offset), at


def _record(data: bytes, at: int, base: int) -> tuple[Record, int]:
    """The record described at that place of the directory, and where the next one is."""
    if at + _CENTRAL.size > len(data):
        raise FormatError("a zip directory ends early")
    fields = _CENTRAL.unpack_from(data, at)
    magic, flags, method = fields[0], fields[3], fields[4]
    stored, size, name_bytes, extra_bytes, comment_bytes = fields[8:13]
    header = fields[16]
    name_at = at + _CENTRAL.size
    extra_at = name_at + name_bytes
    following = extra_at + extra_bytes + comment_bytes
    if magic != b"PK\x01\x02" or following > len(data):
        raise FormatError(f"a zip directory is broken at its byte {at}")
    if name_bytes > MAX_NAME_BYTES:
        raise Unsupported(f"a record's name of {name_bytes} bytes is longer than {MAX_NAME_BYTES}")
    if flags & 1:
        raise Unsupported("the archive is encrypted")
    if 0xFFFFFFFF in (stored, size, header):
        wide = _wide(data[extra_at : extra_at + extra_bytes])
        size, stored, header = (next(wide, n) if n == 0xFFFFFFFF else n for n in (size, stored, header))
    name = data[name_at:extra_at].decode("utf-8", "replace")
    if method == STORED and stored != size:
        raise FormatError(f"record {name[:200]!r} is stored as it is and yet of two sizes")
    return Record(name, method, base + header, stored, size), following


def _wide(extra: bytes) -> Iterator[int]:
    """The 64-bit numbers of a record, those that did not fit their 32-bit fields, in order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            for place in range(at + 4, min(at + 4 + length, len(extra)) - 7, 8):
                yield int.from_bytes(extra[place : place + 8], "little")
            return
        at += 4 + length
