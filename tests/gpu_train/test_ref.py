from __future__ import annotations

import pytest

from gpu_train.ref import Ref
from gpu_train_cas.errors import UsageError


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("train", Ref("train")),
        ("train/config.json", Ref("train", "latest", path="config.json")),
        ("train@latest", Ref("train", "latest")),
        ("train@best/a/b", Ref("train", "best", path="a/b")),
        ("train@step:500", Ref("train", "step", step=500)),
        ("train@step:0/w.bin", Ref("train", "step", step=0, path="w.bin")),
        ("train@checkpoint-5", Ref("train", "name", name="checkpoint-5")),
        ("train@run/checkpoint-5/w.bin", Ref("train", "name", name="run/checkpoint-5/w.bin")),
        ("train@ckpt.pt~2", Ref("train", "name", name="ckpt.pt~2")),
        ("train@a@b", Ref("train", "name", name="a@b")),
        ("gpu-train://train@latest/x", Ref("train", "latest", path="x")),
    ],
)
def test_reading_a_ref(text: str, ref: Ref) -> None:
    assert Ref.parse(text) == ref
    assert Ref.parse(str(ref)) == ref


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "names no job"),
        ("@latest", "names no job before the @"),
        ("/x", "names no job"),
        ("train@", "write train@latest"),
        ("train@/", "write train@latest"),
        ("train@step:", "write train@step:500"),
        ("train@step:five", "'five' is no step"),
        ("train@step:-1", "'-1' is no step"),
    ],
)
def test_what_is_no_ref(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Ref.parse(text)
