"""Proofs, on files that are really there."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gpu_train.capture.finder import find_one
from gpu_train.capture.judge import Judge, Moment, Verdict


def safetensors(cut: int = 0) -> bytes:
    data = bytes(4096)
    header = json.dumps({"w": {"dtype": "F32", "shape": [1024], "data_offsets": [0, 4096]}}).encode()
    whole = struct.pack("<Q", len(header)) + header + data
    return whole[: len(whole) - cut]


def torch_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 100)
    return buffer.getvalue()


def judge(path: Path, rest_s: float = 0.0, written: bool = False, **moment: Any) -> Verdict:
    found = find_one(path)
    assert found is not None and found.members is not None
    moment = {"busy": found.busy, "beside": found.beside, **moment}
    asked = Moment(rest_s=rest_s, settle_s=2.0, is_written=lambda: written, **moment)
    return Judge().verdict(found.name, found.shape, found.members, lambda rel: f"{found.base}/{rel}", asked)


def folder(path: Path, **files: bytes) -> Path:
    path.mkdir()
    for name, data in files.items():
        (path / name.replace("__", ".")).write_bytes(data)
    return path


def test_a_single_file_that_proves_itself_is_whole_at_once(tmp_path: Path) -> None:
    (tmp_path / "ckpt.pt").write_bytes(torch_zip())
    assert judge(tmp_path / "ckpt.pt").proof == "files"
    assert judge(tmp_path / "ckpt.pt", written=True).missing == "a process has it open for writing"
    (tmp_path / "x-0001.safetensors").write_bytes(safetensors())
    assert judge(tmp_path / "x-0001.safetensors").proof == "files"


@pytest.mark.parametrize("data", [torch_zip()[:-5], b""])
def test_a_file_cut_short_never_is(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "ckpt.pt").write_bytes(data)
    for moment in ({}, {"ended": True, "clean_end": True}, {"deleted": True}):
        verdict = judge(tmp_path / "ckpt.pt", rest_s=99, **moment)
        assert "cut short" in verdict.missing


@pytest.mark.parametrize("data", [b"", b'{"global_step": 5', b'{"a": {}, ', b"[1, 2"])
def test_json_that_is_cut_short_is_no_sign(tmp_path: Path, data: bytes) -> None:
    path = folder(tmp_path / "checkpoint-5", trainer_state__json=data, training_args__bin=b"x")
    verdict = judge(path, rest_s=99, ended=True, clean_end=True)
    assert verdict.missing == "the rest of trainer_state.json (it is cut short)"


def test_an_opaque_file_must_rest(tmp_path: Path) -> None:
    (tmp_path / "w.pkl").write_bytes(b"bytes")
    assert not judge(tmp_path / "w.pkl", rest_s=1.9).is_whole
    assert judge(tmp_path / "w.pkl", rest_s=2.0).proof == "quiet"
    assert not judge(tmp_path / "w.pkl", rest_s=2.0, written=True).is_whole
    assert judge(tmp_path / "w.pkl", ended=True, clean_end=True).proof == "ended"
    assert "the job ended while" in judge(tmp_path / "w.pkl", ended=True).missing
    assert not judge(tmp_path / "w.pkl", deleted=True).is_whole


def test_a_model_file_waits_for_what_may_follow(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors())
    assert judge(tmp_path / "model.safetensors").missing == "it still changes"
    assert judge(tmp_path / "model.safetensors", rest_s=2.0).proof == "files"
    assert judge(tmp_path / "model.safetensors", deleted=True).proof == "files"


def test_the_trainers_marker(tmp_path: Path) -> None:
    path = folder(tmp_path / "checkpoint-5", model__safetensors=safetensors(), training_args__bin=torch_zip())
    assert judge(path, rest_s=99).missing == "trainer_state.json (hf-trainer)"
    assert judge(path, ended=True, clean_end=True).missing == "trainer_state.json (hf-trainer)"
    (path / "trainer_state.json").write_text("{}")
    assert judge(path, rest_s=0.1).missing == "it still changes"
    assert judge(path, rest_s=0.3).proof == "hf-trainer"
    assert judge(path, deleted=True).proof == "hf-trainer"
    assert judge(path, ended=True).proof == "hf-trainer"
    (path / "optimizer.pt").write_bytes(torch_zip()[:-3])
    assert "optimizer.pt" in judge(path, rest_s=9).missing


def test_half_a_marker_is_none(tmp_path: Path) -> None:
    path = folder(tmp_path / "checkpoint-5", model__safetensors=safetensors(), trainer_state__json=b'{"a": [1, 2')
    for moment in ({}, {"ended": True}, {"deleted": True}):
        assert judge(path, rest_s=99, **moment).missing == "the rest of trainer_state.json (it is cut short)"


def test_ranks_that_are_still_to_come(tmp_path: Path) -> None:
    path = folder(tmp_path / "checkpoint-5", trainer_state__json=b"{}", rng_state_0__pth=torch_zip())
    assert judge(path, rest_s=1, world_size=lambda: 4).missing == "the files of 3 of 4 ranks"
    assert judge(path, rest_s=2, world_size=lambda: 4).proof == "hf-trainer"
    assert judge(path, rest_s=1, world_size=lambda: 1).proof == "hf-trainer"
    assert judge(path, rest_s=1).proof == "hf-trainer"


def test_long_pauses_of_frameworks_without_a_sign(tmp_path: Path) -> None:
    path = folder(tmp_path / "checkpoint_0", model__safetensors=safetensors())
    assert judge(path, rest_s=29).missing == "it still changes"
    assert judge(path, rest_s=30).proof == "files"
    assert judge(path, rest_s=2, is_overtaken=lambda: True).proof == "files"
    assert judge(path, ended=True, clean_end=True).proof == "files"
    assert "the job ended while" in judge(path, rest_s=5, ended=True).missing


def test_a_copy_is_judged_without_what_lay_beside_it(tmp_path: Path) -> None:
    path = folder(tmp_path / "global_step5", mp_rank_00_model_states__pt=torch_zip())
    assert judge(path, rest_s=9).missing == "the name global_step5 in latest (deepspeed)"
    assert judge(path, rest_s=9, ended=True, is_copy=True).proof == "deepspeed"
    (tmp_path / "latest").write_text("global_step4")
    assert not judge(path, rest_s=9, ended=True, is_copy=True).is_whole
    (tmp_path / "latest").write_text("global_step6")
    assert judge(path, rest_s=9, ended=True, is_copy=True).proof == "deepspeed"


def test_signs_of_writing(tmp_path: Path) -> None:
    path = folder(tmp_path / "checkpoint-5", model__safetensors=safetensors())
    assert judge(path, rest_s=9).proof == "files"
    (path / "checkpoint-is-incomplete.txt").write_text("")
    says = "its end: checkpoint-is-incomplete.txt says that it is being written"
    assert judge(path, rest_s=9).missing == judge(path, rest_s=9, ended=True, clean_end=True).missing == says


def test_the_metadata_of_distributed_checkpoints(tmp_path: Path) -> None:
    path = folder(tmp_path / "step-5", __0_0__distcp=torch_zip())
    (path / "__0_0.distcp").write_bytes(torch_zip())
    (path / ".0_0.distcp").unlink()
    assert judge(path, rest_s=99).missing == ".metadata (torch-dcp)"
    (path / ".metadata").write_bytes(b"m")
    assert judge(path, rest_s=0.3).proof == "torch-dcp"


def test_missing_shards_are_named(tmp_path: Path) -> None:
    path = folder(tmp_path / "final", config__json=b"{}")
    (path / "model-00001-of-00003.safetensors").write_bytes(safetensors())
    assert judge(path, rest_s=9).missing == "model-00002-of-00003.safetensors, a shard, and 1 more"
    for number in (2, 3):
        (path / f"model-0000{number}-of-00003.safetensors").write_bytes(safetensors())
    assert judge(path, rest_s=9).proof == "files"
    index = {"weight_map": {"a": "model-00001-of-00003.safetensors", "b": "other.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert judge(path, rest_s=9).missing == "other.safetensors, which model.safetensors.index.json names"
    (path / "model.safetensors.index.json").write_text("[1]")
    assert judge(path, rest_s=9).is_whole


def test_shards_counted_from_zero(tmp_path: Path) -> None:
    path = folder(tmp_path / "x", a__json=b"{}")
    for number in (0, 1):
        (path / f"w-{number}-of-2.safetensors").write_bytes(safetensors())
    assert judge(path, rest_s=9).proof == "files"


def test_an_empty_folder_is_nothing_yet(tmp_path: Path) -> None:
    assert (
        judge(folder(tmp_path / "checkpoint-5"), rest_s=99, ended=True, clean_end=True).missing == "it has no files yet"
    )
