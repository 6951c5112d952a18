"""Tensors as arrays: equal to what was written, whatever the container, and every block read once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpu_train import load_tensors
from gpu_train.importer import import_checkpoints
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import NotFound, UsageError

Write = Callable[..., None]


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "large": rng.standard_normal((600, 1000), dtype=np.float32),
        "bits": rng.integers(0, 1 << 16, (700, 500), dtype=np.uint16),
        "half": rng.standard_normal((40, 5)).astype(np.float16),
        "ids": np.arange(7),
        "none": np.zeros((0, 3), np.float32),
    }


@pytest.fixture
def stored(workspace: Workspace, tmp_path: Path, safetensors: Write, arrays: dict[str, np.ndarray]) -> str:
    """Two checkpoints, of which the second is stored against the first."""
    for step in (1, 2):
        safetensors(tmp_path / "run" / f"checkpoint-{step}" / "model.safetensors", arrays)
        safetensors(tmp_path / "run" / f"checkpoint-{step}" / "more" / "extra.safetensors", {"extra": arrays["large"]})
        arrays["large"] = arrays["large"] * np.float32(1.0001)
    arrays["large"] = arrays["large"] / np.float32(1.0001)
    import_checkpoints(workspace, tmp_path / "run", "job")
    return "job@latest"


def test_all_tensors_come_back(stored: str, tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    from gpu_train_cas.formats import BytesSource, layout

    found = load_tensors(stored)
    data = (tmp_path / "run" / "checkpoint-2" / "model.safetensors").read_bytes()
    shape = layout(BytesSource(data), "model.safetensors")
    assert shape is not None
    for tensor in shape.tensors:
        if tensor.length:
            assert found[tensor.name].tobytes() == data[tensor.offset : tensor.offset + tensor.length]
    assert found["bits"].dtype == np.uint16
    assert found["large"].shape == (600, 1000)
    assert found["none"].shape == (0, 3)
    assert found["extra"].shape == (600, 1000)
    found["large"][0, 0] = 3  # memory of the caller's own


def test_a_path_and_names_narrow_it_down(stored: str) -> None:
    assert set(load_tensors(f"{stored}/model.safetensors", ["large", "ids"])) == {"large", "ids"}
    assert set(load_tensors(f"{stored}/more")) == {"extra"}
    with pytest.raises(NotFound, match="no tensor 'absent'"):
        load_tensors(stored, ["large", "absent"])
    with pytest.raises(NotFound):
        load_tensors(f"{stored}/nothing.safetensors")


def test_a_name_in_two_files_is_refused_with_the_way_out(
    workspace: Workspace, tmp_path: Path, safetensors: Write
) -> None:
    for file in ("a.safetensors", "b.safetensors"):
        safetensors(tmp_path / "checkpoint-1" / file, {"w": np.ones((300, 300), np.float32)})
    import_checkpoints(workspace, tmp_path / "checkpoint-1", "job")
    with pytest.raises(UsageError, match=r"REF/b\.safetensors"):
        load_tensors("job")
    assert set(load_tensors("job@latest/b.safetensors")) == {"w"}


def test_torch_tensors_have_torchs_types(stored: str) -> None:
    torch = pytest.importorskip("torch")
    found = load_tensors(stored, ["bits", "large", "half"], device="cpu")
    assert (found["bits"].dtype, found["large"].dtype, found["half"].dtype) == (
        torch.bfloat16, torch.float32, torch.float16,
    )  # fmt: skip
    plain = load_tensors(stored, ["bits"])
    assert found["bits"].view(torch.uint16).numpy().tobytes() == plain["bits"].tobytes()
