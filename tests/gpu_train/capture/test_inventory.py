from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from gpu_train.capture.finder import Member, look_inside
from gpu_train.capture.frameworks import KNOWN
from gpu_train.capture.inventory import absent_files, is_torn, ranks_written, told


def missing(folder: Path, name: str = "x", **files: bytes) -> str:
    """What is missing of a checkpoint with those files; `__` stands for a dot, `___` for a slash."""
    for key, data in files.items():
        path = folder / key.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    members, _ = look_inside(str(folder))
    found = {rel: m for rel, m in members.items() if m.is_file}
    return told(absent_files(found, KNOWN.rule_for(name, found), lambda rel: str(folder / rel)))


def ranks(name: str, *files: str) -> str:
    there = {rel: Member(stat.S_IFREG, 1, at, 1, 1, 0) for at, rel in enumerate(files)}
    rule = KNOWN.rule_for(name, there)
    assert rule is not None
    return told(absent_files(there, rule, lambda rel: "/nowhere"))


@pytest.mark.parametrize(
    ("name", "files", "says"),
    [
        ("checkpoint-5", ("rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"), ""),
        ("checkpoint-5", ("rng_state_0.pth", "rng_state_3.pth"), "rng_state_1.pth, of rank 1, and 1 more"),
        ("checkpoint-5", ("rng_state_8.pth", "rng_state_9.pth"), ""),  # the second node's disk
        (
            "checkpoint-5",
            ("rng_state_0.pth", "pytorch_model_fsdp_0/__0_0.distcp", "pytorch_model_fsdp_0/__1_0.distcp"),
            "rng_state_1.pth, of rank 1",
        ),
        ("s", ("random_states_0.pkl", "random_states_2.pkl"), "random_states_1.pkl, of rank 1"),
        (
            "global_step5",
            ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
             "zero_pp_rank_1_mp_rank_01_optim_states.pt"),
            "mp_rank_01_model_states.pt, of mp 1, and 2 more",
        ),
        (
            "checkpoint-5",
            ("training_args.bin", "global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt", "rng_state_0.pth",
             "global_step5/zero_pp_rank_2_mp_rank_00_optim_states.pt"), "rng_state_1.pth, of rank 1, and 1 more",
        ),
        ("iter_0000005", ("mp_rank_00_000/model_optim_rng.pt", "mp_rank_01_001/model_optim_rng.pt"),
         "mp_rank_00_001/model_optim_rng.pt, of tp 0 and pp 1, and 1 more"),
        ("ep1-ba2", ("ep1-ba2-rank0.pt", "ep1-ba2-rank2.pt"), "ep1-ba2-rank1.pt, of rank 1"),
        ("step-5", ("__0_0.distcp", "__7_0.distcp"), ""),  # a rank without any shard writes no file
    ],
)  # fmt: skip
def test_ranks_that_wrote_nothing(name: str, files: tuple[str, ...], says: str) -> None:
    assert ranks(name, *files) == says


def test_how_many_ranks_wrote() -> None:
    there = {
        f"actor/model_world_size_4_rank_{rank}.pt": Member(stat.S_IFREG, 1, rank, 1, 1, 0) for rank in (0, 1)
    }  # fmt: skip
    rule = KNOWN.rule_for("global_step_5", there)
    assert rule is not None
    assert ranks_written(there, rule) == (2, 4)


def test_shards_that_say_how_many_they_are(tmp_path: Path) -> None:
    assert missing(tmp_path / "a", w_0_of_2__bin=b"") == ""
    (tmp_path / "b").mkdir()
    for name in ("w-0-of-3.bin", "w-1-of-3.bin"):
        (tmp_path / "b" / name).write_bytes(b"")
    assert missing(tmp_path / "b") == "w-2-of-3.bin, a shard"
    (tmp_path / "b" / "w-2-of-3.bin").write_bytes(b"")
    assert missing(tmp_path / "b") == ""
    (tmp_path / "b" / "v-00003-of-00003.bin").write_bytes(b"")
    assert missing(tmp_path / "b") == "v-00001-of-00003.bin, a shard, and 1 more"


@pytest.mark.filterwarnings("ignore")  # torch's own, about a single process
def test_shards_that_a_distributed_checkpoint_lists(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemWriter

    writer = FileSystemWriter(tmp_path / "step-5", single_file_per_rank=False)
    dcp.save({"a": torch.ones(3), "b": torch.ones(4)}, storage_writer=writer, no_dist=True)
    assert missing(tmp_path / "step-5") == ""
    (tmp_path / "step-5" / "__0_1.distcp").unlink()
    assert missing(tmp_path / "step-5") == "__0_1.distcp, which .metadata lists"


def test_what_indexes_name(tmp_path: Path) -> None:
    pipeline = {"_class_name": "P", "unet": ["d", "U"], "vae": ["d", "V"], "safety": [None, None], "scale": 2}
    assert missing(tmp_path / "p", model_index__json=json.dumps(pipeline).encode(), unet___w__bin=b"w") == (
        "vae, which model_index.json names"
    )
    modules = [{"path": ""}, {"path": "1_Pooling"}]
    assert missing(tmp_path / "s", modules__json=json.dumps(modules).encode()) == (
        "1_Pooling, which modules.json names"
    )
    assert missing(tmp_path / "s", **{"1_Pooling___config__json": b"{}"}) == ""
    index = {"weight_map": {"a": "m-1.bin"}}
    assert missing(tmp_path / "i", sub___m__bin__index__json=json.dumps(index).encode()) == (
        "sub/m-1.bin, which sub/m.bin.index.json names"
    )
    for broken in (b"{", b"[1]", b'{"weight_map": 3}', b'{"weight_map": {"a": 3, "b": "/etc/passwd", "c": "../x"}}'):
        assert missing(tmp_path / "b", m__index__json=broken) == ""


def test_an_orbax_checkpoint_without_its_commit(tmp_path: Path) -> None:
    assert "its commit" in missing(tmp_path / "5", _CHECKPOINT_METADATA=b'{"commit_timestamp_nsecs": null}')
    assert missing(tmp_path / "5", _CHECKPOINT_METADATA=b'{"commit_timestamp_nsecs": 7}') == ""
    assert missing(tmp_path / "5", _CHECKPOINT_METADATA=b"{}") == ""


@pytest.mark.parametrize(
    ("name", "data", "torn"),
    [
        ("trainer_state.json", b'{"a": [1, {"b": 2}]}', False), ("trainer_state.json", b'{"a": [1, {"b": 2}', True),
        ("trainer_state.json", b"", True), ("x.index", b"abc", True), ("x.index", b"", True),
        (".metadata", b"x", False), ("x.index", b"abc" + bytes.fromhex("57fb808b247547db"), False),
    ],
)  # fmt: skip
def test_half_a_sign(tmp_path: Path, name: str, data: bytes, torn: bool) -> None:
    (tmp_path / name).write_bytes(data)
    assert is_torn(name, str(tmp_path / name)) is torn
