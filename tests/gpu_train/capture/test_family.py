from __future__ import annotations

from gpu_train.capture.family import Families

FULL = ["model.safetensors", "optimizer.bin", "rng_0.pkl", "rng_1.pkl"]


def test_the_next_one_is_expected_to_have_what_the_last_one_had() -> None:
    families = Families()
    assert families.lacking("checkpoint_1", FULL) == ""
    families.learn("checkpoint_0", FULL)
    assert families.knows("checkpoint_7")
    assert families.lacking("checkpoint_1", FULL) == ""
    assert families.lacking("checkpoint_1", FULL[:3]) == "rng_1.pkl, as checkpoint_0 had"
    assert families.lacking("checkpoint_1", FULL[:1]) == "optimizer.bin, as checkpoint_0 had, and 2 more"
    assert families.lacking("run/checkpoint_1", FULL[:1]) == ""


def test_what_comes_only_now_and_then_is_not_expected() -> None:
    families = Families()
    families.learn("checkpoint_0", FULL)
    families.learn("checkpoint_1", FULL[:1])
    families.learn("checkpoint_2", FULL)
    assert families.lacking("checkpoint_3", FULL[:1]) == ""
    assert families.lacking("checkpoint_3", []) == "model.safetensors, as checkpoint_2 had"


def test_names_with_numbers_of_their_own() -> None:
    families = Families()
    families.learn("step-5", ["model-5.pt", "optimizer-5.pt"])
    assert families.lacking("step-6", ["model-6.pt", "optimizer-6.pt"]) == ""
    assert families.lacking("step-6", ["model-6.pt"]) == "optimizer-5.pt, as step-5 had"


def test_which_one_is_overtaken() -> None:
    families = Families()
    families.begin("checkpoint-1", 10.0)
    assert not families.is_overtaken("checkpoint-1", 10.0)
    families.begin("checkpoint-2", 20.0)
    assert families.is_overtaken("checkpoint-1", 15.0)
    assert not families.is_overtaken("checkpoint-2", 20.0)
    assert not families.is_overtaken("epoch-1", 0.0)


def test_memory_is_bounded() -> None:
    families = Families()
    families.learn("huge-1", [f"{n}.x" for n in range(20_001)])
    assert not families.knows("huge-2")
    for number in range(2000):
        families.begin("x" * number, 0.0)
        families.learn("x" * number, ["a"])
    assert not families.knows("x" * 1999)
    assert families.knows("x")
