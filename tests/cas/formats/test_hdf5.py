"""Superblocks as h5py 3 writes them (`libver` earliest, v108 and latest), closed and open."""

from __future__ import annotations

import pytest

from gpu_train_cas.formats import BytesSource, UnknownFormat, layout, parse, self_proof

SIGNATURE = "894844460d0a1a0a"
NOWHERE = "ffffffffffffffff"
SIZE = 5000


def superblock(version: int, *, is_open: bool, end: int = SIZE, address_bytes: int = 8, base: int = 0) -> bytes:
    flag = int(is_open)
    addresses = base.to_bytes(8, "little").hex() + NOWHERE + end.to_bytes(8, "little").hex() + NOWHERE
    if version < 2:
        head = f"{version:02x}00000000{address_bytes:02x}080004001000{flag:02x}000000" + "20000000" * version
    else:
        head = f"{version:02x}{address_bytes:02x}08{flag:02x}"
    return bytes.fromhex(SIGNATURE + head + addresses)


def file(head: bytes, size_bytes: int = SIZE) -> BytesSource:
    return BytesSource(head.ljust(size_bytes, b"\0")[:size_bytes])


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_whether_it_is_complete(version: int) -> None:
    assert self_proof(file(superblock(version, is_open=False)), "w.h5") is True
    assert self_proof(file(superblock(version, is_open=True)), "w.h5") is False
    assert self_proof(file(superblock(version, is_open=False, end=SIZE + 1)), "w.h5") is False
    assert self_proof(file(superblock(version, is_open=False, end=SIZE - 1)), "w.h5") is None
    assert self_proof(file(superblock(version, is_open=False, base=512)), "w.h5") is None
    assert self_proof(file(superblock(version, is_open=False, address_bytes=4)), "w.h5") is None
    assert self_proof(file(superblock(version, is_open=False), 30), "w.h5") is False


def test_what_cannot_be_told() -> None:
    assert self_proof(file(superblock(7, is_open=False)), "w.h5") is None
    assert layout(file(superblock(0, is_open=False)), "w.h5") is None
    with pytest.raises(UnknownFormat):
        parse(file(superblock(0, is_open=False)), "w.h5")


def test_a_superblock_of_h5py() -> None:
    closed = "894844460d0a1a0a000000000008080004001000000000000000000000000000ffffffffffffffff9083180000000000"
    assert self_proof(file(bytes.fromhex(closed), 0x188390), "model.weights.h5") is True
    assert self_proof(file(bytes.fromhex(closed), 0x18838F), "model.weights.h5") is False
