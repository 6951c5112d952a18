"""Reading checkpoints' files, and the newest as plain files."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path

import pytest

import gpu_train
from gpu_train import Workspace, import_checkpoints, retention
from gpu_train_cas.errors import NotFound, UsageError

DATA = random.Random(3).randbytes(3_000_000)


@pytest.fixture(autouse=True)
def _stored(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "w.bin").write_bytes(DATA)
    (folder / "empty.bin").write_bytes(b"")
    import_checkpoints(workspace, folder, "run")
    (tmp_path / "ckpt.pkl").write_bytes(DATA[:1000])
    import_checkpoints(workspace, tmp_path / "ckpt.pkl", "single")


def test_what_is_removed_stays_readable_until_it_is_closed(workspace: Workspace) -> None:
    with gpu_train.open("run@checkpoint-5/sub/w.bin") as file:
        row, _ = workspace.checkpoints.resolve("run@checkpoint-5")
        retention.remove(workspace, [row])
        assert workspace.store.gc(trash_days=0).records == []
        assert file.read() == DATA
    assert workspace.store.gc(trash_days=0).records == [row.record]


def test_a_file_object() -> None:
    with gpu_train.open("run@checkpoint-5/sub/w.bin") as file:
        assert file.readable() and file.seekable() and not file.writable()
        assert file.size_bytes == len(DATA)
        assert file.read(10) == DATA[:10]
        assert file.tell() == 10
        assert file.seek(-5, os.SEEK_END) == len(DATA) - 5
        assert file.read() == DATA[-5:]
        assert file.read(1) == b""
        assert file.seek(len(DATA) + 100) == len(DATA) + 100
        assert file.read(1) == b""
        file.seek(1_048_570)
        buffer = bytearray(20)
        assert file.readinto(buffer) == 20
        assert buffer == DATA[1_048_570:1_048_590]
        assert file.pread(7, 99) == DATA[99:106]
        assert file.tell() == 1_048_590
        with pytest.raises(ValueError, match="cannot seek to -1"):
            file.seek(-1)
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read(1)
    file.close()


def test_other_readers_can_use_it() -> None:
    with io.BufferedReader(gpu_train.open("run/sub/w.bin")) as file:
        assert file.read() == DATA


def test_empty_and_single_files() -> None:
    with gpu_train.open("run@latest/empty.bin") as file:
        assert file.read() == b""
    with gpu_train.open("single@latest") as file:
        assert file.read() == DATA[:1000]


def test_what_cannot_be_opened() -> None:
    with pytest.raises(UsageError, match="is a directory, not a file"):
        gpu_train.open("run@latest/sub")
    with pytest.raises(NotFound):
        gpu_train.open("run@latest/none")
    with pytest.raises(NotFound):
        gpu_train.open("nobody@latest/none")


def test_the_newest_as_plain_files(tmp_path: Path, home: Path) -> None:
    assert gpu_train.latest_checkpoint("run") == tmp_path / "checkpoint-5"
    (tmp_path / "ckpt.pkl").unlink()
    restored = gpu_train.latest_checkpoint("single")
    assert restored is not None
    assert restored.is_file() and restored.read_bytes() == DATA[:1000]
    assert restored.is_relative_to(home / "artifacts")
    assert gpu_train.latest_checkpoint("single") == restored


def test_outside_of_a_job_there_is_none_to_go_on_from() -> None:
    assert gpu_train.latest_checkpoint() is None
