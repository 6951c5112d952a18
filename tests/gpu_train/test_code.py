from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from gpu_train.code import CodeVersions
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import GpuTrainError, NotFound, UsageError

LATER_NS = 60_000_000_000
WatchOpens = Callable[[], AbstractContextManager[list[str]]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('train')\n")
    return folder


def later(workspace: Workspace) -> CodeVersions:
    """Code versions seen a minute on, when no file here is fresh any more."""
    return CodeVersions(workspace.home, workspace.config, workspace.store, clock=lambda: time.time_ns() + LATER_NS)


def records(workspace: Workspace) -> int:
    return sum(1 for _ in workspace.store.records("code"))


def packed_bytes(workspace: Workspace) -> int:
    return sum(file.stat().st_size for file in workspace.home.packs.rglob("*") if file.is_file())


def facts(root: Path) -> dict[bytes, tuple[int, bytes]]:
    """All below a folder: mode with kind, and bytes or target."""
    found = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in folders + files:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISDIR(mode):
                content = b""
            else:
                content = Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, os.fsencode(root))] = (mode, content)
    return found


def odd_tree(root: Path) -> None:
    """Everything a tree may hold: modes, links, empty folders, odd names and sizes."""
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret").write_text("s")
    (root / "secret").chmod(0o400)
    (root / "empty").mkdir()
    (root / "pkg" / "deep" / "empty").mkdir(parents=True)
    (root / "pkg" / "deep").chmod(0o700)
    (root / "zero").touch()
    (root / "big.bin").write_bytes(os.urandom(3 << 20))
    (root / "link").symlink_to("pkg/deep")
    (root / "dangling").symlink_to("/nowhere/at all")
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9\xff.py")).write_text("latin")
    (root / "naïve ☃.py").write_text("unicode")
    (root / "new\nline").write_text("n")
    (root / ("long" * 50)).write_text("l")


def test_the_same_tree_has_the_same_id_and_no_new_bytes(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    odd_tree(root)
    first = workspace.code.snapshot(root)
    assert len(first.id) == 16 and int(first.id, 16) >= 0
    assert first.new and first.new_bytes == first.size_bytes > 3 << 20
    assert first.files == sum(stat.S_ISREG(mode) for mode, _ in facts(root).values())
    before = packed_bytes(workspace)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, symlinks=True)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)  # times do not count
    for again in (workspace.code.snapshot(root), workspace.code.snapshot(copy)):
        assert (again.id, again.new, again.new_bytes) == (first.id, False, 0)
        assert (again.record, again.created_ns) == (first.record, first.created_ns)
    assert (records(workspace), packed_bytes(workspace)) == (1, before)


@pytest.mark.parametrize("change", ["bytes", "mode", "name", "target", "empty folder", "kind"])
def test_what_counts_changes_the_id(workspace: Workspace, root: Path, change: str) -> None:
    odd_tree(root)
    before = later(workspace).snapshot(root)
    if change == "bytes":
        (root / "secret").chmod(0o600)
        (root / "secret").write_text("t")
        (root / "secret").chmod(0o400)
    elif change == "mode":
        (root / "run.sh").chmod(0o644)
    elif change == "name":
        (root / "zero").rename(root / "nil")
    elif change == "target":
        (root / "link").unlink()
        (root / "link").symlink_to("pkg")
    elif change == "empty folder":
        (root / "empty").rmdir()
    else:
        (root / "zero").unlink()
        (root / "zero").mkdir()
    after = later(workspace).snapshot(root)
    assert after.new and after.id != before.id


def test_ten_thousand_unchanged_files_are_not_read_again(
    workspace: Workspace, root: Path, watch_opens: WatchOpens
) -> None:
    for n in range(10_000):
        folder = root / f"p{n // 100:02d}"
        if n % 100 == 0:
            folder.mkdir()
        (folder / f"module{n}.py").write_text(f"x = {n}\n")
    code = later(workspace)
    with watch_opens() as read:
        first = code.snapshot(root)
    assert sum("module" in name for name in read) == 10_000
    with watch_opens() as read:
        second = code.snapshot(root)
    assert (second.id, second.files, second.new_bytes) == (first.id, 10_001, 0)
    assert not [name for name in read if "module" in name or name == "train.py"]
    (root / "p50" / "module5000.py").write_text("x = -1\n")
    with watch_opens() as read:
        third = later(workspace).snapshot(root)
    assert [name for name in read if "module" in name] == ["module5000.py"]
    assert third.new_bytes == len("x = -1\n") and third.id != first.id
    assert code.diff(first.id, third.id).changed == ("p50/module5000.py",)


def test_an_edit_within_the_same_tick_is_seen(workspace: Workspace, root: Path) -> None:
    """Same size and the same mtime, edited right after the snapshot: only the racy window tells."""
    file = root / "train.py"
    ids = set()
    for letter in "abcdefgh":
        before = file.stat()
        with file.open("r+") as out:
            out.write(f"print('{letter}rain')")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        ids.add(workspace.code.snapshot(root).id)
    assert len(ids) == 8


def test_a_file_put_back_with_its_old_size_and_mtime_is_seen(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    first = later(workspace).snapshot(root)
    file, other = root / "train.py", tmp_path / "other"
    before = file.stat()
    other.write_text("print('brain')\n")
    other.chmod(stat.S_IMODE(before.st_mode))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)
    assert later(workspace).snapshot(root).id != first.id


def test_restore_gives_the_exact_tree(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    odd_tree(root)
    version = workspace.code.snapshot(root)
    want = facts(root)
    shutil.rmtree(root)
    workspace.code.restore(version.id[:6], tmp_path / "back")
    assert facts(tmp_path / "back") == want
    assert workspace.code.snapshot(tmp_path / "back").id == version.id


def test_excludes_and_what_was_left_out(workspace: Workspace, root: Path) -> None:
    for name in (".git/HEAD", ".venv/lib/x.so", "__pycache__/m.pyc", "data/big.bin", "out/a.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("0123456789")
    (root / "data" / "big.bin").write_bytes(bytes(5000))
    (root / ".gpu-trainignore").write_text("data/\n")
    version = workspace.code.snapshot(root, leave_out=[root / "out"])
    assert version.files == 2
    assert (version.left_out.files, version.left_out.size_bytes, version.left_out.exact) == (5, 5040, True)
    assert version.left_out.largest[0].path == "data/"
    assert workspace.code.get(version.id).left_out == version.left_out


def test_settings_speak_about_excludes(tmp_path: Path, root: Path) -> None:
    (root / ".gitignore").write_text("*.csv\n")
    (root / "a.csv").write_text("1")
    (root / "a.npy").write_text("1")
    (tmp_path / "gpu-train.toml").write_text("[defaults]\nuse_gitignore = true\ncode_exclude = ['*.npy']\n")
    with Workspace.open(tmp_path / "home", cwd=tmp_path) as workspace:
        assert workspace.code.snapshot(root).files == 2
        assert workspace.code.snapshot(root, gitignore=False).files == 3


def test_the_home_inside_the_tree_is_left_out(root: Path) -> None:
    with Workspace.open(root / "my home", cwd=root) as workspace:
        ids = {workspace.code.snapshot(root).id for _ in range(3)}
        assert len(ids) == 1
        assert workspace.code.get(ids.pop()).files == 1


def test_a_fifo_and_a_socket_are_skipped_and_said(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / "pipe")
    version = workspace.code.snapshot(root)
    assert (version.files, version.skipped) == (1, ("pipe",))
    assert workspace.code.get(version.id).skipped == ("pipe",)


def test_git_facts_are_those_of_each_snapshot(workspace: Workspace, root: Path) -> None:
    assert workspace.code.snapshot(root).git is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    clean = workspace.code.snapshot(root)
    assert clean.git is not None and clean.git.branch == "main" and clean.git.dirty is False
    assert not clean.new
    (root / "new.py").write_text("")
    dirty = workspace.code.snapshot(root)
    assert dirty.git is not None and dirty.git.dirty is True and dirty.git.commit == clean.git.commit
    assert workspace.code.get(dirty.id).git == dirty.git


def test_exports_are_equal_byte_for_byte(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    odd_tree(root)
    first = workspace.code.export(workspace.code.snapshot(root).id)
    assert first == workspace.home.code / f"{workspace.code.list()[0].id}.tar.gz"
    digest = hashlib.sha256(first.read_bytes()).digest()
    copy = tmp_path / "copy"
    shutil.copytree(root, copy, symlinks=True)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    with Workspace.open(tmp_path / "second", cwd=tmp_path) as other:
        second = other.code.export(other.code.snapshot(copy).id[:8])
    assert second.name == first.name
    assert hashlib.sha256(second.read_bytes()).digest() == digest
    assert [file.name for file in workspace.home.code.iterdir()] == [first.name]


def test_an_export_unpacks_to_the_tree(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    odd_tree(root)
    archive = workspace.code.export(workspace.code.snapshot(root).id)
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["tar", "-xpzf", archive, "-C", out], check=True)
    assert facts(out) == facts(root)
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    names = [member.name for member in members]
    assert names == sorted(names, key=lambda n: n.encode("utf-8", "surrogateescape").split(b"/"))
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}


def test_list_get_and_prefixes(workspace: Workspace, root: Path) -> None:
    made = []
    for n in range(40):
        (root / "n").write_text(str(n))
        made.append(workspace.code.snapshot(root).id)
    assert [v.id for v in workspace.code.list()] == made[::-1]
    assert workspace.code.get(made[3]).id == made[3]
    assert workspace.code.get(made[3][:12].upper()).id == made[3]
    shared = next(a[0] for i, a in enumerate(made) for b in made[i + 1 :] if a[0] == b[0])
    with pytest.raises(UsageError, match="give more digits"):
        workspace.code.get(shared)
    for missing in ("zz", "", "0" * 16):
        with pytest.raises(NotFound, match="gpu-train code"):
            workspace.code.get(missing)


def test_diff_names_paths(workspace: Workspace, root: Path) -> None:
    odd_tree(root)
    old = workspace.code.snapshot(root).id
    (root / "zero").unlink()
    (root / "run.sh").chmod(0o700)
    (root / "pkg" / "deep").chmod(0o755)
    (root / "pkg" / "new").mkdir()
    (root / "pkg" / "new" / "a.py").write_text("a")
    (root / "pkg" / "new" / "void").mkdir()
    (root / "empty").rmdir()
    (root / "link").unlink()
    (root / "link").write_text("a file now")
    new = workspace.code.snapshot(root).id
    found = workspace.code.diff(old, new)
    assert found.added == ("pkg/new/a.py", "pkg/new/void/")
    assert found.removed == ("empty/", "zero")
    assert found.changed == ("link", "pkg/deep/", "run.sh")
    back = workspace.code.diff(new, old)
    assert (back.added, back.removed, back.changed) == (found.removed, found.added, found.changed)
    assert not workspace.code.diff(new, new)


def test_a_version_in_the_trash_comes_back_with_its_tree(workspace: Workspace, root: Path) -> None:
    first = later(workspace).snapshot(root)
    workspace.store.trash(first.record)
    assert workspace.code.list() == []
    with pytest.raises(NotFound):
        workspace.code.get(first.id)
    again = later(workspace).snapshot(root)
    assert (again.id, again.record) == (first.id, first.record)
    assert [v.id for v in workspace.code.list()] == [first.id]


def test_snapshots_at_the_same_time_make_one_version(tmp_path: Path, root: Path) -> None:
    odd_tree(root)
    found, homes = [], [Workspace.open(tmp_path / "home", cwd=tmp_path) for _ in range(4)]
    start = threading.Barrier(4)

    def take(workspace: Workspace) -> None:
        start.wait()
        found.append(workspace.code.snapshot(root))

    threads = [threading.Thread(target=take, args=(w,)) for w in homes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({v.id for v in found}) == len({v.record for v in found}) == 1
    assert sum(v.new for v in found) == 1
    assert records(homes[0]) == 1
    for workspace in homes:
        workspace.close()


def test_a_file_that_cannot_be_read_is_named(workspace: Workspace, root: Path) -> None:
    (root / "hidden").write_text("x")
    (root / "hidden").chmod(0)
    if os.access(root / "hidden", os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(GpuTrainError, match=r"project/hidden: .*\.gpu-trainignore"):
        workspace.code.snapshot(root)


def test_a_log_that_another_run_writes_is_skipped_and_said(workspace: Workspace, root: Path) -> None:
    log = root / "other.log"
    log.write_bytes(bytes(32 << 20))
    stop, started = threading.Event(), threading.Event()

    def write() -> None:
        with log.open("ab") as out:
            while not stop.is_set():
                out.write(b"step\n")
                out.flush()
                started.set()

    writer = threading.Thread(target=write)
    writer.start()
    started.wait()
    try:
        version = workspace.code.snapshot(root)
    finally:
        stop.set()
        writer.join()
    assert (version.files, version.skipped) == (1, ("other.log",))
    assert workspace.code.get(version.id).skipped == ("other.log",)
    assert workspace.code.snapshot(root).files == 2


def test_what_is_no_folder(workspace: Workspace, root: Path) -> None:
    with pytest.raises(NotFound, match="not there"):
        workspace.code.snapshot(root / "missing")
    with pytest.raises(UsageError, match="no folder"):
        workspace.code.snapshot(root / "train.py")


def test_a_tree_with_nothing_in_it(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "void").mkdir()
    version = workspace.code.snapshot(tmp_path / "void")
    assert (version.files, version.size_bytes, version.new) == (0, 0, True)
    workspace.code.restore(version.id, tmp_path / "back")
    assert list((tmp_path / "back").iterdir()) == []
