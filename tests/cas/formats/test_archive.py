import io
import struct
import zipfile

import pytest

from gpu_train_cas.formats import self_proof as proved
from gpu_train_cas.formats.archive import MAX_RECORDS, read_archive
from gpu_train_cas.formats.layout import FormatError
from gpu_train_cas.formats.source import BytesSource


def zipped(members: dict[str, bytes], method=zipfile.ZIP_STORED, comment=b"", wide=False, aimless=False) -> bytes:
    out = io.BytesIO()
    target = Pipe(out) if aimless else out
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.comment = comment
        for name, data in members.items():
            with archive.open(name, "w", force_zip64=wide) as member:
                member.write(data)
    return out.getvalue()


class Pipe(io.RawIOBase):
    """Output that cannot be sought in, so that sizes follow the data."""

    def __init__(self, out):
        self.out = out

    def writable(self):
        return True

    def write(self, data):
        return self.out.write(data)


MEMBERS = {"a": b"x" * 100, "b/c": b"", "ü": b"y" * 3}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("comment", [b"", b"a comment"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("aimless", [False, True])
def test_what_zipfile_writes(method, comment, wide, aimless):
    data = zipped(MEMBERS, method, comment, wide, aimless)
    source = BytesSource(data)
    archive = read_archive(source, len(data))
    assert (archive.start, archive.end) == (0, len(data))
    assert {r.name: archive.inflate(source, r, 1000) for r in archive.records} == MEMBERS
    assert proved(source) is True


def test_an_archive_behind_another_is_found_from_its_own_end():
    first, second = zipped(MEMBERS), zipped({"z": b"1234"})
    source = BytesSource(first + second)
    last = read_archive(source, source.size_bytes)
    assert last.start == len(first)
    assert source.pread(4, last.data_offset(source, last.records[0])) == b"1234"
    assert len(read_archive(source, last.start).records) == 3


def test_more_than_65535_records_take_the_wide_directory():
    data = zipped({str(n): b"" for n in range(66_000)})
    assert len(read_archive(BytesSource(data), len(data)).records) == 66_000


@pytest.mark.parametrize("cut", [0, 1, 21, 22, 30, 130, -1, -22])
def test_cut_short(cut):
    data = zipped(MEMBERS)[:cut]
    with pytest.raises(FormatError, match="end"):
        read_archive(BytesSource(data), len(data))
    assert proved(BytesSource(data)) is (False if len(data) >= 4 else None)


def test_a_zip_bomb_is_not_inflated():
    data = zipped({"data.pkl": bytes(50 << 20)}, zipfile.ZIP_DEFLATED)
    source = BytesSource(data)
    archive = read_archive(source, len(data))
    with pytest.raises(FormatError, match="larger than"):
        archive.inflate(source, archive.records[0], 1 << 20)
    at = data.rfind(b"PK\x01\x02")
    lying = bytearray(data)
    struct.pack_into("<I", lying, at + 24, 1000)  # the directory now says 1,000 bytes
    source = BytesSource(lying)
    archive = read_archive(source, len(data))
    with pytest.raises(FormatError, match="claims"):
        archive.inflate(source, archive.records[0], 1 << 20)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (10, struct.pack("<H", 2)),
        (10, struct.pack("<H", 9)),
        (12, struct.pack("<I", 10)),
        (12, struct.pack("<I", 2**32 - 2)),
        (16, struct.pack("<I", 2**32 - 2)),
        (4, struct.pack("<H", 1)),
        (20, struct.pack("<H", 5)),
    ],
)
def test_a_lying_end_record(field, value):
    data = bytearray(zipped(MEMBERS))
    at = len(data) - 22 + field
    data[at : at + len(value)] = value
    with pytest.raises(FormatError):
        read_archive(BytesSource(data), len(data))


@pytest.mark.parametrize(
    ("field", "form", "value"),
    [
        (0, "<I", 0),
        (8, "<H", 1),
        (20, "<I", 99),
        (28, "<H", 2000),
        (28, "<H", 65535),
        (30, "<H", 999),
        (42, "<I", 5000),
    ],
)
def test_a_lying_directory(field, form, value):
    data = bytearray(zipped(MEMBERS))
    struct.pack_into(form, data, data.index(b"PK\x01\x02") + field, value)
    with pytest.raises(FormatError):
        read_archive(BytesSource(data), len(data))


def test_wide_numbers_that_are_missing():
    data = bytearray(zipped(MEMBERS))
    at = data.index(b"PK\x01\x02")
    struct.pack_into("<2I", data, at + 20, 2**32 - 1, 2**32 - 1)
    with pytest.raises(FormatError):
        read_archive(BytesSource(data), len(data))


def test_too_many_records_are_refused_before_they_are_read():
    end = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2**40, 2**40, 0, 0)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, 0, 1)
    data = end + locator + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0, 0, 0)
    with pytest.raises(FormatError, match="beyond"):
        read_archive(BytesSource(data), len(data))
    assert MAX_RECORDS < 2**40


def test_a_local_header_that_is_not_there():
    data = bytearray(zipped(MEMBERS))
    last = data.rindex(b"PK\x03\x04")
    data[last : last + 4] = b"nope"
    assert proved(BytesSource(data)) is False
