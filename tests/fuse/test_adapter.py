"""The adapter as libfuse would call it, without libfuse."""

import errno
import logging
import stat
import time
from dataclasses import dataclass, replace

import pytest

from gpu_train_fuse.adapter import Adapter
from gpu_train_fuse.listing import ShownJob
from gpu_train_fuse.node import StoredFile
from gpu_train_fuse.tree import inode, job_tree

NS = 1_000_000_000
WRITES = (
    "create", "write", "truncate", "fallocate", "mknod", "mkdir", "symlink", "link",
    "unlink", "rmdir", "rename", "chmod", "chown", "utimens", "setxattr", "removexattr",
)  # fmt: skip


@dataclass
class Info:
    """What libfuse passes for an open file."""

    flags: int = 0
    fh: int = 0
    direct_io: int = 0
    keep_cache: int = 0


@pytest.fixture
def tree(catalogue, memory):
    row = catalogue.checkpoint("c-1", {"big": b"0123456789" * 500, "link": "big", "sub": {"s": b"s"}}, 1)
    catalogue.shown["run"] = ShownJob(b"{}\n", 9 * NS, checkpoints=(row,), latest=row.record)
    return job_tree(catalogue, memory, "run")


@pytest.fixture
def adapter(tree):
    return Adapter(tree, {"pid": "7", "home": "/h"}, lambda path: pytest.fail(f"{path!r} is not to be dropped"))


def fails(number, call, *arguments):
    with pytest.raises(OSError) as caught:
        call(*arguments)
    assert caught.value.errno == number


def read(adapter, info, size, offset):
    buffer = bytearray(size)
    length = adapter.read("/any", memoryview(buffer), offset, info)
    return bytes(buffer[:length])


def listed(adapter, path, plus=False, offset=0):
    handle = adapter.opendir(path)
    if offset:
        adapter.readdir_with_offset(path, 0, handle)
    found = list(adapter.readdir_with_offset(path, offset, handle, plus))
    adapter.releasedir(path, handle)
    return found


def test_stat_of_each_kind(adapter):
    file = adapter.getattr("/checkpoints/c-1/big")
    assert file["st_mode"] == stat.S_IFREG | 0o640
    assert (file["st_size"], file["st_blocks"], file["st_nlink"], file["st_mtime"]) == (5000, 10, 1, NS)
    assert file["st_ino"] == inode(b"/checkpoints/c-1/big")
    assert stat.S_ISLNK(adapter.getattr("/latest")["st_mode"])
    folder = adapter.getattr("/checkpoints/c-1")
    assert stat.S_ISDIR(folder["st_mode"])
    assert folder["st_blocks"] == 0


def test_readdir_gives_names_kinds_and_the_inodes_that_stat_gives(adapter):
    found = {name: facts for name, facts, offset in listed(adapter, "/checkpoints/c-1")}
    assert set(found) == {".", "..", "big", "link", "sub"}
    for name in ("big", "link", "sub"):
        status = adapter.getattr(f"/checkpoints/c-1/{name}")
        assert found[name]["st_ino"] == status["st_ino"]
        assert stat.S_IFMT(found[name]["st_mode"]) == stat.S_IFMT(status["st_mode"])


def test_a_listing_can_be_gone_on_with_and_have_the_attributes_in_it(adapter):
    plain = listed(adapter, "/checkpoints/c-1")
    assert [after for _, _, after in plain] == [1, 2, 3, 4, 5]
    assert listed(adapter, "/checkpoints/c-1", offset=3) == plain[3:]
    full = {name: facts for name, facts, _ in listed(adapter, "/checkpoints/c-1", plus=True)}
    for name in ("big", "link", "sub"):
        assert full[name] == adapter.getattr(f"/checkpoints/c-1/{name}")


def test_what_cannot_be_looked_at_is_listed_all_the_same(adapter, catalogue):
    catalogue.roots.clear()
    fails(errno.EIO, adapter.getattr, "/checkpoints/c-1")
    names = {name: facts for name, facts, _ in listed(adapter, "/checkpoints", plus=True)}
    assert "st_size" not in names["c-1"]
    assert names["c-1"]["st_ino"] == inode(b"/checkpoints/c-1")


def test_read_open_and_release(adapter, catalogue):
    info, other = Info(), Info()
    assert adapter.open("/checkpoints/c-1/big", info) == 0
    assert adapter.open("/checkpoints/c-1/big", other) == 0
    assert read(adapter, info, 20, 4990) == b"0123456789"
    assert read(adapter, info, 20, 5000) == b""
    assert adapter.release("/checkpoints/c-1/big", other) == 0
    assert list(catalogue.held.values()) == [1], "what is open is kept from gc"
    assert adapter.release("/checkpoints/c-1/big", info) == 0
    with pytest.raises(OSError):
        read(adapter, info, 1, 0)


def test_wrong_kinds_and_missing_names_have_their_errno(adapter):
    fails(errno.ENOENT, adapter.getattr, "/nothing")
    fails(errno.ENOTDIR, adapter.opendir, "/job.json")
    fails(errno.EINVAL, adapter.readlink, "/job.json")
    fails(errno.EISDIR, adapter.open, "/checkpoints", Info())
    fails(errno.ENODATA, adapter.getxattr, "/job.json", "user.other")
    for name in ("security.selinux", "security.capability", "system.posix_acl_access"):
        fails(errno.EOPNOTSUPP, adapter.getxattr, "/job.json", name)


def test_every_write_is_refused(adapter):
    fails(errno.EROFS, adapter.open, "/job.json", Info(flags=1))
    fails(errno.EROFS, adapter.open, "/job.json", Info(flags=2))
    for name in WRITES:
        fails(errno.EROFS, getattr(adapter, name), "/job.json", "any", "thing")


def test_xattrs_of_files_and_of_the_root(adapter):
    assert set(adapter.listxattr("/checkpoints/c-1/big")) == {
        f"user.gpu_train.{n}" for n in ("digest", "record", "step", "codec_ratio")
    }
    assert adapter.getxattr("/checkpoints/c-1/big", "user.gpu_train.codec_ratio") == b"2.000"
    fails(errno.ENODATA, adapter.getxattr, "/job.json", "user.gpu_train.codec_ratio")
    assert adapter.getxattr("/checkpoints/c-1/big", "user.gpu_train.step") == b"100"
    assert adapter.getxattr("/", "user.gpu_train.pid") == b"7"
    assert adapter.getxattr("/", "user.gpu_train.home") == b"/h"


def test_statfs_is_a_full_disk_of_the_checkpoints_size(adapter):
    found = adapter.statfs("/")
    assert found["f_blocks"] == 2
    assert found["f_bfree"] == found["f_bavail"] == 0
    assert found["f_files"] == 2


def test_a_damaged_block_is_eio_and_logged_once_with_file_and_block(adapter, tree, memory, caplog):
    node = tree.lookup(b"/checkpoints/c-1/big")
    assert isinstance(node, StoredFile)
    memory.broken[node.entry.digest] = {1}
    info = Info()
    adapter.open("/checkpoints/c-1/big", info)
    with caplog.at_level(logging.ERROR):
        for offset in (0, 1000, 1500):
            fails(errno.EIO, adapter.read, "/checkpoints/c-1/big", memoryview(bytearray(1200)), offset, info)
    assert len(caplog.records) == 1
    assert "/checkpoints/c-1/big: block " in caplog.text
    assert "(bytes 1000 to 2000)" in caplog.text
    assert read(adapter, info, 3000, 2000) == b"0123456789" * 300


def test_an_error_that_nobody_foresaw_is_eio_and_logged(adapter, tree, memory, caplog):
    memory.trees.clear()
    fails(errno.EIO, adapter.getattr, "/checkpoints/c-1/big")
    assert "is missing" in caplog.text
    tree.lookup = lambda path: 1 // 0
    fails(errno.EIO, adapter.readlink, "/latest")
    assert "unexpected error in readlink" in caplog.text


def opened(adapter, path):
    info = Info()
    adapter.open(path, info)
    adapter.release(path, info)
    return info.direct_io, info.keep_cache


def test_pages_are_kept_from_the_second_open_on(adapter):
    assert [opened(adapter, "/checkpoints/c-1/big") for _ in range(3)] == [(0, 0), (0, 1), (0, 1)]


def test_made_up_files_are_read_past_the_page_cache(adapter):
    assert [opened(adapter, "/job.json") for _ in range(2)] == [(1, 0), (1, 0)]


def test_pages_of_another_content_are_never_served(catalogue, memory, tree):
    adapter = Adapter(tree, {}, lambda path: None)
    opened(adapter, "/checkpoints/c-1/big")
    other = catalogue.checkpoint("c-1", {"big": b"other"}, 2, version=2)
    catalogue.shown["run"] = replace(catalogue.shown["run"], checkpoints=(other,))
    catalogue.commits += 1
    deadline = time.monotonic() + 20
    while adapter.getattr("/checkpoints/c-1/big")["st_size"] != 5:  # a listing is believed for half a second
        assert time.monotonic() < deadline
    assert [opened(adapter, "/checkpoints/c-1/big") for _ in range(3)] == [(1, 0), (0, 0), (0, 1)]


def test_the_watcher_drops_what_changed_and_ends(catalogue, memory, tree, until):
    dropped = []
    adapter = Adapter(tree, {}, dropped.append)
    adapter.init_with_config(Info(), None)
    adapter.getattr("/checkpoints")
    new = catalogue.checkpoint("c-2", {"x": b"x"}, 2)
    catalogue.shown["run"] = replace(catalogue.shown["run"], checkpoints=(new,), latest=new.record)
    catalogue.commits += 1
    until(lambda: b"/latest" in dropped)
    assert b"/checkpoints/c-1/sub/s" in dropped
    adapter.destroy("/")
    assert not adapter._watcher.is_alive()
