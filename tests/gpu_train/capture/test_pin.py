from __future__ import annotations

import os
import stat
from pathlib import Path

from gpu_train.capture.pin import discard, link_file, link_tree


def test_links_keep_bytes(tmp_path: Path) -> None:
    source = tmp_path / "w.bin"
    source.write_bytes(b"weights")
    assert link_file(source, tmp_path / "pins" / "deep" / "w.bin")
    source.unlink()
    assert (tmp_path / "pins" / "deep" / "w.bin").read_bytes() == b"weights"


def test_what_cannot_be_linked(tmp_path: Path) -> None:
    assert not link_file(tmp_path / "nothing", tmp_path / "pins" / "x")
    (tmp_path / "w.bin").write_bytes(b"w")
    (tmp_path / "taken").write_bytes(b"t")
    assert not link_file(tmp_path / "w.bin", tmp_path / "taken")
    assert not link_file(tmp_path / "w.bin", tmp_path / "taken" / "below")
    assert not link_file("/proc/self/status", tmp_path / "elsewhere")


def test_a_tree_keeps_its_shape(tmp_path: Path) -> None:
    source = tmp_path / "checkpoint-5"
    (source / "a" / "empty").mkdir(parents=True)
    (source / "a" / "w.bin").write_bytes(b"w")
    (source / "link").symlink_to("a/w.bin")
    (source / "a").chmod(0o750)
    os.utime(source / "a", ns=(10**18, 10**18))
    assert link_tree(source, tmp_path / "pins" / "checkpoint-5")
    pinned = tmp_path / "pins" / "checkpoint-5"
    assert (pinned / "a" / "w.bin").samefile(source / "a" / "w.bin")
    assert os.readlink(pinned / "link") == "a/w.bin"
    found = (pinned / "a").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o750, 10**18)


def test_a_tree_is_pinned_whole_or_not_at_all(tmp_path: Path) -> None:
    source = tmp_path / "c"
    source.mkdir()
    (source / "a.bin").write_bytes(b"a")
    (source / "fs").symlink_to("a.bin")
    pins = tmp_path / "pins"
    (pins / "c").mkdir(parents=True)
    (pins / "c" / "a.bin").write_bytes(b"in the way")
    assert not link_tree(source, pins / "c")
    assert not (pins / "c").exists()
    assert (source / "a.bin").read_bytes() == b"a"


def test_discarding(tmp_path: Path) -> None:
    (tmp_path / "d" / "x").mkdir(parents=True)
    (tmp_path / "f").write_bytes(b"f")
    for name in ("d", "f", "nothing"):
        discard(tmp_path / name)
    assert list(tmp_path.glob("[df]")) == []
