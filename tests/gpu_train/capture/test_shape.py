from __future__ import annotations

import pytest

from gpu_train.capture.shape import is_checkpoint_folder, is_never, is_step_named, loose_group, single_files


@pytest.mark.parametrize(
    "name",
    ["tmp-checkpoint-500", "x.tmp", "x.tmp.123", "x.partial", "5.orbax-checkpoint-tmp-12", ".hidden", "a-unfinished",
     "x.incomplete", "x.lock", "__pycache__"],
)  # fmt: skip
def test_temporary_names(name: str) -> None:
    assert is_never(name)


@pytest.mark.parametrize("name", ["checkpoint-500", "temperature", "tmpl", "partial.pt", "a.b", "500", "é\udcff"])
def test_names_that_are_not_temporary(name: str) -> None:
    assert not is_never(name)


@pytest.mark.parametrize(
    "name",
    ["checkpoint-500", "checkpoint_0", "step-500", "step500", "global_step500", "iter_0000500", "epoch_3", "500",
     "epoch=3-step=500", "my-checkpoint-5", "ckpt-1", "checkpoint-500-final"],
)  # fmt: skip
def test_folders_named_like_steps(name: str) -> None:
    assert is_step_named(name)


@pytest.mark.parametrize("name", ["run", "run-name", "weights", "checkpoints", "lightning_logs", "version_0", "best"])
def test_folders_not_named_like_steps(name: str) -> None:
    assert not is_step_named(name)


@pytest.mark.parametrize(
    ("name", "files", "folders"),
    [
        ("checkpoint-5", ["model.safetensors"], []),
        ("checkpoint-5", [], []),
        ("500", [], ["default", "metrics"]),
        ("global_step5", ["mp_rank_00_model_states.pt"], []),
        ("final", ["model.safetensors", "config.json"], []),
        ("final", ["model-00001-of-00002.safetensors"], []),
        ("adapter", ["adapter_config.json"], []),
        ("pipeline", ["model_index.json"], ["unet", "vae"]),
        ("dcp", [".metadata"], []),
        ("checkpoint-5", ["w.pt"], ["checkpoint-1"]),
        ("my-state", ["model.safetensors", "random_states_10.pkl", "custom_checkpoint_0.pkl"], []),
        ("pipeline", [], ["unet", "vae"]),
        ("my-state", [], ["pytorch_model_fsdp_0"]),
        ("my-state", [], ["pytorch_model"]),
        ("export", [], ["variables"]),
        ("nemo--val_loss=1.0-step=9-last", [], ["weights", "context"]),
        ("ep1-ba100", ["__0_0.distcp"], []),
    ],
)
def test_folders_that_are_one_checkpoint(name: str, files: list[str], folders: list[str]) -> None:
    assert is_checkpoint_folder(name, files, folders)


@pytest.mark.parametrize(
    ("name", "files", "folders"),
    [
        ("run", [], ["checkpoint-5"]),
        ("run", ["model.safetensors", "config.json"], ["checkpoint-5"]),
        ("epoch_3", [], ["checkpoint-5"]),
        ("weights", ["last.pt", "best.pt"], []),
        ("out", ["checkpoint-5.pth.tar"], []),
        ("checkpoints", ["checkpoint1.pt"], []),
        ("checkpoints", ["ep1-ba100-rank0.pt", "ep1-ba100-rank1.pt"], []),
        ("tf", ["ckpt-1.index", "ckpt-1.data-00000-of-00001"], []),
        ("run", [], ["unet", "logs"]),
        ("checkpoints", ["epoch=3-step=500.ckpt", "last.ckpt"], []),
        ("lora", ["name-000100.safetensors", "name-000200.safetensors"], []),
        ("logs", ["events.out"], []),
        ("lightning_logs", [], ["version_0"]),
        ("new", [], []),
    ],
)
def test_folders_that_hold_checkpoints_or_none(name: str, files: list[str], folders: list[str]) -> None:
    assert not is_checkpoint_folder(name, files, folders)


def test_files_in_a_container() -> None:
    files = {"ckpt.pt", "notes.txt", "model.safetensors", "config.json", "training_args.bin", "x.pt.tmp", "best.ckpt"}
    assert loose_group(files) == {"model.safetensors", "config.json", "training_args.bin"}
    assert single_files(files) == {"ckpt.pt", "best.ckpt"}


def test_files_without_an_ending_and_with_two() -> None:
    assert single_files({"checkpoint_500", "checkpoint", "ckpt-5", "last.pth.tar", "x.tar", "notes-5"}) == {
        "checkpoint_500", "ckpt-5", "last.pth.tar",
    }  # fmt: skip


def test_a_lonely_model_file_stands_for_itself() -> None:
    assert loose_group({"model.safetensors", "ckpt.pt"}) == set()
    assert single_files({"model.safetensors", "ckpt.pt"}) == {"model.safetensors", "ckpt.pt"}
    assert loose_group({"config.json", "README.md"}) == set()
    assert loose_group({"model-00001-of-00002.safetensors"}) == {"model-00001-of-00002.safetensors"}
