"""Objects in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from objectstore_suite import ObjectStoreSuite

from gpu_train.errors import Refused, Unavailable
from gpu_train.sinks.objects.content import Held
from gpu_train.sinks.objects.folder import FolderObjects
from gpu_train.sinks.objects.objectstore import Put


class TestFolder(ObjectStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderObjects:
        return FolderObjects(tmp_path / "nas")


def test_files_keep_their_times(tmp_path: Path) -> None:
    FolderObjects(tmp_path / "nas").put([Put("a/b", Held(b"x"), mtime_ns=1_700_000_000_123_456_789)])
    assert (tmp_path / "nas" / "a" / "b").stat().st_mtime_ns == 1_700_000_000_123_456_789


def test_a_disk_that_is_not_mounted_is_not_filled_in_its_place(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path / "mnt" / "nas")
    for do in (lambda: store.put([Put("x", Held(b"x"))]), lambda: store.size("x"), lambda: store.read("x", 1)):
        with pytest.raises(Unavailable, match="is the disk mounted"):
            do()
    assert not (tmp_path / "mnt").exists()


@pytest.mark.parametrize("key", ["", "..", "a/../b", "/a", "a//b", "a/.", "a\0b"])
def test_no_key_leads_out(tmp_path: Path, key: str) -> None:
    (tmp_path / "nas").mkdir()
    with pytest.raises(Refused, match="no name for an object"):
        FolderObjects(tmp_path / "nas").put([Put(key, Held(b"x"))])
    assert list(tmp_path.rglob("*")) == [tmp_path / "nas"]


def test_what_a_broken_off_write_left_is_no_object(tmp_path: Path) -> None:
    store = FolderObjects(tmp_path / "nas")
    store.put([Put("a/b", Held(b"x"))])
    (tmp_path / "nas" / "a" / ".gpu-train-0123").write_bytes(b"half")
    assert [found.key for found in store.list()] == ["a/b"]


def test_a_full_disk_needs_a_person(small_disk) -> None:
    disk = small_disk(2)
    store = FolderObjects(disk / "nas")
    store.put([Put("a", Held(bytes(1 << 20)))])
    with pytest.raises(Refused, match="No space left"):
        store.put([Put("b", Held(bytes(2 << 20)))])
    assert [found.key for found in store.list()] == ["a"]
    assert [path.name for path in (disk / "nas").iterdir()] == ["a"]
