import io
import os
import zipfile

import numpy as np
import pytest

from gpu_train_cas.formats import BytesSource, FileSource, FormatError, UnknownFormat, layout, parse, self_proof
from gpu_train_cas.formats.source import Slice


class Counted(BytesSource):
    """Counts what is read of it."""

    reads = 0
    read_bytes = 0

    def pread(self, length: int, offset: int) -> bytes:
        data = super().pread(length, offset)
        self.reads, self.read_bytes = self.reads + 1, self.read_bytes + len(data)
        return data


@pytest.mark.parametrize("name", ["notes.txt", "model.bin", "x.pt", "x.ckpt", "x.distcp", "x.npy", "x.gguf", ""])
def test_opaque_files_cost_one_small_read(name):
    source = Counted(b"step 1 loss 2.5\n" * 10_000)
    assert layout(source, name) is None
    assert (source.reads, source.read_bytes) == (1, 16)
    assert self_proof(source, name) is None
    with pytest.raises(UnknownFormat):
        parse(source, name)


@pytest.mark.parametrize("data", [b'{"a": 1, "b": [1, 2, 3]}', b"\x10\0\0\0\0\0\0\0{", b"\0" * 100, b"{" * 100])
def test_what_only_resembles_safetensors_is_opaque(data):
    assert layout(BytesSource(data), "config.json") is None
    assert self_proof(BytesSource(data), "config.json") is None


@pytest.mark.parametrize(
    "name", ["x.safetensors", "x.pt", "x.pth", "x.ckpt", "x.npy", "x.npz", "x.gguf", "x.h5", "x.keras"]
)
def test_an_empty_file_of_that_name_is_not_complete(name):
    assert layout(BytesSource(b""), name) is None
    assert self_proof(BytesSource(b""), name) is False


@pytest.mark.parametrize("name", ["", "log.txt", "x.bin"])
def test_an_empty_file_of_another_name_proves_nothing(name):
    assert self_proof(BytesSource(b""), name) is None


def test_content_decides_where_it_can():
    out = io.BytesIO()
    np.save(out, np.ones(3))
    for name in ("x.npy", "x.gguf", "x.pt", ""):
        assert layout(BytesSource(out.getvalue()), name).format == "npy"


def test_other_zips_are_opaque_and_prove_themselves():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.txt", "x")
    assert layout(BytesSource(out.getvalue()), "a.zip") is None
    with pytest.raises(UnknownFormat):
        parse(BytesSource(out.getvalue()), "a.zip")
    assert self_proof(BytesSource(out.getvalue()), "a.zip") is True
    assert self_proof(BytesSource(out.getvalue()[:-1]), "a.zip") is False


def test_a_file_is_read_like_memory(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1000.0))
    fd = os.open(path, os.O_RDONLY)
    try:
        source = FileSource(fd)
        assert source.size_bytes == path.stat().st_size
        assert layout(source, "x.npy") == layout(BytesSource(path.read_bytes()), "x.npy")
        assert source.pread(10**6, 100) == path.read_bytes()[100:]
        assert source.pread(10, 10**6) == b""
    finally:
        os.close(fd)


def test_a_file_that_shrinks_while_it_is_read_is_broken(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(1000.0))
    fd = os.open(path, os.O_RDONLY)
    try:
        source = FileSource(fd)
        os.truncate(path, 50)
        with pytest.raises(FormatError, match="shrank"):
            parse(source, "x.npy")
        assert layout(source) is None
    finally:
        os.close(fd)


def test_an_unreadable_disk_is_no_opaque_file(tmp_path):
    with open(tmp_path / "x", "wb") as file, pytest.raises(OSError):  # open for writing alone
        layout(FileSource(file.fileno()))


def test_a_slice_ends_where_it_ends():
    part = Slice(BytesSource(b"0123456789"), 2, 5)
    assert part.pread(100, 0) == b"23456"
    assert part.pread(2, 3) == b"56"
    assert part.pread(2, 9) == b""
