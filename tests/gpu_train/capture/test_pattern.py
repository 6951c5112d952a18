from __future__ import annotations

import pytest

from gpu_train.capture.pattern import any_of, pattern


@pytest.mark.parametrize(
    ("text", "path", "parts"),
    [
        ("*.pt", "a.pt", {}),
        ("**.pt", "x/y/a.pt", {}),
        ("?[ab]c", "xbc", {}),
        ("[!a]c", "bc", {}),
        ("{folder}*.distcp", "a.distcp", {"folder": ""}),
        ("{folder}*.distcp", "x/y/a.distcp", {"folder": "x/y/"}),
        ("__{rank}_{n}.distcp", "__12_0.distcp", {"rank": "12", "n": "0"}),
        ("{stem}.data-{i}-of-{n}", "ckpt-1.data-00000-of-00001", {"stem": "ckpt-1", "i": "00000", "n": "00001"}),
        ("a{n}-a{n}", "a7-a7", {"n": "7"}),
        ("tmp-{name}", "tmp-checkpoint-5", {"name": "checkpoint-5"}),
        ("*", "é\udcff\n", {}),
    ],
)
def test_what_it_means(text: str, path: str, parts: dict[str, str]) -> None:
    assert pattern(text).match(path) == parts
    assert any_of(["no such", text]).fullmatch(path)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("*.pt", "x/a.pt"), ("[!a]c", "/c"), ("__{rank}.pt", "__x.pt"), ("a{n}-a{n}", "a7-a8"), ("a.b", "axb"),
        ("{folder}a", "xa"), ("{stem}.pt", "x/a.pt"),
    ],
)  # fmt: skip
def test_what_it_does_not_mean(text: str, path: str) -> None:
    assert pattern(text).match(path) is None


@pytest.mark.parametrize("text", ["", "[a", "[]", "{x", "a}", "{A}", "{}", "[z-a]"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        pattern(text)


def test_filling_in() -> None:
    assert pattern("{folder}__{rank}.metadata").filled({"folder": "x/", "rank": "3"}) == "x/__3.metadata"
    assert pattern("{name}-unfinished").among({"name": "a[1]*"}, {"a[1]*-unfinished"}) == "a[1]*-unfinished"
    assert pattern("{name}.*.lock").among({"name": "a.b"}, {"axb.1.lock", "a.b.7.lock"}) == "a.b.7.lock"
    assert pattern("{name}-x").among({"name": "a"}, {"b-x"}) == ""
    assert any_of([]).fullmatch("") is None
