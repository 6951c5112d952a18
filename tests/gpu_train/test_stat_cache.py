from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gpu_train.stat_cache import KEEP_S, RACY_NS, StatCache, is_racy, signature_of

NOW = 1_800_000_000_000_000_000
OLD = NOW - 10 * RACY_NS


def opened(tmp_path: Path, moment_ns: int = NOW, root: str = "root") -> StatCache:
    return StatCache.open(tmp_path / "cache", "code", tmp_path / root, clock=lambda: moment_ns)


def signature(size: int = 1, mtime: int = OLD, ctime: int = OLD, inode: int = 7, mode: int = 0o100644):  # type: ignore[no-untyped-def]
    return (size, mtime, ctime, inode, mode)


def test_what_was_put_is_got_in_the_next_pass(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.put(b"a\xff", signature(), b"digest")
    first.whole = [b"f", "id"]
    first.save()
    second = opened(tmp_path)
    assert second.get(b"a\xff", signature()) == b"digest"
    assert second.whole == [b"f", "id"]


@pytest.mark.parametrize("field", range(5))
def test_any_field_that_differs_is_a_change(tmp_path: Path, field: int) -> None:
    cache = opened(tmp_path)
    cache.put(b"a", signature(), b"d")
    cache.save()
    other = list(signature())
    other[field] += 1
    assert opened(tmp_path).get(b"a", tuple(other)) is None


@pytest.mark.parametrize(
    ("mtime", "ctime", "racy"),
    [
        (OLD, OLD, False),
        (OLD, NOW - RACY_NS - 1, False),
        (OLD, NOW - RACY_NS, True),
        (OLD, NOW, True),
        (OLD, NOW + 10 * RACY_NS, True),  # the clock went back: nothing can be told
        (NOW - RACY_NS, OLD, True),
        (NOW + RACY_NS, OLD, True),
        (NOW + 10 * RACY_NS, OLD, False),  # `touch -d` into the future
    ],
)
def test_what_changed_just_before_is_not_trusted(tmp_path: Path, mtime: int, ctime: int, racy: bool) -> None:
    note = signature(mtime=mtime, ctime=ctime)
    assert is_racy(note, NOW) is racy
    cache = opened(tmp_path)
    cache.put(b"a", note, b"d")
    cache.save()
    assert (opened(tmp_path).get(b"a", note) is None) is racy


def test_a_note_once_trusted_stays_so(tmp_path: Path) -> None:
    note = signature(mtime=NOW + 10 * RACY_NS)
    first = opened(tmp_path)
    first.put(b"a", note, b"d")
    first.save()
    later = opened(tmp_path, NOW + 10 * RACY_NS)
    assert later.get(b"a", note) == b"d"
    later.put(b"b", signature(), b"e")
    later.save()
    assert opened(tmp_path).get(b"a", note) == b"d"


def test_paths_that_a_pass_did_not_meet_are_dropped(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.put(b"a", signature(), b"d")
    first.put(b"b", signature(), b"d")
    first.save()
    second = opened(tmp_path)
    second.get(b"a", signature())
    second.save()
    assert len(opened(tmp_path)) == 1


def test_roots_and_purposes_are_apart(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(b"a", signature(), b"d")
    cache.save()
    assert opened(tmp_path, root="other").get(b"a", signature()) is None
    other = StatCache.open(tmp_path / "cache", "data", tmp_path / "root", clock=lambda: NOW)
    assert other.get(b"a", signature()) is None


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "garbage"])
def test_a_damaged_file_is_an_empty_cache(tmp_path: Path, damage: str) -> None:
    cache = opened(tmp_path)
    cache.put(b"a", signature(), b"d")
    cache.save()
    (file,) = (tmp_path / "cache").iterdir()
    data = file.read_bytes()
    flipped = data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]
    file.write_bytes({"truncate": data[:-5], "flip": flipped, "empty": b"", "garbage": b"x" * 100}[damage])
    again = opened(tmp_path)
    assert len(again) == 0
    again.put(b"a", signature(), b"d")
    again.save()
    assert opened(tmp_path).get(b"a", signature()) == b"d"


def test_concurrent_savers_leave_one_whole_cache(tmp_path: Path) -> None:
    def save(value: bytes) -> None:
        for _ in range(20):
            cache = opened(tmp_path)
            for n in range(200):
                cache.put(b"%d" % n, signature(), value)
            cache.save()

    threads = [threading.Thread(target=save, args=(bytes([65 + n]) * 32,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache = opened(tmp_path)
    assert len(cache) == 200
    assert len({cache.get(b"%d" % n, signature()) for n in range(200)}) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_place_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    cache = opened(tmp_path)
    cache.put(b"a", signature(), b"d")
    cache.save()
    assert len(opened(tmp_path)) == 0


def test_a_file_replaced_by_one_of_the_same_size_and_time_differs(tmp_path: Path) -> None:
    file, other = tmp_path / "f", tmp_path / "g"
    file.write_bytes(b"old")
    before = file.stat()
    other.write_bytes(b"new")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert signature_of(after) != signature_of(before)


def test_caches_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    for root in ("used", "unused"):
        cache = opened(tmp_path, root=root)
        cache.put(b"a", signature(), root.encode())
        cache.save()
    long_ago = time.time() - KEEP_S - 60
    for file in (tmp_path / "cache").iterdir():
        os.utime(file, (long_ago, long_ago))
    assert opened(tmp_path, root="used").get(b"a", signature()) == b"used"
    third = opened(tmp_path, root="third")
    third.put(b"a", signature(), b"third")
    third.save()
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert opened(tmp_path, root="used").get(b"a", signature()) == b"used"
