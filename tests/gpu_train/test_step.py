from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_train.step import natural_key, split_version, step_of, with_version


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-500", 500),
        ("checkpoint_500", 500),
        ("step-500", 500),
        ("global_step500", 500),
        ("iter_0000500", 500),
        ("epoch=3-step=500.ckpt", 500),
        ("epoch=3-step=500-v1.ckpt", 500),
        ("step=500-val_loss=0.45.ckpt", 500),
        ("name-000500.safetensors", 500),
        ("500", 500),
        ("0500", 500),
        ("ep1-ba500-rank0.pt", 500),
        ("ep1-ba500", 500),
        ("0000500_adapters.safetensors", 500),
        ("500.orbax-checkpoint-tmp", 500),
        ("tmp-checkpoint-500", 500),
        ("alba7", None),
        ("ckpt500.pt", 500),
        ("model.500.pt", 500),
        ("my run/checkpoint-500", 500),
        ("checkpoint-500/model.safetensors", 500),
        ("ckpt.pt~2", None),
        ("checkpoint-500~2", 500),
        ("ckpt.pt", None),
        ("last.pt", None),
        ("final", None),
        ("epoch=2.ckpt", None),
        ("model-00001-of-00003.safetensors", None),
        ("llama-7b", None),
        ("run-2024-11/last.pt", None),
        ("checkpoint-20241101", None),
        ("rng_state_3.pth", None),
        ("", None),
    ],
)
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


@given(st.text())
def test_any_name_has_a_step_or_none(name: str) -> None:
    step = step_of(name)
    assert step is None or step >= 0


def test_numbers_sort_as_numbers() -> None:
    names = ["checkpoint-1000", "checkpoint-200", "a10b2", "a10b10", "a9b100", "checkpoint-200~2", "02", "2", "", "x"]
    assert sorted(names, key=natural_key) == [
        "", "02", "2", "a9b100", "a10b2", "a10b10", "checkpoint-200", "checkpoint-200~2", "checkpoint-1000", "x",
    ]  # fmt: skip


@given(st.lists(st.text(alphabet="a-1920.~/é"), max_size=8))
def test_the_order_is_total_and_tells_names_apart(names: list[str]) -> None:
    ordered = sorted(names, key=natural_key)
    assert sorted(ordered) == sorted(names)
    for a in names:
        for b in names:
            assert (natural_key(a) == natural_key(b)) == (a == b)


@given(st.text(min_size=1), st.integers(2, 10**6))
def test_versions_come_back_out_of_names(base: str, version: int) -> None:
    assert split_version(with_version(base, version)) == (base, version)


@pytest.mark.parametrize("name", ["ckpt.pt", "a~b", "~2", "a~", "a~0", "a~٣"])
def test_names_without_a_version(name: str) -> None:
    assert split_version(name) == (name, None)
