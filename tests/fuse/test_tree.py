"""The view without FUSE: what is where, and which paths changed."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_train_cas import EntryKind
from gpu_train_cas.errors import Damaged, NotFound
from gpu_train_fuse.listing import ShownCheckpoint, ShownCode, ShownJob, shown_path
from gpu_train_fuse.node import Directory, File, Link, StoredFile
from gpu_train_fuse.shelf import Shelf
from gpu_train_fuse.tree import CheckpointFolder, FileTree, JobFolder, home_tree, inode, job_tree

NS = 1_000_000_000


def names(tree, path):
    node = tree.lookup(path)
    assert isinstance(node, Directory)
    return {name: kind.name for name, kind in node.names()}


def content(tree, path):
    node = tree.lookup(path)
    assert isinstance(node, File)
    handle = node.open()
    buffer = bytearray(node.attributes().size_bytes + 10)
    length = handle.readinto(memoryview(buffer), 0)
    handle.close()
    return bytes(buffer[:length])


@pytest.fixture
def job(catalogue, tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "stdout.log").write_bytes(b"line\n")
    first = catalogue.checkpoint("checkpoint-100", {"model.bin": b"one", "sub": {"a": b"A", "link": "../model.bin"}}, 1)
    second = catalogue.checkpoint("checkpoint-200", {"model.bin": b"two"}, 2)
    shown = ShownJob(
        description=b'{"id": "run"}\n', changed_ns=5 * NS, code=catalogue.record({"train.py": b"print()"}), logs=logs,
        checkpoints=(first, second), latest=second.record, best=first.record,
    )  # fmt: skip
    catalogue.shown["run"] = shown
    return shown


@pytest.fixture
def tree(catalogue, memory, job):
    return job_tree(catalogue, memory, "run")


def commit(catalogue, job_id, **changes):
    catalogue.shown[job_id] = replace(catalogue.shown[job_id], **changes)
    catalogue.commits += 1


def test_a_job_shows_checkpoints_links_code_logs_and_description(tree):
    assert names(tree, b"/") == {
        b"checkpoints": "DIRECTORY", b"latest": "SYMLINK", b"best": "SYMLINK", b"code": "DIRECTORY",
        b"logs": "DIRECTORY", b"job.json": "FILE",
    }  # fmt: skip
    assert names(tree, b"/checkpoints") == {b"checkpoint-100": "DIRECTORY", b"checkpoint-200": "DIRECTORY"}
    assert content(tree, b"/checkpoints/checkpoint-100/model.bin") == b"one"
    assert content(tree, b"/checkpoints/checkpoint-100/sub/a") == b"A"
    assert content(tree, b"/code/train.py") == b"print()"
    assert content(tree, b"/logs/stdout.log") == b"line\n"
    assert json.loads(content(tree, b"/job.json")) == {"id": "run"}


def test_latest_and_best_are_links_to_the_checkpoints(tree):
    targets = {}
    for name in (b"latest", b"best"):
        link = tree.lookup(b"/" + name)
        assert isinstance(link, Link)
        assert link.attributes().size_bytes == len(link.target())
        targets[name] = link.target()
    assert targets == {b"latest": b"checkpoints/checkpoint-200", b"best": b"checkpoints/checkpoint-100"}


def test_links_in_a_checkpoint_are_shown_as_stored(tree):
    link = tree.lookup(b"/checkpoints/checkpoint-100/sub/link")
    assert isinstance(link, Link)
    assert link.target() == b"../model.bin"


def test_what_a_job_does_not_have_has_no_name(catalogue, memory):
    catalogue.shown["bare"] = ShownJob(b"{}\n", NS)
    tree = job_tree(catalogue, memory, "bare")
    assert set(names(tree, b"/")) == {b"checkpoints", b"job.json"}
    assert names(tree, b"/checkpoints") == {}
    for path in (b"/latest", b"/best", b"/code", b"/logs"):
        with pytest.raises(NotFound):
            tree.lookup(path)


def test_sizes_modes_and_times_are_the_stored_ones(tree):
    found = tree.attributes(b"/checkpoints/checkpoint-100/model.bin")
    assert (found.kind, found.mode, found.size_bytes, found.mtime_ns) == (EntryKind.FILE, 0o640, 3, NS)
    folder = tree.attributes(b"/checkpoints/checkpoint-100")
    assert (folder.kind, folder.mode, folder.mtime_ns) == (EntryKind.DIRECTORY, 0o750, NS)


def test_xattrs_name_digest_record_and_step(tree, job, memory):
    found = tree.lookup(b"/checkpoints/checkpoint-100/model.bin").xattrs()
    node = tree.lookup(b"/checkpoints/checkpoint-100/model.bin")
    assert isinstance(node, StoredFile)
    assert found == {
        "user.gpu_train.digest": node.entry.digest.hex().encode(),
        "user.gpu_train.record": job.checkpoints[0].record.hex().encode(),
        "user.gpu_train.step": b"100",
    }
    assert tree.lookup(b"/checkpoints/checkpoint-100").xattrs()["user.gpu_train.step"] == b"100"
    assert "user.gpu_train.step" not in tree.lookup(b"/code/train.py").xattrs()


def test_the_ratio_is_worked_out_only_when_it_is_asked_for_and_once(tree, catalogue):
    for path, ratio in ((b"model.bin", b"3.000"), (b"sub", b"2.167"), (b"", b"2.000")):
        measures = tree.lookup(b"/checkpoints/checkpoint-100/" + path).measures()
        assert list(measures) == ["user.gpu_train.codec_ratio"]
        before = catalogue.measured
        assert [measures["user.gpu_train.codec_ratio"]() for _ in range(2)] == [ratio, ratio]
        assert catalogue.measured == before + 1
    for path in (b"/checkpoints/checkpoint-100/sub/link", b"/logs/stdout.log", b"/job.json", b"/checkpoints"):
        assert tree.lookup(path).measures() == {}


def test_a_file_without_bytes_has_no_ratio(catalogue, memory):
    catalogue.shown["zero"] = ShownJob(b"{}", NS, checkpoints=(catalogue.checkpoint("c", {"zero": b""}, 1),))
    assert job_tree(catalogue, memory, "zero").lookup(b"/checkpoints/c/zero").measures() == {}


def test_names_with_slashes_are_nested_and_lie_over_their_parent(catalogue, memory):
    outer = catalogue.checkpoint("run", {"top.txt": b"top", "checkpoint-5": {"old": b"old"}}, 1)
    inner = catalogue.checkpoint("run/checkpoint-5", {"new": b"new"}, 2)
    other = catalogue.checkpoint("a/b/c", {"x": b"x"}, 3)
    catalogue.shown["nest"] = ShownJob(b"{}", NS, checkpoints=(outer, inner, other), latest=inner.record)
    tree = job_tree(catalogue, memory, "nest")
    assert set(names(tree, b"/checkpoints")) == {b"run", b"a"}
    assert names(tree, b"/checkpoints/run") == {b"top.txt": "FILE", b"checkpoint-5": "DIRECTORY"}
    assert content(tree, b"/checkpoints/run/top.txt") == b"top"
    assert set(names(tree, b"/checkpoints/run/checkpoint-5")) == {b"new"}
    assert content(tree, b"/checkpoints/a/b/c/x") == b"x"
    assert tree.attributes(b"/checkpoints/a/b").mtime_ns == 3 * NS
    latest = tree.lookup(b"/latest")
    assert isinstance(latest, Link)
    assert latest.target() == b"checkpoints/run/checkpoint-5"


def test_a_name_overwritten_in_place_is_its_newest_content_and_older_ones_have_a_version(catalogue, memory):
    rows = [catalogue.checkpoint("ckpt.pt", {"ckpt.pt": b"%d" % n}, n, version=n) for n in (1, 2, 3)]
    catalogue.shown["over"] = ShownJob(b"{}", NS, checkpoints=tuple(rows), latest=rows[2].record)
    tree = job_tree(catalogue, memory, "over")
    assert set(names(tree, b"/checkpoints")) == {b"ckpt.pt", b"ckpt.pt~1", b"ckpt.pt~2"}
    assert content(tree, b"/checkpoints/ckpt.pt/ckpt.pt") == b"3"
    assert content(tree, b"/checkpoints/ckpt.pt~1/ckpt.pt") == b"1"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("checkpoint-5", (b"checkpoint-5",)), ("a//b/", (b"a", b"b")), ("../../etc", (b"%2E%2E", b"%2E%2E", b"etc")),
        (".", (b"%2E",)), ("/", (b"%2F",)), ("a\0b", (b"a%00b",)), (os.fsdecode(b"\xff"), (b"\xff",)),
    ],
)  # fmt: skip
def test_no_name_leads_out_of_the_view(name, path):
    assert shown_path(name) == path


@pytest.mark.parametrize(
    "path", [b"/nothing", b"/checkpoints/nothing", b"/job.json/below", b"/latest/below", b"/checkpoints/../job.json"]
)
def test_a_path_that_is_not_there_is_not_found(tree, path):
    with pytest.raises(NotFound, match="no such file or folder"):
        tree.lookup(path)


def test_a_job_that_is_not_there_is_not_found(catalogue, memory):
    with pytest.raises(NotFound):
        job_tree(catalogue, memory, "nobody")


def test_a_missing_tree_or_record_is_damage_and_not_an_empty_folder(tree, catalogue, memory, job):
    memory.trees.clear()
    with pytest.raises(Damaged, match="is missing"):
        tree.lookup(b"/checkpoints/checkpoint-200/model.bin")
    catalogue.roots.clear()
    fresh = job_tree(catalogue, memory, "run")
    with pytest.raises(Damaged, match="listed but missing"):
        fresh.attributes(b"/checkpoints/checkpoint-200")
    assert fresh.attributes(b"/job.json").size_bytes > 0


def test_a_damaged_block_is_named_and_the_rest_stays_readable(catalogue, memory):
    record = catalogue.checkpoint("c", {"big": bytes(range(250)) * 20}, 1)
    catalogue.shown["hurt"] = ShownJob(b"{}", NS, checkpoints=(record,))
    tree = job_tree(catalogue, memory, "hurt")
    node = tree.lookup(b"/checkpoints/c/big")
    assert isinstance(node, StoredFile)
    memory.broken[node.entry.digest] = {2}
    handle = node.open()
    with pytest.raises(Damaged, match=r"block [0-9a-f]{16} \(bytes 2000 to 3000\) cannot be read"):
        handle.readinto(memoryview(bytearray(4000)), 0)
    assert handle.readinto(memoryview(bytearray(2000)), 0) == 2000
    assert handle.readinto(memoryview(bytearray(5000)), 3000) == 2000


def test_inode_numbers_are_stable_and_differ_by_path():
    assert inode(b"/") == inode(b"") == 1
    assert inode(b"/checkpoints/a/model.bin") == inode(b"/checkpoints/a/model.bin")
    paths = [f"/checkpoints/{n}/model.bin".encode() for n in range(1000)]
    assert len({inode(path) for path in paths} | {1}) == 1001
    assert all(1 < inode(path) < 1 << 63 for path in paths)


def test_totals_are_those_of_the_checkpoints(tree):
    assert tree.totals() == (3 + 1 + 12 + 3, 3)


def test_a_large_folder_is_decoded_once(catalogue, memory):
    catalogue.shown["many"] = ShownJob(
        b"{}", NS, checkpoints=(catalogue.checkpoint("c", {f"{n}": b"" for n in range(500)}, 1),)
    )
    tree = job_tree(catalogue, memory, "many")
    for n in range(500):
        assert tree.attributes(f"/checkpoints/c/{n}".encode()).size_bytes == 0
    assert memory.decoded == 1


# ---- the whole home ----------------------------------------------------------------------------------


def test_all_shows_jobs_code_and_data(catalogue, memory, job):
    catalogue.versions["0123456789abcdef"] = ShownCode(catalogue.record({"train.py": b"v1"}), 7 * NS)
    (catalogue.folder / "imdb").mkdir(parents=True)
    (catalogue.folder / "imdb" / "v1.json").write_bytes(b"{}")
    (catalogue.folder / "imdb" / "v1.json.tmp").write_bytes(b"half")
    catalogue.registered = (catalogue.checkpoint("Qwen/Qwen3-0.6B", {"model.safetensors": b"base"}, 1),)
    tree = home_tree(catalogue, memory)
    assert set(names(tree, b"/")) == {b"jobs", b"code", b"data", b"models"}
    assert names(tree, b"/models") == {b"Qwen": "DIRECTORY"}
    assert content(tree, b"/models/Qwen/Qwen3-0.6B/model.safetensors") == b"base"
    assert names(tree, b"/jobs") == {b"run": "DIRECTORY"}
    assert content(tree, b"/jobs/run/checkpoints/checkpoint-200/model.bin") == b"two"
    assert content(tree, b"/code/0123456789abcdef/train.py") == b"v1"
    assert tree.attributes(b"/code").mtime_ns == 7 * NS
    assert names(tree, b"/data/imdb") == {b"v1.json": "FILE"}
    assert content(tree, b"/data/imdb/v1.json") == b"{}"
    for path in (b"/jobs/nobody", b"/code/fedcba9876543210", b"/data/imdb/v1.json.tmp"):
        with pytest.raises(NotFound):
            tree.lookup(path)


def test_all_of_an_empty_home(catalogue, memory):
    tree = home_tree(catalogue, memory)
    assert [names(tree, b"/" + name) for name in (b"jobs", b"code", b"data", b"models")] == [{}, {}, {}, {}]


def test_a_model_that_was_registered_again_is_its_newest_content_and_that_is_a_change(catalogue, memory):
    first = catalogue.checkpoint("base", {"model.bin": b"one"}, 1, version=1)
    again = catalogue.checkpoint("base", {"model.bin": b"two"}, 2, version=2)
    catalogue.registered = (first,)
    shelf = Shelf(catalogue, memory, Clock())
    tree = FileTree(CheckpointFolder(shelf.models().root, shelf), shelf, lambda: pytest.fail("not asked for"))
    assert tree.changes() == []
    catalogue.registered = (first, again)
    catalogue.commits += 1
    changed = {b"/models" + part for part in (b"", b"/base", b"/base/model.bin", b"/base~1")}
    assert set(tree.changes()) == changed
    assert tree.changes() == []
    fresh = home_tree(catalogue, memory)
    assert content(fresh, b"/models/base/model.bin") == b"two"
    assert content(fresh, b"/models/base~1/model.bin") == b"one"


# ---- live files --------------------------------------------------------------------------------------


def test_live_folders_show_no_links_and_no_pipes(tree, job, tmp_path):
    (job.logs / "secret").symlink_to("/etc/passwd")
    os.mkfifo(job.logs / "pipe")
    (job.logs / "rank-1").mkdir()
    assert names(tree, b"/logs") == {b"stdout.log": "FILE", b"rank-1": "DIRECTORY"}
    for name in (b"secret", b"pipe"):
        with pytest.raises(NotFound):
            tree.lookup(b"/logs/" + name)


def test_a_log_that_grew_or_vanished_is_a_change_told_once(tree, job):
    before = tree.attributes(b"/logs/stdout.log")
    assert tree.changes() == []
    with (job.logs / "stdout.log").open("ab") as log:
        log.write(b"more\n")
    assert tree.changes() == [b"/logs/stdout.log"]
    assert tree.changes() == []
    assert tree.attributes(b"/logs/stdout.log").size_bytes == before.size_bytes + 5
    (job.logs / "stdout.log").unlink()
    assert tree.changes() == [b"/logs/stdout.log"]


# ---- changes in the registry -------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 10
        return self.now_s


@pytest.fixture
def timed(catalogue, memory, job):
    """A tree for which every look is ten seconds after the one before."""
    shelf = Shelf(catalogue, memory, Clock())
    return FileTree(JobFolder("run", b"", shelf), shelf, lambda: pytest.fail("not asked for"))


def test_nothing_is_read_again_while_the_registry_stays(timed, catalogue):
    timed.attributes(b"/checkpoints")
    reads = catalogue.reads
    timed.attributes(b"/checkpoints/checkpoint-100")
    assert timed.changes() == []
    assert catalogue.reads == reads == 1


def test_a_commit_elsewhere_changes_nothing(timed, catalogue):
    timed.attributes(b"/checkpoints")
    catalogue.commits += 1
    assert timed.changes() == []


def test_a_young_listing_is_believed(catalogue, memory, job):
    shelf = Shelf(catalogue, memory, lambda: 0.0)
    tree = FileTree(JobFolder("run", b"", shelf), shelf, lambda: pytest.fail("not asked for"))
    for _ in range(5):
        tree.attributes(b"/job.json")
        catalogue.commits += 1
    assert catalogue.reads == 1


def test_a_new_checkpoint_appears_and_moves_latest(timed, catalogue, job):
    assert set(names(timed, b"/checkpoints")) == {b"checkpoint-100", b"checkpoint-200"}
    third = catalogue.checkpoint("checkpoint-300", {"model.bin": b"three"}, 3)
    commit(catalogue, "run", checkpoints=(*job.checkpoints, third), latest=third.record)
    assert content(timed, b"/latest".replace(b"latest", b"checkpoints/checkpoint-300/model.bin")) == b"three"
    changed = timed.changes()
    assert {b"/", b"/latest", b"/checkpoints", b"/checkpoints/checkpoint-300"} <= set(changed)
    assert not any(b"checkpoint-100" in path for path in changed)
    assert len(changed) == len(set(changed))
    assert timed.changes() == []


def test_a_name_that_means_another_record_changes_everything_below_it(timed, catalogue, job):
    old = catalogue.checkpoint("ckpt.pt", {"ckpt.pt": b"old", "sub": {"x": b"x"}}, 3, version=1)
    new = catalogue.checkpoint("ckpt.pt", {"ckpt.pt": b"newer"}, 4, version=2)
    commit(catalogue, "run", checkpoints=(old,))
    assert content(timed, b"/checkpoints/ckpt.pt/ckpt.pt") == b"old"
    timed.changes()
    commit(catalogue, "run", checkpoints=(old, new))
    changed = set(timed.changes())
    below = {b"/checkpoints/ckpt.pt" + part for part in (b"", b"/ckpt.pt", b"/sub", b"/sub/x")}
    assert below | {b"/checkpoints/ckpt.pt~1"} <= changed
    assert content(timed, b"/checkpoints/ckpt.pt/ckpt.pt") == b"newer"


def test_a_checkpoint_that_is_gone_changes_everything_below_it(timed, catalogue, job):
    timed.attributes(b"/checkpoints/checkpoint-100/sub/a")
    commit(catalogue, "run", checkpoints=job.checkpoints[1:], best=None)
    changed = set(timed.changes())
    assert {b"/best", b"/checkpoints/checkpoint-100", b"/checkpoints/checkpoint-100/sub/a"} <= changed
    with pytest.raises(NotFound):
        timed.lookup(b"/checkpoints/checkpoint-100/sub/a")


def test_a_job_that_is_gone_is_told_and_forgotten(timed, catalogue, job):
    timed.attributes(b"/checkpoints/checkpoint-200/model.bin")
    del catalogue.shown["run"]
    catalogue.commits += 1
    assert {b"/", b"/checkpoints/checkpoint-200/model.bin"} <= set(timed.changes())
    assert timed.changes() == []
    with pytest.raises(NotFound):
        timed.lookup(b"/job.json")


def test_changes_are_told_although_the_old_content_cannot_be_read(timed, catalogue, job, memory):
    timed.attributes(b"/checkpoints/checkpoint-100")
    memory.trees.clear()
    commit(catalogue, "run", checkpoints=job.checkpoints[1:])
    assert b"/checkpoints/checkpoint-100" in timed.changes()


def test_ten_thousand_checkpoints_are_listed_by_one_read(catalogue, memory):
    record = catalogue.record({"x": b"x"})
    rows = tuple(ShownCheckpoint(n, f"checkpoint-{n}", 1, record, n, n * NS, 1, 1) for n in range(1, 10_001))
    catalogue.shown["long"] = ShownJob(b"{}", NS, checkpoints=rows, latest=record)
    tree = job_tree(catalogue, memory, "long")
    assert len(names(tree, b"/checkpoints")) == 10_000
    for n in range(1, 10_001, 100):
        tree.attributes(f"/checkpoints/checkpoint-{n}/x".encode())
    assert catalogue.reads == 1
    assert Path(os.fsdecode(tree.lookup(b"/latest").target())).name == "checkpoint-10000"


def test_of_many_that_look_first_one_reads(catalogue, memory, monkeypatch):
    row = catalogue.checkpoint("c-1", {"f": b"f"}, 1)
    catalogue.shown["run"] = ShownJob(b"{}\n", NS, checkpoints=(row,), latest=row.record)
    tree, entered, read = job_tree(catalogue, memory, "run"), threading.Event(), catalogue.job

    def slowly(job_id):
        entered.wait(20)
        return read(job_id)

    monkeypatch.setattr(catalogue, "job", slowly)
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(tree.attributes, b"/checkpoints/c-1") for _ in range(8)]
        entered.set()
        assert len({f.result(60) for f in found}) == 1
    assert catalogue.reads == 1
