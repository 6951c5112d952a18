"""Frames and packs: round trips, naming, and damage in every structure."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3

from gpu_train_cas.codecs import Codec, Encoded
from gpu_train_cas.digest import Digest, Kind, digest_of
from gpu_train_cas.errors import Damaged, TooNew
from gpu_train_cas.frame import HEADER_BYTES, FrameHeader, open_frame
from gpu_train_cas.pack import PackReader, PackWriter, SealedPack, pack_path, publish

BLOCKS = [b"first block", b"", b"x" * 5000, bytes(range(256)) * 40]


def header(data: bytes = b"abc", **changes: object) -> FrameHeader:
    fields: dict[str, object] = {
        "kind": Kind.BLOCK, "codec": Codec.RAW, "digest": digest_of(data), "length": len(data),
        "stored_bytes": len(data),
    }  # fmt: skip
    return FrameHeader(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def sealed(tmp_path: Path) -> SealedPack:
    writer = PackWriter(tmp_path / "a.tmp")
    for data in BLOCKS:
        writer.add(Kind.BLOCK, digest_of(data), len(data), Encoded(Codec.RAW, data))
    return writer.seal()


@pytest.mark.parametrize("base", [None, digest_of(b"base")])
@pytest.mark.parametrize("kind", list(Kind))
def test_a_header_says_what_was_packed(kind: Kind, base: Digest | None) -> None:
    packed = header(kind=kind, base=base).pack()
    assert len(packed) == HEADER_BYTES
    assert FrameHeader.unpack(packed) == header(kind=kind, base=base)


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_any_flipped_byte_of_a_header_is_noticed(at: int) -> None:
    packed = bytearray(header().pack())
    packed[at] ^= 0x40
    with pytest.raises(Damaged):
        FrameHeader.unpack(bytes(packed))


def test_a_newer_header_names_its_version() -> None:
    fields = bytearray(header().pack()[:80])
    fields[4] = 9
    with pytest.raises(TooNew, match="version 9"):
        FrameHeader.unpack(bytes(fields) + blake3(fields).digest(16))


def test_a_wild_length_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(Damaged, match="over the limit"):
        FrameHeader.unpack(header(length=(1 << 32) - 1).pack())


def test_a_payload_must_be_what_its_header_names() -> None:
    assert bytes(open_frame(header(), b"abc")) == b"abc"
    with pytest.raises(Damaged):
        open_frame(header(), b"abd")
    with pytest.raises(Damaged):
        open_frame(header(), b"ab")


def test_an_object_is_no_block_of_the_same_bytes() -> None:
    assert digest_of(b"abc", Kind.TREE) != digest_of(b"abc")
    with pytest.raises(Damaged):
        open_frame(header(kind=Kind.TREE), b"abc")


def test_a_pack_is_named_by_its_bytes_and_read_by_its_index(tmp_path: Path, sealed: SealedPack) -> None:
    assert sealed.name == blake3(sealed.path.read_bytes()).digest()
    final = publish(sealed, tmp_path / "packs")
    assert final == pack_path(tmp_path / "packs", sealed.name)
    with PackReader(final) as pack:
        entries = pack.index()
        assert entries == list(sealed.entries) == list(pack.scan())
        for data, entry in zip(BLOCKS, entries, strict=True):
            found, payload = pack.frame(entry.offset, entry.header.stored_bytes)
            assert bytes(open_frame(found, payload)) == data


def test_a_pack_of_nothing_has_an_index(tmp_path: Path) -> None:
    sealed = PackWriter(tmp_path / "a.tmp").seal()
    with PackReader(sealed.path) as pack:
        assert pack.index() == []


@pytest.mark.parametrize("where", ["head", "index", "footer", "cut"])
def test_a_broken_index_is_noticed_and_the_frames_are_found_all_the_same(sealed: SealedPack, where: str) -> None:
    data = bytearray(sealed.path.read_bytes())
    if where == "cut":
        del data[-100:]
    else:
        data[{"head": 0, "index": -64 - 88, "footer": -64}[where]] ^= 1
    sealed.path.write_bytes(data)
    with PackReader(sealed.path) as pack:
        with pytest.raises(Damaged):
            pack.index()
        assert list(pack.scan()) == list(sealed.entries)


def test_a_damaged_stretch_loses_only_its_own_frames(sealed: SealedPack) -> None:
    data = bytearray(sealed.path.read_bytes())
    second = sealed.entries[2]
    data[second.offset : second.offset + 200] = bytes(200)
    sealed.path.write_bytes(data)
    with PackReader(sealed.path) as pack:
        assert list(pack.scan()) == [sealed.entries[0], sealed.entries[1], sealed.entries[3]]


def test_a_discarded_pack_leaves_nothing(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "a.tmp")
    writer.add(Kind.BLOCK, digest_of(b"x"), 1, Encoded(Codec.RAW, b"x"))
    writer.discard()
    writer.discard()
    assert list(tmp_path.iterdir()) == []
