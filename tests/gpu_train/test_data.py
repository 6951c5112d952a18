from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import gpu_train
from gpu_train.data_version import DataVersions
from gpu_train.errors import DataChanged
from gpu_train.stat_cache import Signature, StatCache, signature_of
from gpu_train.tables import Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import NotFound, SourceChanged, UsageError

LATER_NS = 60_000_000_000
WatchOpens = Callable[[], AbstractContextManager[list[str]]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "a.txt").write_text("alpha")
    (folder / "train" / "b.txt").write_text("beta")
    (folder / "labels.csv").write_text("0,1\n")
    return folder


def later(workspace: Workspace) -> DataVersions:
    """Data versions seen a minute on, when no file here is fresh any more."""
    return DataVersions(workspace.home, workspace.store, workspace.jobs, clock=lambda: time.time_ns() + LATER_NS)


def stat_of(path: Path) -> Signature:
    return signature_of(path.stat())


def records(workspace: Workspace) -> int:
    return sum(1 for _ in workspace.store.records("data"))


def test_register_gives_facts_and_leaves_the_data_alone(workspace: Workspace, data: Path) -> None:
    before = {path: path.stat() for path in data.rglob("*")}
    version = workspace.data.register(data, "imdb")
    assert (version.name, version.num_files, version.size_bytes) == ("imdb", 3, 13)
    assert (version.path, version.new, version.skipped) == (data, True, ())
    assert len(version.version) == 16 and int(version.version, 16) >= 0
    assert {path: path.stat() for path in data.rglob("*")} == before


def test_the_version_is_what_the_guide_says(workspace: Workspace, data: Path) -> None:
    lines = b"gpu-train data 1\n"
    for name in ("labels.csv", "train/a.txt", "train/b.txt"):
        content = (data / name).read_bytes()
        lines += f"{hashlib.sha256(content).hexdigest()} {len(content)} {name}\0".encode()
    assert workspace.data.register(data, "imdb").version == hashlib.sha256(lines).hexdigest()[:16]


def test_the_same_content_is_the_same_version(workspace: Workspace, data: Path, tmp_path: Path) -> None:
    first = workspace.data.register(data, "imdb")
    rows = [workspace.data.list(), records(workspace)]
    for path in data.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    again = workspace.data.register(data, "imdb")
    assert (again.ref, again.new, again.registered_ns) == (first.ref, False, first.registered_ns)
    assert [workspace.data.list(), records(workspace)] == rows
    assert workspace.data.register(data, "other").version == first.version
    moved = data.rename(tmp_path / "moved")
    third = workspace.data.register(moved, "imdb")
    assert (third.version, third.new, third.path, third.created_ns) == (first.version, False, moved, first.created_ns)
    assert workspace.data.resolve("imdb") == moved


def test_the_manifest_is_json_below_the_home_and_in_the_store(workspace: Workspace, data: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(data) + b"/caf\xe9"))
    odd.write_text("x")
    version = workspace.data.register(data, "imdb")
    file = workspace.home.data / "imdb" / f"{version.version}.json"
    row = json.loads(file.read_text())
    assert (row["schema_version"], row["name"], row["version"]) == (1, "imdb", version.version)
    assert (row["path"], row["is_folder"], row["num_files"], row["size_bytes"]) == (str(data), True, 4, 14)
    assert row["created"].endswith("Z") and row["skipped"] == []
    assert row["files"][0] == {
        "path": "caf\ufffd", "path_b64": "Y2Fm6Q==", "size": 1, "sha256": hashlib.sha256(b"x").hexdigest(),
    }  # fmt: skip
    assert [f["path"] for f in row["files"][1:]] == ["labels.csv", "train/a.txt", "train/b.txt"]
    manifest = workspace.data.manifest("imdb")
    assert [f.path for f in manifest.files] == [b"caf\xe9", b"labels.csv", b"train/a.txt", b"train/b.txt"]
    assert manifest.version() == version.version
    stored = file.read_bytes()
    file.unlink()
    workspace.data.register(data, "imdb")
    assert file.read_bytes() == stored
    assert [f.name for f in file.parent.iterdir()] == [file.name]


def test_a_single_file(workspace: Workspace, data: Path) -> None:
    version = workspace.data.register(data / "labels.csv", "labels")
    assert (version.num_files, version.size_bytes) == (1, 4)
    assert workspace.data.resolve("labels") == data / "labels.csv"
    (data / "labels.csv").write_text("1,0\n")
    with pytest.raises(DataChanged, match=r"1 changed: labels\.csv"):
        workspace.data.resolve("labels")


def test_unchanged_files_are_not_read_again(workspace: Workspace, data: Path, watch_opens: WatchOpens) -> None:
    def read() -> list[str]:
        return sorted(Path(name).name for name in opened if Path(name).is_relative_to(data) and Path(name).suffix)

    with watch_opens() as opened:
        later(workspace).register(data, "imdb")
    assert read() == ["a.txt", "b.txt", "labels.csv"]
    (data / "train" / "b.txt").write_text("gamma!")
    with watch_opens() as opened:
        second = later(workspace).register(data, "imdb")
    assert read() == ["b.txt"]
    with watch_opens() as opened:
        assert later(workspace).resolve("imdb") == data
    assert read() == []
    with watch_opens() as opened:
        assert later(workspace).register(data, "imdb", rehash=True).version == second.version
    assert read() == ["a.txt", "b.txt", "labels.csv"]
    with watch_opens() as opened:
        later(workspace).resolve("imdb", verify=True)
    assert read() == ["a.txt", "b.txt", "labels.csv"]


@pytest.mark.parametrize("change", ["bytes", "size", "missing", "extra", "inode", "to folder"])
def test_data_changed_under_the_same_name(workspace: Workspace, data: Path, tmp_path: Path, change: str) -> None:
    version = later(workspace).register(data, "imdb")
    file = data / "train" / "a.txt"
    before = file.stat()
    told = r"1 changed: train/a\.txt"
    if change == "bytes":
        file.write_text("ALPHA")
    elif change == "size":
        file.write_text("alphabet")
    elif change == "missing":
        file.unlink()
        told = r"1 missing: train/a\.txt"
    elif change == "extra":
        (data / "new.txt").write_text("")
        told = r"1 new: new\.txt"
    elif change == "inode":
        other = tmp_path / "other"
        other.write_text("ALPHA")
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(file)
    else:
        file.unlink()
        file.mkdir()
        (file / "x").write_text("")
        told = r"1 missing: train/a\.txt; 1 new: train/a\.txt/x"
    for resolve in (workspace.data.resolve, later(workspace).resolve):
        with pytest.raises(DataChanged, match=told) as caught:
            resolve("imdb")
        assert caught.value.exit_code == 4
        assert (caught.value.name, caught.value.version) == ("imdb", version.version)
        assert "gpu-train data --register" in str(caught.value)
    changed = workspace.data.register(data, "imdb")
    assert changed.version != version.version
    assert workspace.data.resolve("imdb") == data
    with pytest.raises(DataChanged):
        workspace.data.resolve(version.ref)
    assert workspace.data.diff(version.ref, changed.ref)


def test_an_edit_right_after_registering_is_seen(workspace: Workspace, data: Path) -> None:
    file = data / "labels.csv"
    for letter in "abcdef":
        file_before = file.stat()
        workspace.data.register(data, "imdb")
        with file.open("r+") as out:
            out.write(letter)
        os.utime(file, ns=(file_before.st_atime_ns, file_before.st_mtime_ns))
        with pytest.raises(DataChanged, match="1 changed"):
            workspace.data.resolve("imdb")


def test_only_the_first_few_differing_files_are_named(workspace: Workspace, data: Path) -> None:
    workspace.data.register(data, "imdb")
    for n in range(9):
        (data / f"n{n}").touch()
    with pytest.raises(DataChanged, match=r"9 new: n0, n1, n2, n3, n4, \.\.\."):
        workspace.data.resolve("imdb")


def test_damage_that_stat_does_not_show_is_found_by_verify(workspace: Workspace, data: Path) -> None:
    """A disk that changes bytes by itself: the stat is the noted one, the bytes are others."""
    later(workspace).register(data, "imdb")
    cache = StatCache.open(workspace.home.cache, "data", data, clock=lambda: time.time_ns() + LATER_NS)
    noted = {path: cache.get(path.encode(), stat_of(data / path)) for path in ("labels.csv", "train/a.txt")}
    (data / "labels.csv").write_text("9,9\n")
    for path, digest in noted.items():
        assert digest is not None
        cache.put(path.encode(), stat_of(data / path), digest)
    cache.save()
    assert workspace.data.resolve("imdb") == data
    with pytest.raises(DataChanged, match=r"1 changed: labels\.csv"):
        workspace.data.resolve("imdb", verify=True)
    with pytest.raises(DataChanged, match=r"1 changed: labels\.csv"):
        workspace.data.resolve("imdb")  # what was read is believed from now on
    assert workspace.data.verify("imdb").changed == ("labels.csv",)
    (data / "labels.csv").write_text("0,1\n")
    assert not workspace.data.verify("imdb")


def test_verify_names_all_that_differs(workspace: Workspace, data: Path) -> None:
    workspace.data.register(data, "imdb")
    (data / "labels.csv").unlink()
    (data / "train" / "a.txt").write_text("ALPHA")
    (data / "z").touch()
    found = workspace.data.verify("imdb")
    assert (found.added, found.removed, found.changed) == (("z",), ("labels.csv",), ("train/a.txt",))


def test_links_count_as_what_they_lead_to(workspace: Workspace, data: Path, tmp_path: Path) -> None:
    outside = tmp_path / "disk2"
    (outside / "more").mkdir(parents=True)
    (outside / "more" / "c.txt").write_text("gamma")
    (outside / "single").write_text("single")
    (data / "linked").symlink_to(outside / "more")
    (data / "one").symlink_to(outside / "single")
    version = workspace.data.register(data, "imdb")
    copy = tmp_path / "copy"
    for path in [*data.rglob("*"), data / "linked" / "c.txt"]:
        if path.is_file():
            (copy / path.relative_to(data)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(data)).write_bytes(path.read_bytes())
    assert workspace.data.register(copy, "copy").version == version.version
    (outside / "single").write_text("SINGLE")
    with pytest.raises(DataChanged, match="1 changed: one"):
        workspace.data.resolve("imdb")


def test_endless_and_dangling_links_and_sockets_are_skipped_and_said(
    workspace: Workspace, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "train" / "loop").symlink_to(data)
    (data / "self").symlink_to("self")
    (data / "gone").symlink_to("/nowhere")
    os.mkfifo(data / "pipe")
    monkeypatch.chdir(data)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        version = workspace.data.register(data, "imdb")
    assert version.num_files == 3
    assert version.skipped == ("gone", "pipe", "self", "socket", "train/loop")
    row = json.loads((workspace.home.data / "imdb" / f"{version.version}.json").read_text())
    assert {s["path"]: s["reason"] for s in row["skipped"]}["train/loop"] == "a link to a folder it lies in"
    assert workspace.data.resolve("imdb") == data


def test_the_home_inside_the_data_is_skipped(data: Path) -> None:
    with Workspace.open(data / "home", cwd=data) as workspace:
        version = workspace.data.register(data, "imdb")
        assert (version.num_files, version.skipped) == (3, ("home",))
        assert workspace.data.resolve("imdb") == data


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a@b", ".hidden", "a\0b", "-x", "x" * 101, "naïve", "a b"])
def test_names_that_cannot_be_used(workspace: Workspace, data: Path, name: str) -> None:
    with pytest.raises(UsageError, match="data name"):
        workspace.data.register(data, name)


def test_refs(workspace: Workspace, data: Path) -> None:
    made = []
    for n in range(20):
        (data / "n").write_text(str(n))
        made.append(workspace.data.register(data, "imdb"))
    assert workspace.data.get("imdb").version == made[-1].version
    assert [v.version for v in workspace.data.list("imdb")] == [v.version for v in made[::-1]]
    assert workspace.data.get(f"imdb@{made[4].version[:10].upper()}").version == made[4].version
    shared = next(a.version[0] for i, a in enumerate(made) for b in made[i + 1 :] if a.version[0] == b.version[0])
    with pytest.raises(UsageError, match="give more digits"):
        workspace.data.get(f"imdb@{shared}")
    with pytest.raises(NotFound, match="no version 'zz'"):
        workspace.data.get("imdb@zz")
    with pytest.raises(NotFound, match="no version ''"):
        workspace.data.get("imdb@")
    with pytest.raises(NotFound, match="did you mean imdb"):
        workspace.data.get("imbd")
    workspace.data.register(data / "n", "imdb-large")  # a name that begins with another one's
    assert len(workspace.data.list("imdb")) == 20
    assert len(workspace.data.list()) == 21


def test_registering_an_older_content_again_makes_it_the_newest(workspace: Workspace, data: Path) -> None:
    old = workspace.data.register(data, "imdb")
    (data / "extra").touch()
    workspace.data.register(data, "imdb")
    (data / "extra").unlink()
    again = workspace.data.register(data, "imdb")
    assert (again.version, again.new, again.created_ns) == (old.version, False, old.created_ns)
    assert workspace.data.get("imdb").version == old.version
    assert records(workspace) == 2


def test_what_is_not_there(workspace: Workspace, data: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not there"):
        workspace.data.register(data / "missing", "imdb")
    (tmp_path / "void").mkdir()
    with pytest.raises(UsageError, match="no file"):
        workspace.data.register(tmp_path / "void", "imdb")
    workspace.data.register(data, "imdb")
    data.rename(tmp_path / "moved")
    with pytest.raises(NotFound, match="put it back, or register it where it is now"):
        workspace.data.resolve("imdb")


def test_a_version_in_the_trash_is_gone_until_it_is_registered_again(workspace: Workspace, data: Path) -> None:
    version = workspace.data.register(data, "imdb")
    workspace.store.trash(version.record)
    assert workspace.data.list() == []
    with pytest.raises(NotFound):
        workspace.data.resolve("imdb")
    again = workspace.data.register(data, "imdb")
    assert (again.record, again.ref) == (version.record, version.ref)
    assert workspace.data.resolve("imdb") == data


def test_resolving_inside_a_job_is_noted_on_it(
    workspace: Workspace, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = workspace.data.register(data, "imdb")
    workspace.jobs.put(Job(id="run-aaaaaa", name="run"))
    workspace.data.resolve("imdb")
    assert workspace.jobs.find("run-aaaaaa").data == ()
    monkeypatch.setenv("GPU_TRAIN_JOB_ID", "run-aaaaaa")
    for _ in range(2):
        assert gpu_train.data.resolve("imdb") == data
    assert workspace.jobs.find("run-aaaaaa").data == (version.ref,)
    (data / "labels.csv").unlink()
    with pytest.raises(DataChanged):
        gpu_train.data.resolve("imdb")
    assert workspace.jobs.find("run-aaaaaa").data == (version.ref,)
    monkeypatch.setenv("GPU_TRAIN_JOB_ID", "unknown-bbbbbb")
    second = gpu_train.data.register(data, name="imdb")
    assert gpu_train.data.resolve(second.ref) == data


def test_the_public_functions(workspace: Workspace, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = gpu_train.data.register(data, name="imdb")
    assert (first.num_files, first.size_bytes) == (3, 13)
    assert gpu_train.data.resolve(f"imdb@{first.version}") == data
    assert gpu_train.data.show("imdb").ref == first.ref
    assert not gpu_train.data.verify("imdb")
    (data / "new").touch()
    second = gpu_train.data.register(str(data), name="imdb")
    assert gpu_train.data.diff(first.ref, second.ref).added == ("new",)
    assert [v.ref for v in gpu_train.data.list()] == [second.ref, first.ref]


def test_registering_at_the_same_time_makes_one_version(tmp_path: Path, data: Path) -> None:
    homes = [Workspace.open(tmp_path / "home", cwd=tmp_path) for _ in range(4)]
    found, start = [], threading.Barrier(4)

    def register(workspace: Workspace) -> None:
        start.wait()
        found.append(workspace.data.register(data, "imdb"))

    threads = [threading.Thread(target=register, args=(w,)) for w in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({v.record for v in found}) == 1 and len(found) == 4
    assert records(homes[0]) == 1
    for workspace in homes:
        workspace.close()


def test_processes_that_register_at_the_same_time(workspace: Workspace, data: Path) -> None:
    script = "import sys, gpu_train; print(gpu_train.data.register(sys.argv[1], name=sys.argv[2]).ref)"
    names = ["imdb", "imdb", "other"]
    running = [
        subprocess.Popen([sys.executable, "-c", script, data, name], stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    refs = [process.communicate(timeout=120)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len({ref.partition("@")[2] for ref in refs}) == 1
    assert sorted(v.ref for v in workspace.data.list()) == sorted(set(refs))
    assert records(workspace) == 2


def test_a_large_file_that_keeps_changing_is_an_error(workspace: Workspace, data: Path) -> None:
    file = data / "growing"
    file.write_bytes(bytes(64 << 20))
    stop = threading.Event()
    started = threading.Event()

    def write() -> None:
        with file.open("r+b") as out:
            while not stop.is_set():
                out.seek(0)
                out.write(b"x")
                out.flush()
                started.set()

    writer = threading.Thread(target=write)
    writer.start()
    started.wait()
    try:
        with pytest.raises(SourceChanged, match=r"growing changed while it was being read"):
            workspace.data.register(data, "imdb")
    finally:
        stop.set()
        writer.join()
    assert records(workspace) == 0
    assert workspace.data.register(data, "imdb").num_files == 4
