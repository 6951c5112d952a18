"""A view without links: what they lead to, and that walking down it comes to an end."""

import pytest

from gpu_train_fuse.linkless import Linkless
from gpu_train_fuse.listing import ShownJob
from gpu_train_fuse.node import Directory, File
from gpu_train_fuse.tree import job_tree

NS = 1_000_000_000


@pytest.fixture
def view(catalogue, memory):
    content = {
        "model.bin": b"weights",
        "blobs": {"abc": b"blob", "again": "../named"},
        "named": "blobs/abc",
        "twice": "sub/up",
        "sub": {"up": "../named", "file": b"f"},
        "folder": "sub",
        "self": ".",
        "loop": "pool",
        "pool": "loop",
        "round": {"up": ".."},
        "out": "../../../../etc/passwd",
        "absolute": "/job.json",
        "beside": "../c-2/other.bin",
        "dangling": "nothing",
    }
    rows = (catalogue.checkpoint("c-1", content, 1), catalogue.checkpoint("c-2", {"other.bin": b"other"}, 2))
    catalogue.shown["run"] = ShownJob(b"{}\n", NS, checkpoints=rows, latest=rows[0].record, best=rows[1].record)
    return Linkless(job_tree(catalogue, memory, "run"))


def names(view, path):
    return {name.decode() for name, _ in view.members(path)}


def text(view, path):
    found = view.find(path)
    assert isinstance(found, File)
    buffer = bytearray(found.attributes().size_bytes)
    handle = found.open()
    handle.readinto(memoryview(buffer), 0)
    handle.close()
    return bytes(buffer)


def test_latest_and_best_are_folders(view):
    assert names(view, b"/") == {"checkpoints", "latest", "best", "job.json"}
    assert names(view, b"/best") == names(view, b"/checkpoints/c-2/") == {"other.bin"}
    assert text(view, b"/latest/model.bin") == b"weights"
    assert isinstance(view.find(b"/latest"), Directory)


def test_links_to_files_are_files(view):
    for path in (b"named", b"twice", b"sub/up", b"blobs/again"):
        assert text(view, b"/latest/" + path) == b"blob"
        assert text(view, b"/checkpoints/c-1/" + path) == b"blob"
    assert text(view, b"/checkpoints/c-1/beside") == b"other"


def test_links_to_folders_out_of_the_view_in_circles_or_to_nothing_have_no_name(view):
    hidden = {"folder", "self", "loop", "pool", "out", "absolute", "dangling"}
    shown = names(view, b"/checkpoints/c-1")
    assert shown == {"model.bin", "blobs", "named", "twice", "sub", "round", "beside"}
    assert names(view, b"/checkpoints/c-1/round") == set()
    for name in hidden:
        assert view.find(b"/checkpoints/c-1/" + name.encode()) is None
    assert view.find(b"/checkpoints/c-1/folder/file") is None


def test_walking_down_comes_to_an_end(view):
    def count(path):
        found = list(view.members(path))
        return len(found) + sum(count(path + b"/" + name) for name, node in found if isinstance(node, Directory))

    checkpoint = 7 + 2 + 2
    assert count(b"") == 4 + (2 + checkpoint + 1) + checkpoint + 1


@pytest.mark.parametrize("path", [b"/nothing", b"/job.json/below", b"/..", b"/latest/../../..", b"/latest/model.bin/x"])
def test_what_is_not_there_is_none_and_has_no_members(view, path):
    assert view.find(path) is None
    assert names(view, path) == set()


def test_the_root_by_its_names(view):
    for path in (b"", b"/", b"//", b"/.", b"/checkpoints/.."):
        assert names(view, path) == {"checkpoints", "latest", "best", "job.json"}
