from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpu_train.exclude import Excludes
from gpu_train.listing import COUNT_LIMIT, LARGEST, Listing, list_folder
from gpu_train.stat_cache import StatCache
from gpu_train_cas.errors import UsageError


def put(root: Path, *names: str, text: str = "x") -> None:
    for name in names:
        file = root / name
        if name.endswith("/"):
            file.mkdir(parents=True, exist_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def listing(root: Path, *, gitignore: bool = False, lines: Sequence[str] = (), always: Sequence[Path] = ()) -> Listing:
    excludes = Excludes.for_root(root, gitignore=gitignore, lines=lines, always=always)
    return list_folder(root, excludes, StatCache.open(root.parent / "cache", "code", root))


def kept(root: Path, **options: bool | Sequence[str] | Sequence[Path]) -> list[str]:
    found = listing(root, **options)  # type: ignore[arg-type]
    folders = {path.rpartition(b"/")[0] for path, _ in found.items}
    return [os.fsdecode(path) for path, _ in found.items if path not in folders]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def test_the_defaults(root: Path) -> None:
    put(root, "train.py", "untracked.bin", "env/model.py", "pkg/checkpoints/__init__.py", ".gitignore", "empty/")
    put(root, ".git/HEAD", ".venv/bin/python", "a/__pycache__/m.pyc", "m.pyc", "node_modules/x/y.js")
    put(root, ".mypy_cache/a", ".ruff_cache/a", ".pytest_cache/a", "sub/.cache/a", ".DS_Store", "wandb/run/a")
    put(root, "out/checkpoint-500/w.bin", "out/tmp-checkpoint-501/w.bin", "checkpoints/last.pt", "iter_0000500/w")
    put(root, "runs/events.out.tfevents.1.host", "submodule/.git")
    assert kept(root) == [
        ".gitignore", "a", "empty", "env/model.py", "out", "pkg/checkpoints/__init__.py", "runs", "sub",
        "submodule", "train.py", "untracked.bin",
    ]  # fmt: skip


def test_environments_and_tagged_caches_are_known_by_what_they_hold(root: Path) -> None:
    put(root, "my-env/pyvenv.cfg", "my-env/lib/a.py", "conda/conda-meta/history", "conda/bin/python")
    put(root, "tagged/data", "fake/data")
    put(root, "tagged/CACHEDIR.TAG", text="Signature: 8a477f597d28d172789f06886806bc55\n# a cache\n")
    put(root, "fake/CACHEDIR.TAG", text="Signature: none")
    assert kept(root) == ["fake/CACHEDIR.TAG", "fake/data"]


def test_gpu_trainignore_with_negation(root: Path) -> None:
    put(root, "a.log", "keep.log", "data/big", "sub/data/big", "deep/x.tmp", "deep/keep/x.tmp", "#odd", "sp ")
    put(
        root, ".gpu-trainignore",
        text="# what is large\n*.log\n!keep.log\n/data/\n**/*.tmp\n!deep/keep/*.tmp\n\\#odd\nsp\\ \n",
    )  # fmt: skip
    assert kept(root) == [".gpu-trainignore", "deep/keep/x.tmp", "keep.log", "sub/data/big"]


def test_a_pattern_takes_back_what_the_defaults_leave_out(root: Path) -> None:
    put(root, "wandb/notes.md", "env/pyvenv.cfg", "checkpoints/tiny.pt", "m.pyc", "node_modules/x.js")
    put(root, ".gpu-trainignore", text="!wandb/\n!env/\n!checkpoints/\n!m.pyc\n")
    assert kept(root) == [
        ".gpu-trainignore", "checkpoints/tiny.pt", "env/pyvenv.cfg", "m.pyc", "wandb/notes.md",
    ]  # fmt: skip


def test_nothing_comes_back_from_inside_a_folder_that_is_left_out(root: Path) -> None:
    put(root, "data/a", "data/keep")
    put(root, ".gpu-trainignore", text="data/\n!data/keep\n")
    assert kept(root) == [".gpu-trainignore"]
    put(root, ".gpu-trainignore", text="data/*\n!data/keep\n")
    assert kept(root) == [".gpu-trainignore", "data/keep"]


def test_a_deeper_ignore_file_wins(root: Path) -> None:
    put(root, "a.txt", "sub/a.txt", "sub/b.txt", "sub/deep/a.txt")
    put(root, ".gpu-trainignore", text="*.txt\n")
    put(root, "sub/.gpu-trainignore", text="!/a.txt\n")
    assert kept(root) == [".gpu-trainignore", "sub/.gpu-trainignore", "sub/a.txt", "sub/deep"]


def test_gitignore_counts_only_when_asked_and_is_the_weaker(root: Path) -> None:
    put(root, "a.csv", "b.csv", "c.csv", "sub/c.csv")
    put(root, ".gitignore", text="*.csv\n")
    put(root, "sub/.gitignore", text="!c.csv\n")
    put(root, ".gpu-trainignore", text="!b.csv\n")
    every = [".gitignore", ".gpu-trainignore", "a.csv", "b.csv", "c.csv", "sub/.gitignore", "sub/c.csv"]
    assert kept(root) == every
    assert kept(root, gitignore=True) == [
        ".gitignore", ".gpu-trainignore", "b.csv", "sub/.gitignore", "sub/c.csv",
    ]  # fmt: skip


def test_gitignore_files_above_the_root_count_up_to_the_repository(root: Path) -> None:
    put(root, ".git/HEAD", "apps/one/a.log", "apps/one/b.csv", "apps/one/c.tmp", "apps/one/d.py", "apps/one/e.py")
    put(root, ".gitignore", text="*.log\n/apps/one/d.py\n/e.py\n")
    put(root, "apps/.gitignore", text="one/*.csv\n")
    put(root, ".git/info/exclude", text="*.tmp\n")
    put(root.parent, ".gitignore", text="*.py\n")
    assert kept(root / "apps" / "one", gitignore=True) == ["e.py"]


def test_patterns_from_the_settings_are_weaker_than_the_ignore_file(root: Path) -> None:
    put(root, "a.csv", "b.csv")
    put(root, ".gpu-trainignore", text="!b.csv\n")
    assert kept(root, lines=["*.csv"]) == [".gpu-trainignore", "b.csv"]


def test_a_wrong_pattern_is_named_with_its_line(root: Path) -> None:
    put(root, ".gpu-trainignore", text="*.log\n!\n")
    with pytest.raises(UsageError, match=r"\.gpu-trainignore, line 2: '!'"):
        kept(root)
    put(root, ".gpu-trainignore", text="")
    put(root, ".gitignore", text="!\n*.log\n")
    put(root, "a.log", "b")
    assert kept(root, gitignore=True) == [".gitignore", ".gpu-trainignore", "b"]


def test_names_that_are_no_utf8(root: Path) -> None:
    for name in (b"a\xff.log", b"b\xff.py"):
        Path(os.fsdecode(os.path.join(os.fsencode(root), name))).write_bytes(b"x")
    (root / ".gpu-trainignore").write_bytes(b"a\xff*\n")
    assert [path for path, _ in listing(root).items] == [b".gpu-trainignore", b"b\xff.py"]


def test_what_must_stay_out_does_whatever_the_patterns_say(root: Path) -> None:
    put(root, "home/registry/data.mdb", "out/ckpt/w.bin", "out/a.py")
    put(root, ".gpu-trainignore", text="!home/\n!out/ckpt/\n")
    always = [root / "home", root / "out" / "ckpt", root.parent / "elsewhere", root]
    assert kept(root, always=always) == [".gpu-trainignore", "out/a.py"]


def test_a_link_to_a_folder_is_a_link(root: Path) -> None:
    put(root, "real/a.py")
    (root / "data").symlink_to("real")
    (root / ".venv").symlink_to("/nowhere")
    put(root, ".gpu-trainignore", text="data/\n")  # with the slash: folders only, as in git
    assert kept(root) == [".gpu-trainignore", ".venv", "data", "real/a.py"]


def test_sockets_and_fifos_are_skipped_and_said(root: Path) -> None:
    os.mkfifo(root / "pipe")
    put(root, "a")
    found = listing(root)
    assert (found.skipped, [path for path, _ in found.items]) == ([b"pipe"], [b"a"])


def test_what_was_left_out_is_counted_and_the_largest_named(root: Path) -> None:
    for n in range(12):
        put(root, f"data{n:02d}/x/a", f"data{n:02d}/b", text="y" * (n + 1))
    put(root, "one.log", text="z" * 1000)
    put(root, "train.py")
    put(root, ".gpu-trainignore", text="data*/\n*.log\n")
    found = listing(root).left_out
    assert (found.files, found.size_bytes, found.exact) == (25, 1000 + 2 * sum(range(1, 13)), True)
    assert len(found.largest) == LARGEST
    assert [(p.path, p.files, p.size_bytes) for p in found.largest[:3]] == [
        ("one.log", 1, 1000), ("data11/", 2, 24), ("data10/", 2, 22),
    ]  # fmt: skip


def test_a_count_is_used_again_until_the_folder_changes(root: Path) -> None:
    put(root, "data/sub/a", "data/b", "train.py")
    put(root, ".gpu-trainignore", text="data/\n")
    excludes = Excludes.for_root(root)
    later = (root / "data").stat().st_ctime_ns + 10**10

    def count() -> int:
        cache = StatCache.open(root.parent / "cache", "code", root, clock=lambda: later)
        found = list_folder(root, excludes, cache).left_out
        cache.save()
        assert found.exact
        return found.files

    assert count() == 2
    put(root, "data/sub/deep")
    assert count() == 2
    put(root, "data/c")
    assert count() == 4


def test_counting_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COUNT_LIMIT >= 100_000
    monkeypatch.setattr("gpu_train.listing.COUNT_LIMIT", 40)
    for n in range(30):
        put(root, f"node_modules/p{n}/index.js")
    found = listing(root).left_out
    assert not found.exact
    assert 0 < found.files < 30
