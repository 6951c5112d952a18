"""What kind of checkpoint it is, by its files, and what it was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_train import Workspace, import_checkpoints
from gpu_train.kind import BASE_MODEL_LIMIT, Kind, kind_of, stored_kind

ADAPTER = json.dumps({"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.2-1B"}).encode()
CASES: list[tuple[str, dict[str, bytes], Kind]] = [
    ("nothing", {}, Kind("full")),
    ("a model", {"model.safetensors": b"w", "optimizer.pt": b"o"}, Kind("full")),
    ("a fine-tune", {"model.safetensors": b"w", "config.json": b'{"_name_or_path": "gpt2"}'}, Kind("full", "gpt2")),
    ("an adapter", {"adapter_model.safetensors": b"w", "adapter_config.json": ADAPTER},
     Kind("lora", "meta-llama/Llama-3.2-1B")),
    ("an adapter in a folder", {"policy/adapter_config.json": ADAPTER}, Kind("lora", "meta-llama/Llama-3.2-1B")),
    ("one too far down to speak for all", {"a/b/adapter_config.json": ADAPTER, "model.pt": b"w"}, Kind("full")),
    ("an adapter beside its merged model", {"adapter_config.json": ADAPTER, "model.safetensors": b"w"},
     Kind("full", "meta-llama/Llama-3.2-1B")),
    ("the adapter's word goes first", {"adapter_config.json": ADAPTER, "config.json": b'{"_name_or_path": "other"}'},
     Kind("lora", "meta-llama/Llama-3.2-1B")),
    ("an adapter of nothing known", {"adapter_config.json": b'{"base_model_name_or_path": null}'}, Kind("lora")),
    ("a broken config", {"adapter_config.json": b"{", "config.json": b"[1]"}, Kind("lora")),
    ("not UTF-8", {"config.json": b'{"_name_or_path": "\xff"}'}, Kind("full")),
    ("nested without end", {"config.json": b"[" * 100_000}, Kind("full")),
    ("no text", {"config.json": b'{"_name_or_path": 5}'}, Kind("full")),
    ("a long name", {"config.json": b'{"_name_or_path": "%s"}' % (b"x" * 10_000)},
     Kind("full", "x" * BASE_MODEL_LIMIT)),
    ("torch.distributed.checkpoint", {".metadata": b"m", "__0_0.distcp": b"d"}, Kind("dcp")),
    ("the same within a Trainer's", {"pytorch_model_fsdp_0/.metadata": b"m", "pytorch_model_fsdp_0/__0_0.distcp": b"d"},
     Kind("dcp")),
    ("shards without .metadata", {"__0_0.distcp": b"d"}, Kind("full")),
]  # fmt: skip


@pytest.mark.parametrize(("files", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_kind(files: dict[str, bytes], wanted: Kind) -> None:
    assert kind_of(files, files.get) == wanted


def test_what_cannot_be_read_says_nothing() -> None:
    assert kind_of(["adapter_config.json", "config.json"], lambda path: None) == Kind("lora")


def test_it_is_found_when_a_checkpoint_is_stored_and_in_the_store(tmp_path: Path) -> None:
    for name, files in {"adapter": CASES[3][1], "model": CASES[2][1]}.items():
        folder = tmp_path / "run" / f"checkpoint-{len(name)}"
        folder.mkdir(parents=True)
        for path, data in files.items():
            (folder / path).write_bytes(data)
        (folder / "trainer_state.json").write_text("{}")
    with Workspace.open(tmp_path / "home") as workspace:
        import_checkpoints(workspace, tmp_path / "run", "run")
        rows = workspace.checkpoints.list()
        assert [(row.kind, row.base_model) for row in rows] == [CASES[3][2], CASES[2][2]]
        for row in rows:
            assert row.record is not None
            root = workspace.store.record(row.record).root
            assert stored_kind(workspace.store.reader, root) == (row.kind, row.base_model)


def test_a_row_that_does_not_know_learns_it_with_the_same_content(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"w" * 100)
    (folder / "adapter_config.json").write_bytes(ADAPTER)
    with Workspace.open(tmp_path / "home") as workspace:
        [first] = import_checkpoints(workspace, folder, "run")
        workspace.checkpoints.put(first.checkpoint._replace(kind="", base_model=None))
        [again] = import_checkpoints(workspace, folder, "run")
        assert not again.is_new
        [row] = workspace.checkpoints.list()
        assert (row.kind, row.base_model) == CASES[3][2]
