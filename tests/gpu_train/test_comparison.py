"""Figures and differences of stored tensors against numpy and torch on the whole arrays, and what need not be read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpu_train
from gpu_train.comparison import Comparison, TensorChange
from gpu_train.elements import values_of
from gpu_train.importer import import_checkpoints
from gpu_train.tensor_stats import TensorStats, stats_of_bytes
from gpu_train.tensors import TORCH
from gpu_train.workspace import Workspace
from gpu_train_cas import Reader
from gpu_train_cas.errors import Damaged
from gpu_train_cas.pack import PackReader

Write = Callable[..., None]
NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


def test_eight_bit_floats_mean_what_torch_says() -> None:
    torch = pytest.importorskip("torch")
    for dtype, own in TORCH.items():
        if dtype != "BF16":
            expected = torch.arange(256, dtype=torch.uint8).view(getattr(torch, own)).to(torch.float32).numpy()
            np.testing.assert_array_equal(values_of(dtype), expected, dtype)


@given(st.lists(st.lists(NUMBERS, max_size=20), min_size=1, max_size=5))
def test_figures_of_chunks_are_those_of_the_whole(chunks: list[list[float]]) -> None:
    found = TensorStats()
    for chunk in chunks:
        found.add(stats_of_bytes(np.array(chunk, "<f4").tobytes(), "F32"))
    whole = np.array([n for chunk in chunks for n in chunk], np.float32).astype(np.float64)
    finite = whole[np.isfinite(whole)]
    assert (found.elements, found.finite, found.zeros) == (whole.size, finite.size, int((whole == 0).sum()))
    assert (found.nans, found.infinities) == (int(np.isnan(whole).sum()), int(np.isinf(whole).sum()))
    if finite.size:
        scale = float(np.abs(finite).max())
        assert (found.least, found.largest) == (finite.min(), finite.max())
        assert found.mean == pytest.approx(finite.mean(), rel=1e-9, abs=1e-12 * scale)
        assert found.std == pytest.approx(finite.std(), rel=1e-9, abs=1e-9 * scale)
        assert found.norm == pytest.approx(np.linalg.norm(finite / (scale or 1)) * scale, rel=1e-9)
    else:
        assert (found.least, found.mean, found.std, found.norm) == (None, None, None, None)


def test_figures_of_other_types() -> None:
    found = stats_of_bytes(np.array([2**63 - 1, -(2**63), 0]).tobytes(), "I64")
    assert (found.least, found.largest, found.zeros) == (-(2**63), 2**63 - 1, 1)
    assert stats_of_bytes(b"\0\1\2", "BOOL").mean == pytest.approx(2 / 3)
    found = stats_of_bytes(np.array([3 + 4j, complex("nan"), 0], np.complex64).tobytes(), "C64")
    assert (found.norm, found.mean, found.nans, found.zeros, found.elements) == (5.0, None, 1, 1, 3)
    assert stats_of_bytes(b"\x80\x3f\xc0\x7f", "BF16").nans == 1


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {
        "large": rng.standard_normal((700, 1000), dtype=np.float32),
        "same": rng.standard_normal((700, 400), dtype=np.float32),
        "bits": rng.integers(0, 0x4000, (700, 1000), dtype=np.uint16),
        "small": rng.standard_normal(40, dtype=np.float32),
        "quiet": rng.standard_normal(30, dtype=np.float32),
        "ids": np.array([2**60, 2**60 + 1]),
    }


def by_name(found: Comparison) -> dict[str, TensorChange]:
    return {change.name: change for change in found.tensors}


@pytest.fixture
def store(workspace: Workspace, tmp_path: Path) -> Callable[[str], str]:
    def store(name: str) -> str:
        import_checkpoints(workspace, tmp_path / name, name)
        return name

    return store


def test_a_single_file_against_shards_that_changed(
    store: Callable[[str], str], tmp_path: Path, safetensors: Write, arrays: dict[str, np.ndarray]
) -> None:
    safetensors(tmp_path / "one" / "checkpoint-1" / "model.safetensors", {**arrays, "gone": np.ones(2, np.float32)})
    new = {name: array.copy() for name, array in arrays.items()}
    new["large"][500, 1] += 3
    new["small"][:2] = np.nan, 7
    new["bits"] = (new["bits"].astype(np.uint32) << 16).view(np.float32)
    new["ids"][1] += 1
    new["quiet"] = new["quiet"].reshape(5, 6)
    folder = tmp_path / "two" / "checkpoint-2"
    safetensors(folder / "model-1.safetensors", {n: new[n] for n in ("small", "large", "bits")})
    safetensors(folder / "model-2.safetensors", {n: new[n] for n in ("quiet", "same", "ids")} | {"came": new["small"]})
    store("one"), store("two")
    found = gpu_train.compare_checkpoints("one", "two", threads=2)
    changes = by_name(found)
    assert {name: change.state for name, change in changes.items()} == {
        "large": "changed", "small": "changed", "ids": "changed", "bits": "retyped", "quiet": "reshaped",
        "same": "identical", "gone": "removed", "came": "new",
    }  # fmt: skip
    large, old = changes["large"], arrays["large"].astype(np.float64)
    norm = np.linalg.norm(new["large"].astype(np.float64))
    assert large.relative == pytest.approx(np.linalg.norm(new["large"] - old) / norm, rel=1e-12)
    assert large.largest == pytest.approx(3, rel=1e-6)
    assert large.changed == 1
    small = changes["small"]
    assert (small.changed, small.not_finite) == (2, 1)
    assert small.largest == pytest.approx(abs(7 - float(arrays["small"][1])))
    assert (changes["bits"].relative, changes["bits"].changed) == (0.0, 0)
    assert (changes["quiet"].relative, changes["ids"].changed) == (0.0, 1)
    order = [change.state for change in found.tensors]
    assert order == sorted(order, key=["changed", "retyped", "reshaped", "new", "removed", "identical"].index)
    relative = [change.relative or 0 for change in found.tensors if change.state == "changed"]
    assert relative == sorted(relative, reverse=True)
    assert found.files is not None
    assert found.files.removed == ("model.safetensors",)


def test_what_is_the_same_is_not_read(
    store: Callable[[str], str], tmp_path: Path, safetensors: Write, arrays: dict[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    large = {name: arrays[name] for name in ("large", "same", "bits")}
    safetensors(tmp_path / "one" / "checkpoint-1" / "model.safetensors", large)
    for name, array in large.items():
        safetensors(tmp_path / "two" / "checkpoint-2" / f"{name}.safetensors", {name: array})
    store("one"), store("two")

    def refuse(*_: object, **__: object) -> bytes:
        raise AssertionError("a block was read")

    monkeypatch.setattr(Reader, "block", refuse)
    found = gpu_train.compare_checkpoints("one", "two")
    assert {change.state for change in found.tensors} == {"identical"}
    assert len(found.tensors) == 3


def test_names_with_and_without_what_stands_before_them(
    store: Callable[[str], str], tmp_path: Path, safetensors: Write
) -> None:
    safetensors(tmp_path / "one" / "checkpoint-1" / "model.safetensors", {"model.a.w": np.ones(9, np.float32)})
    moments = {"state.0.exp_avg": np.ones(9, np.float32)}
    safetensors(tmp_path / "two" / "checkpoint-2" / "model.safetensors", {"a.w": np.zeros(9, np.float32), **moments})
    store("one"), store("two")
    found = gpu_train.compare_checkpoints("one", "two", weights_only=True)
    [change] = found.tensors
    assert (change.state, change.relative, change.largest, change.changed) == ("changed", math.inf, 1.0, 9)
    assert gpu_train.compare_checkpoints("two", "one").count("removed") == 1


def test_zeros_of_another_sign_are_a_change_of_no_size(
    store: Callable[[str], str], tmp_path: Path, safetensors: Write
) -> None:
    for name, zero in (("one", 0.0), ("two", -0.0)):
        safetensors(tmp_path / name / "checkpoint-1" / "m.safetensors", {"w": np.full(9, zero, np.float32)})
        store(name)
    [change] = gpu_train.compare_checkpoints("one", "two").tensors
    assert (change.state, change.relative, change.changed) == ("changed", 0.0, 0)


def test_a_damaged_block_costs_only_its_tensor(
    store: Callable[[str], str], home: Path, tmp_path: Path, safetensors: Write
) -> None:
    rng = np.random.default_rng(3)
    for name in ("one", "two"):
        both = {n: rng.standard_normal((300, 300), dtype=np.float32) for n in ("first", "second")}
        safetensors(tmp_path / name / "checkpoint-1" / "m.safetensors", both)
    store("one")
    known = set(home.rglob("*.pack"))
    store("two")
    [pack] = set(home.rglob("*.pack")) - known
    with PackReader(pack) as reader:
        broken = max(reader.index(), key=lambda entry: entry.header.stored_bytes)
    with pack.open("r+b") as file:
        file.seek(broken.end - 1)
        last = file.read(1)
        file.seek(broken.end - 1)
        file.write(bytes([last[0] ^ 1]))
    found = gpu_train.compare_checkpoints("one", "two")
    assert sorted(change.state for change in found.tensors) == ["changed", "damaged"]
    assert found.damaged
    assert found.tensors[0].damage
    listed = gpu_train.list_tensors("two")
    assert {name for name, (_, stats) in listed.items() if stats is None} == {"first", "second"}
    with pytest.raises(Damaged):
        gpu_train.list_tensors("two", stats=True)
