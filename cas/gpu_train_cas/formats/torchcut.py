"""A torch archive without a part of its state: same offsets, holes where that part's storages were.

The new file is the old one up to its directory, then a pickle that leaves the part out, then a directory that names
this pickle and no storage that only the part needed. So every other storage stays where it is, byte for byte, and
whoever asks for the part is told that it is not there. The record `.format_version` goes too: it promises torch that
storages follow each other without gaps.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from operator import eq

from gpu_train_cas.formats import pickle
from gpu_train_cas.formats.archive import STORED, Archive, Record, directory_entries, read_archive
from gpu_train_cas.formats.cut import Cut
from gpu_train_cas.formats.layout import FormatError
from gpu_train_cas.formats.picklecut import without_keys
from gpu_train_cas.formats.source import Source
from gpu_train_cas.formats.state import storage_of
from gpu_train_cas.formats.torchzip import MAX_PICKLE_BYTES, is_torch

_PICKLE = "data.pkl"
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s4H2H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_UTF8, _VERSION, _VERSION64 = 0x800, 20, 45
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF


def cut_torch(source: Source, drop: Callable[[str], bool]) -> Cut | None:
    """How to leave the entries of the outermost dict out whose key `drop` accepts and that have storages of their own.

    None when there are none.

    Raises:
        FormatError: when it is no archive of a pickled dict, or what is kept needs some of what would be left out.
    """
    archive = read_archive(source, source.size_bytes)
    entries = directory_entries(source, archive)
    pickled = _pickle_of(archive)
    old = archive.inflate(source, pickled, MAX_PICKLE_BYTES)
    new, keys, unneeded = _without(old, drop)
    if not unneeded:
        return None
    root = pickled.name[: -len(_PICKLE)]
    gone = {f"{root}data/{key}" for key in unneeded}
    dropped = [r for r in archive.records if r.name in gone and r.method == STORED]
    at = archive.directory
    holes = [(archive.data_offset(source, r), r.stored_bytes) for r in [*dropped, pickled]]
    head = _local_header(pickled.name, new)
    gone |= {pickled.name, f"{root}.format_version"}
    kept = [raw for record, raw in entries if record.name not in gone]
    directory = [_central_entry(pickled.name, new, at), *kept]
    tail = head + new + _directory(directory, at + len(head) + len(new))
    return Cut(keys, sorted((start, start + length) for start, length in holes if length), at, tail)


def _without(old: bytes, drop: Callable[[str], bool]) -> tuple[bytes, list[str], set[str]]:
    """The pickle without what `drop` accepts, the keys that are, and the storages that it then needs no more.

    A key whose value has no storage of its own (`optimizer_name`) stays.
    """
    before = _storages(old)
    _, candidates = without_keys(old, drop)
    own = [key for key in candidates if before - _storages(without_keys(old, partial(eq, key))[0])]
    new, keys = without_keys(old, lambda key: key in (own or candidates))
    return new, keys, before - _storages(new)


def _pickle_of(archive: Archive) -> Record:
    """The record of the state.

    Raises:
        FormatError: when there is none, or other programs beside it (TorchScript) need the storages too.
    """
    names = [r.name for r in archive.records]
    pickles = [r for r in archive.records if r.name.rpartition("/")[2] == _PICKLE]
    if not is_torch(archive) or len(pickles) != 1 or sum(name.endswith(".pkl") for name in names) != 1:
        raise FormatError("it is no archive of one pickled state")
    if any("/code/" in name for name in names):
        raise FormatError("it is a TorchScript archive")
    return pickles[0]


def _storages(pickled: bytes) -> set[str]:
    """The storages that a pickle needs.

    Raises:
        FormatError: when it refers to something that is none.
    """
    found = set()
    for reference in pickle.references(pickled):
        storage = storage_of(reference)
        if storage is None:
            raise FormatError("the pickle refers to something other than torch's storages")
        found.add(storage[0])
    return found


def _local_header(name: str, data: bytes) -> bytes:
    encoded = name.encode()
    sizes = zlib.crc32(data), len(data), len(data)
    return _LOCAL.pack(b"PK\x03\x04", _VERSION, _UTF8, STORED, 0, 0, *sizes, len(encoded), 0) + encoded


def _central_entry(name: str, data: bytes, at: int) -> bytes:
    encoded = name.encode()
    wide = struct.pack("<2HQ", 1, 8, at) if at >= _FULL32 else b""
    version = _VERSION64 if wide else _VERSION
    return (
        _CENTRAL.pack(
            b"PK\x01\x02", version, version, _UTF8, STORED, 0, 0, zlib.crc32(data), len(data), len(data), len(encoded),
            len(wide), 0, 0, 0, 0, _FULL32 if wide else at,
        ) + encoded + wide
    )  # fmt: skip


def _directory(entries: Sequence[bytes], at: int) -> bytes:
    """A directory at that place of the file, with its end records."""
    body, count = b"".join(entries), len(entries)
    end64 = at + len(body)
    wide = b""
    if count >= _FULL16 or end64 >= _FULL32:
        wide = _END64.pack(
            b"PK\x06\x06", _END64.size - 12, _VERSION64, _VERSION64, 0, 0, count, count, len(body), at
        ) + _LOCATOR.pack(b"PK\x06\x07", 0, end64, 1)
    short = min(count, _FULL16)
    end = _END.pack(b"PK\x05\x06", 0, 0, short, short, min(len(body), _FULL32), min(at, _FULL32), 0)
    return body + wide + end
