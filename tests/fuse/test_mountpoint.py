"""Where a mount may go, without mounting anything."""

from pathlib import Path

import pytest

from gpu_train_cas.errors import Busy, DestinationExists, UsageError
from gpu_train_fuse.mountpoint import prepare


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    (path / "mnt").mkdir(parents=True)
    return path


def check(path, home, **options):
    return prepare(path, home, home / "mnt", **options)


def test_the_folder_is_made(home, tmp_path):
    for path in (home / "mnt" / "run", tmp_path / "a" / "b"):
        assert check(path, home) == path
        assert path.is_dir()
        assert check(path, home) == path


def test_links_in_the_parents_are_resolved(home, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "way").symlink_to("real")
    assert check(tmp_path / "way" / "m", home) == tmp_path / "real" / "m"


def test_a_relative_path_is_taken_from_the_working_directory(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check(Path("m"), home) == tmp_path / "m"
    assert check(Path("x/../m"), home) == tmp_path / "m"


@pytest.mark.parametrize("part", ["", "..", "../..", "registry", "store/packs", "artifacts/run/checkpoints", "mnt"])
def test_a_mount_never_hides_the_home_or_lies_in_it(home, part):
    with pytest.raises(UsageError, match="give another folder"):
        check(home / part, home, nonempty=True)


def test_the_home_is_found_through_links(home, tmp_path):
    (tmp_path / "alias").symlink_to(home)
    with pytest.raises(UsageError, match="lies in the home"):
        check(tmp_path / "alias" / "store", home)
    assert check(tmp_path / "alias" / "mnt" / "run", home) == home / "mnt" / "run"
    assert prepare(tmp_path / "m", tmp_path / "alias", tmp_path / "alias" / "mnt") == tmp_path / "m"


def test_a_link_is_refused_also_one_to_nowhere(home, tmp_path):
    (tmp_path / "real").mkdir()
    for name, target in (("good", "real"), ("bad", "nowhere")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(UsageError, match="symbolic link"):
            check(tmp_path / name, home)


def test_a_file_is_refused(home, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not a folder"):
        check(tmp_path / "file", home)


def test_a_folder_with_something_in_it_is_refused_unless_asked_for(home, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(DestinationExists, match="not empty"):
        check(tmp_path / "full", home)
    assert check(tmp_path / "full", home, nonempty=True) == tmp_path / "full"


def test_another_mount_is_not_mounted_over(home):
    with pytest.raises(Busy, match="mounted on it"):
        check(Path("/proc"), home)
