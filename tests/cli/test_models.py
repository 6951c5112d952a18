"""Base models from the command line, and how small a file gets."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

Write = Callable[..., None]


def weights() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32)


def test_models_are_added_listed_and_removed(program, tmp_path: Path, safetensors: Write) -> None:
    safetensors(tmp_path / "mini" / "model.safetensors", {"w": weights()})
    assert "models add NAME|PATH" in program("models").stderr
    added = json.loads(program("models", "add", tmp_path / "mini", "-o", "json").stdout)
    assert (added["name"], added["files"], added["source"]) == ("mini", 1, str(tmp_path / "mini"))
    assert "was registered before" in program("models", "add", tmp_path / "mini").stderr
    (row,) = json.loads(program("models", "-o", "json").stdout)["models"]
    assert row["name"] == "mini"
    assert program("model", "list", "-q").stdout == "mini\n"
    assert "trash" in program("models", "rm", "mini").stderr
    assert json.loads(program("models", "-o", "json").stdout)["models"] == []
    assert program("models", "rm", "mini", code=3).stderr.startswith("gpu-train: error: no model 'mini'")
    assert "hf download org/none" in program("models", "add", "org/none", code=3).stderr


def test_a_file_is_shown_by_class_and_codec(program, tmp_path: Path, safetensors: Write) -> None:
    arrays = {"layer.w": weights(), "o.0.exp_avg": weights() * 1e-3, "o.0.exp_avg_sq": weights() ** 2}
    safetensors(tmp_path / "a.safetensors", arrays)
    safetensors(tmp_path / "b.safetensors", {name: array * np.float32(1.0001) for name, array in arrays.items()})
    alone = json.loads(program("debug", "codec", tmp_path / "b.safetensors", "-o", "json").stdout)
    against = program("debug", "codec", tmp_path / "b.safetensors", "--base", tmp_path / "a.safetensors", "-o", "json")
    based = json.loads(against.stdout)
    assert {row["class"] for row in alone["classes"]} >= {"weights", "exp_avg", "exp_avg_sq"}
    assert {row["codec"] for row in based["classes"] if row["class"] == "weights"} == {"delta"}
    assert based["stored_bytes"] < alone["stored_bytes"]
    assert based["original_bytes"] == (tmp_path / "b.safetensors").stat().st_size
    assert "RATIO" in program("debug", "codec", tmp_path / "b.safetensors").stdout
    assert not (program.home / "registry").exists()
