"""What a person reads on a machine that cannot mount."""

import sys

import pytest

from gpu_train_fuse import MountUnavailable, serve_webdav, support


def test_a_missing_device_says_how_to_get_it_and_what_works_without(tmp_path):
    with pytest.raises(
        MountUnavailable, match=r"--device .*fuse --cap-add SYS_ADMIN.*mount JOB --webdav.*checkpoints restore"
    ) as caught:
        support.check(tmp_path / "fuse")
    assert caught.value.exit_code == 1


def test_a_device_that_cannot_be_opened_says_why(tmp_path):
    with pytest.raises(MountUnavailable, match=r"cannot be opened \(Is a directory\)"):
        support.check(tmp_path)


def test_a_missing_libfuse_says_what_to_install(monkeypatch):
    monkeypatch.setattr(support, "LIBRARIES", ("libfuse-of-nobody.so.9",))
    with pytest.raises(MountUnavailable, match="apt-get install fuse3"):
        support.find_library()


def test_without_the_extra_webdav_says_how_to_install_it(monkeypatch, lab):
    lab.job("run")
    for name in ("wsgidav", "gpu_train_fuse.webdav"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "wsgidav", None)
    with pytest.raises(MountUnavailable, match=r"wsgidav is not installed.*pip install 'gpu-train\[webdav\]'"):
        serve_webdav(lab.workspace, "run", port=0)


def test_the_unmounter_is_searched_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert support.find_unmounter() is None
    (tmp_path / "fusermount").touch(mode=0o755)
    assert support.find_unmounter() == str(tmp_path / "fusermount")
