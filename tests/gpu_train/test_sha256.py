from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gpu_train.sha256 import BATCH_FILES, READ_AHEAD_FROM_BYTES, READ_BYTES, ToHash, hash_files
from gpu_train_cas import Progress
from gpu_train_cas.errors import SourceChanged

SIZES = [0, 1, 1000, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, READ_AHEAD_FROM_BYTES - 1]
LARGE = [READ_AHEAD_FROM_BYTES, READ_AHEAD_FROM_BYTES + 1, READ_AHEAD_FROM_BYTES + 5 * READ_BYTES]


def to_hash(path: Path) -> ToHash:
    return ToHash(path.name.encode(), os.fsencode(path), path.stat().st_size)


@pytest.mark.parametrize("threads", [1, 3])
def test_sizes_around_the_buffers(tmp_path: Path, threads: int) -> None:
    files = []
    for size in SIZES + LARGE:
        files.append(tmp_path / f"f{size}")
        files[-1].write_bytes(os.urandom(size))
    found = hash_files([to_hash(f) for f in files], threads=threads)
    assert {name: digest for name, (_, digest) in found.items()} == {
        f.name.encode(): hashlib.sha256(f.read_bytes()).digest() for f in files
    }
    assert {name: signature[0] for name, (signature, _) in found.items()} == {
        f.name.encode(): f.stat().st_size for f in files
    }


def test_progress_ends_at_the_sums(tmp_path: Path) -> None:
    count = 3 * BATCH_FILES + 1
    for n in range(count):
        (tmp_path / str(n)).write_bytes(bytes(n))
    seen: list[tuple[int, int]] = []

    def note(progress: Progress) -> None:
        seen.append((progress.files_done, progress.done_bytes))
        assert (progress.phase, progress.files_total) == ("hashing", count)
        assert progress.total_bytes == sum(range(count))

    hash_files([to_hash(tmp_path / str(n)) for n in range(count)], progress=note)
    assert seen[-1] == (count, sum(range(count)))
    assert seen == sorted(seen)


def test_nothing_to_do() -> None:
    assert hash_files([]) == {}


def test_a_file_that_vanished_is_named(tmp_path: Path) -> None:
    for n in range(200):
        (tmp_path / str(n)).write_bytes(b"x")
    files = [to_hash(tmp_path / str(n)) for n in range(200)]
    (tmp_path / "77").unlink()
    with pytest.raises(SourceChanged, match="/77 vanished"):
        hash_files(files)


def test_a_file_that_became_a_fifo_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    files = [to_hash(tmp_path / "f")]
    (tmp_path / "f").unlink()
    os.mkfifo(tmp_path / "f")
    with pytest.raises(SourceChanged, match="replaced"):
        hash_files(files)
