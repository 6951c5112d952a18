"""Trees that file systems allow and tools forget come back as they were: names, links, holes, sheer numbers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

HOLE = 8 << 20


def odd_tree(root: Path) -> None:
    """A checkpoint's folder with all that is seldom in one."""
    root.mkdir(parents=True)
    (root / "trainer_state.json").write_text('{"global_step": 7, "log_history": []}')
    for name in (b"caf\xe9", b"\xff\xfe", b"with space", b"new\nline", b"-rf", b"%41", b"a\\b", "日本".encode()):
        (root / os.fsdecode(name)).write_bytes(b"content of " + name)
    folder = root / os.fsdecode(b"folder \xf0")
    folder.mkdir()
    (folder / os.fsdecode(b"inner \x80")).write_bytes(random.Random(1).randbytes(300_000))
    (root / "empty folder" / "in it another").mkdir(parents=True)
    (root / "zero bytes").touch()
    (root / "relative link").symlink_to("trainer_state.json")
    (root / "dangling link").symlink_to("nowhere/at all")
    (root / os.fsdecode(b"link \xe9")).symlink_to(os.fsdecode(b"caf\xe9"))
    with (root / "sparse.bin").open("wb") as file:
        file.write(b"head")
        file.seek(HOLE)
        file.write(b"middle")
        file.truncate(2 * HOLE + 5)
    with (root / "only hole.bin").open("wb") as file:
        file.truncate(HOLE)
    (root / "secret").write_bytes(b"key")
    (root / "secret").chmod(0o600)
    (root / "program").write_bytes(b"#!/bin/sh\n")
    (root / "program").chmod(0o755)
    (root / "empty folder").chmod(0o700)
    for i, path in enumerate(sorted(root.rglob("*"))):
        os.utime(path, ns=(0, 1_500_000_000_123_456_789 + i * 10**9), follow_symlinks=False)


def test_odd_names_links_empty_folders_and_sparse_files_come_back(shell, facts, tmp_path):
    source = tmp_path / "run" / "checkpoint-7"
    odd_tree(source)
    shell(f"gpu-train checkpoints import {source} --job odd")
    shell("gpu-train checkpoints restore odd@checkpoint-7 --dest restored")
    restored = shell.folder / "restored"
    assert facts(restored) == facts(source)
    for name in ("sparse.bin", "only hole.bin"):
        before, after = (source / name).stat(), (restored / name).stat()
        if before.st_blocks * 512 < before.st_size:  # this file system has holes
            assert after.st_blocks * 512 < HOLE, f"{name} takes {after.st_blocks * 512} bytes on disk"


def many_files(root: Path, count: int) -> None:
    """Small files of 0 to 2 KiB, a hundred to a folder; no name looks like a step, so they are one checkpoint."""
    rng = random.Random(2)
    letters = "abcdefghij"
    for i in range(count):
        name = "".join(letters[int(digit)] for digit in f"{i:06d}")
        folder = root / name[:2] / name[2:4]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_bytes(rng.randbytes(rng.randrange(2048)))


def small_files_round_trip(shell, facts, source: Path, count: int) -> None:
    many_files(source, count)
    shell(f"gpu-train checkpoints import {source} --job many", timeout_s=1200)
    shell("gpu-train checkpoints restore many@checkpoint-1 --dest restored", timeout_s=1200)
    found = facts(shell.folder / "restored")
    assert sum(one.kind == "file" for one in found.values()) == count
    assert found == facts(source)


def test_5_000_small_files_come_back(shell, facts, tmp_path):
    small_files_round_trip(shell, facts, tmp_path / "checkpoint-1", 5_000)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_100_000_small_files_come_back(shell, facts, tmp_path):
    small_files_round_trip(shell, facts, tmp_path / "checkpoint-1", 100_000)
