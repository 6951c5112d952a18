"""Real mounts, read by real programs."""

import ctypes
import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from blake3 import blake3

import gpu_train_fuse
from gpu_train import retention
from gpu_train_cas.pack import pack_path


def sh(*command, **options):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=120, **options).stdout


def loads(library):
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


@pytest.fixture
def shown(lab, mount):
    """A job with one checkpoint of everything that is easily lost: (the source, the mount)."""
    source = lab.awkward()
    job = lab.job("run")
    lab.checkpoint(job, "checkpoint-100", source, step=100, metrics={"loss": 1.0})
    return source, mount("run")


@pytest.fixture
def checkpoint(shown):
    source, mounted = shown
    return source, mounted / "checkpoints" / "checkpoint-100"


# ---- looking -------------------------------------------------------------------------------------


def test_a_mount_looks_as_promised(shown):
    _, mounted = shown
    assert sorted(os.listdir(mounted)) == ["best", "checkpoints", "job.json", "latest"]
    assert os.readlink(mounted / "latest") == os.readlink(mounted / "best") == "checkpoints/checkpoint-100"
    assert (mounted / "latest" / "sub" / "deep" / "notes.txt").read_text() == "notes\n"
    assert '"id": "run-aaaaaa"' in (mounted / "job.json").read_text()


def test_inode_numbers_are_the_same_in_readdir_in_stat_and_in_another_mount(checkpoint, mount, tmp_path):
    _, mounted = checkpoint
    with os.scandir(mounted) as entries:
        seen = {entry.name: entry.inode() for entry in entries}
    assert seen == {name: os.lstat(mounted / name).st_ino for name in seen}
    again = mount("run", tmp_path / "again") / "checkpoints" / "checkpoint-100"
    assert seen == {name: os.lstat(again / name).st_ino for name in seen}
    assert len(set(seen.values())) == len(seen)


def test_xattrs(checkpoint):
    source, mounted = checkpoint
    digest = os.getxattr(mounted / "model.bin", "user.gpu_train.digest")
    assert digest.decode() == blake3((source / "model.bin").read_bytes()).hexdigest()
    assert os.getxattr(mounted, "user.gpu_train.step") == b"100"
    assert sorted(os.listxattr(mounted)) == [f"user.gpu_train.{n}" for n in ("codec_ratio", "digest", "record", "step")]
    with pytest.raises(OSError) as caught:
        os.getxattr(mounted, "user.other")
    assert caught.value.errno == errno.ENODATA


def test_the_ratio_is_what_a_file_takes_by_itself_whoever_shares_its_blocks(lab, mount):
    job, noise = lab.job("small"), os.urandom(1 << 20)
    first = lab.folder("one", {"text": b"again " * 500_000, "noise": noise, "often": noise * 8})
    lab.checkpoint(job, "checkpoint-1", first)
    lab.checkpoint(job, "checkpoint-2", lab.folder("two", {"noise": noise}))
    mounted = mount("small") / "checkpoints"

    def ratio(path):
        return float(os.getxattr(mounted / path, "user.gpu_train.codec_ratio"))

    assert ratio("checkpoint-1/text") > 100
    assert ratio("checkpoint-1/noise") == ratio("checkpoint-2/noise") == 1.0
    assert ratio("checkpoint-1/often") > 2
    assert ratio("checkpoint-2") == 1.0 < ratio("checkpoint-1")


def test_df_shows_the_checkpoints_size_and_no_room(shown):
    source, mounted = shown
    size = sum(path.lstat().st_size for path in source.rglob("*") if path.is_file() and not path.is_symlink())
    disk = os.statvfs(mounted)
    assert disk.f_blocks == -(-size // disk.f_frsize)
    assert (disk.f_bavail, disk.f_ffree) == (0, 0)
    assert shutil.disk_usage(mounted).free == 0


# ---- reading -------------------------------------------------------------------------------------


@pytest.mark.skipif(not loads("libfuse.so.2"), reason="libfuse 2 is not installed")
def test_libfuse_2_shows_the_same_and_new_checkpoints_too(lab, mount, monkeypatch, same_tree, until):
    monkeypatch.setenv("FUSE_LIBRARY_PATH", "libfuse.so.2")
    source = lab.awkward()
    job = lab.job("old")
    lab.checkpoint(job, "checkpoint-1", source)
    mounted = mount("old")
    same_tree(source, mounted / "checkpoints" / "checkpoint-1")
    with pytest.raises(OSError) as caught:
        (mounted / "new").mkdir()
    assert caught.value.errno == errno.EROFS
    lab.checkpoint(job, "checkpoint-2", lab.folder("next", {"x": b"2"}))
    until(lambda: (mounted / "latest" / "x").exists())
    gpu_train_fuse.umount(gpu_train_fuse.find("old-aaaaaa", lab.workspace.home.root)[0])


# ---- writing -------------------------------------------------------------------------------------

WRITES = {
    "open for writing": lambda m: os.open(m / "model.bin", os.O_WRONLY),
    "open for both": lambda m: os.open(m / "model.bin", os.O_RDWR),
    "create": lambda m: os.open(m / "new", os.O_CREAT | os.O_WRONLY),
    "truncate": lambda m: os.truncate(m / "model.bin", 0),
    "unlink": lambda m: (m / "model.bin").unlink(),
    "rename": lambda m: os.rename(m / "model.bin", m / "other"),
    "mkdir": lambda m: (m / "new").mkdir(),
    "rmdir": lambda m: (m / "empty").rmdir(),
    "symlink": lambda m: (m / "new").symlink_to("x"),
    "hard link": lambda m: os.link(m / "model.bin", m / "new"),
    "chmod": lambda m: (m / "model.bin").chmod(0o777),
    "chown": lambda m: os.chown(m / "model.bin", 0, 0),
    "utimes": lambda m: os.utime(m / "model.bin"),
    "mkfifo": lambda m: os.mkfifo(m / "new"),
    "set an xattr": lambda m: os.setxattr(m / "model.bin", "user.x", b"1"),
    "remove an xattr": lambda m: os.removexattr(m / "model.bin", "user.gpu_train.step"),
}


def test_every_write_is_refused_as_on_a_read_only_file_system(checkpoint):
    _, mounted = checkpoint
    refused = {}
    for what, attempt in WRITES.items():
        with pytest.raises(OSError) as caught:
            attempt(mounted)
        refused[what] = errno.errorcode[caught.value.errno]
    assert refused == dict.fromkeys(WRITES, "EROFS")
    assert not os.access(mounted / "model.bin", os.W_OK)


# ---- growing -------------------------------------------------------------------------------------


def test_new_checkpoints_appear_in_a_standing_mount(shown, lab, until):
    _, mounted = shown
    before = (mounted / "checkpoints").stat().st_mtime_ns
    assert not (mounted / "checkpoints" / "checkpoint-200").exists()
    job = lab.workspace.jobs.find("run")
    other = lab.folder("next", {"model.bin": b"second"})
    lab.checkpoint(job, "checkpoint-200", other, step=200, metrics={"loss": 0.5})
    until((mounted / "checkpoints" / "checkpoint-200").exists)
    until(lambda: os.readlink(mounted / "latest") == os.readlink(mounted / "best") == "checkpoints/checkpoint-200")
    assert sorted(os.listdir(mounted / "checkpoints")) == ["checkpoint-100", "checkpoint-200"]
    assert (mounted / "latest" / "model.bin").read_bytes() == b"second"
    until(lambda: (mounted / "checkpoints").stat().st_mtime_ns > before)


def test_a_name_that_is_overwritten_in_place_shows_its_newest_content(lab, mount, until):
    job = lab.job("over")
    lab.checkpoint(job, "ckpt.pt", lab.folder("v1", {"ckpt.pt": b"first" * 1000}))
    path = mount("over") / "checkpoints" / "ckpt.pt" / "ckpt.pt"
    assert path.read_bytes() == b"first" * 1000
    lab.checkpoint(job, "ckpt.pt~2", lab.folder("v2", {"ckpt.pt": b"the second" * 5000}))
    older = path.parent.parent / "ckpt.pt~1" / "ckpt.pt"
    until(older.exists)
    until(lambda: path.stat().st_size == 50_000)
    assert path.read_bytes() == b"the second" * 5000
    assert older.read_bytes() == b"first" * 1000


def test_what_is_removed_while_it_is_read_is_read_to_the_end(lab, mount, until):
    job, data = lab.job("gone", status="finished"), os.urandom(3_000_000)
    row = lab.checkpoint(job, "checkpoint-1", lab.folder("gone", {"model.bin": data}))
    path = mount("gone") / "checkpoints" / "checkpoint-1" / "model.bin"
    with path.open("rb") as file:
        retention.remove(lab.workspace, [row])
        kept = lab.workspace.store.gc(trash_days=0).kept
        assert len(kept) == 1 and "stays in the trash: a mount (pid " in kept[0]
        until(lambda: not path.exists())
        assert file.read(len(data) + 1) == data
    until(lambda: lab.workspace.store.gc(trash_days=0).records == [row.record])


def test_incomplete_checkpoints_are_not_shown(lab, mount):
    job = lab.job("half")
    lab.checkpoint(job, "checkpoint-1", lab.folder("half", {"model.bin": b"ha"}), state="incomplete")
    mounted = mount("half")
    assert os.listdir(mounted / "checkpoints") == []
    assert not os.path.lexists(mounted / "latest")


def test_logs_grow_in_the_mount(lab, mount, until):
    job = lab.job("chatty")
    logs = lab.workspace.home.logs(job.id)
    logs.mkdir(parents=True)
    log = logs / "stdout.log"
    log.write_text("one\n")
    seen = mount("chatty") / "logs" / "stdout.log"
    assert seen.read_text() == "one\n"
    with seen.open() as follower, log.open("a") as writer:
        assert follower.read() == "one\n"
        writer.write("two\n")
        writer.flush()
        assert follower.read() == "two\n"
    until(lambda: seen.stat().st_size == 8)


def test_code_is_the_exact_tree(lab, mount, same_tree):
    project = lab.awkward("project")
    version = lab.workspace.code.snapshot(project)
    lab.job("coded", code=version.id)
    mounted = mount("coded")
    left_out = {entry.path for entry in version.left_out.largest} if version.left_out.files else set()
    assert left_out == set()
    same_tree(project, mounted / "code")


def test_all_shows_jobs_code_and_data(lab, mount, until):
    project = lab.folder("project", {"train.py": b"print()\n"})
    version = lab.workspace.code.snapshot(project)
    job = lab.job("one", code=version.id)
    lab.checkpoint(job, "run/checkpoint-5", project, step=5)
    manifest = lab.workspace.home.data / "imdb" / "v1.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    mounted = mount("all")
    assert mounted == lab.workspace.home.mounts / "all"
    assert sorted(os.listdir(mounted)) == ["code", "data", "jobs", "models"]
    assert os.listdir(mounted / "jobs") == [job.id]
    assert (mounted / "jobs" / job.id / "latest" / "train.py").read_bytes() == b"print()\n"
    assert os.readlink(mounted / "jobs" / job.id / "latest") == "checkpoints/run/checkpoint-5"
    assert (mounted / "code" / version.id / "train.py").read_bytes() == b"print()\n"
    assert (mounted / "data" / "imdb" / "v1.json").read_text() == "{}"
    base = lab.folder("base", {"model.safetensors": b"not a real one", "config.json": b"{}"})
    lab.workspace.models.add(base, "org/base")
    until((mounted / "models" / "org" / "base" / "config.json").exists)
    assert (mounted / "models" / "org" / "base" / "model.safetensors").read_bytes() == b"not a real one"
    (base / "config.json").write_bytes(b'{"more": 1}')
    lab.workspace.models.add(base, "org/base")
    until(lambda: (mounted / "models" / "org" / "base" / "config.json").read_bytes() == b'{"more": 1}')
    assert (mounted / "models" / "org" / "base~1" / "config.json").read_bytes() == b"{}"
    other = lab.job("two")
    until(lambda: other.id in os.listdir(mounted / "jobs"))


# ---- damage --------------------------------------------------------------------------------------


def test_a_damaged_block_fails_its_own_range_only_and_stands_in_the_log(lab, mount):
    source = lab.folder("c", {"model.bin": os.urandom(6_000_000), "other.txt": b"fine"})
    job = lab.job("hurt")
    row = lab.checkpoint(job, "checkpoint-1", source)
    store = lab.workspace.store
    assert row.record is not None
    entry = store.reader.lookup(store.record(row.record).root, b"model.bin")
    blocks = list(store.reader.manifest(entry).blocks())
    bad = blocks[len(blocks) // 2]
    place = store.packs.locate(bad.digest)
    assert place is not None
    with store.registry.read() as txn:
        name = store.tables.index.pack_name(txn, place.pack)
    assert name is not None
    pack = pack_path(store.folders.packs, name)
    pack.chmod(0o600)
    with pack.open("r+b") as file:
        file.seek(place.offset + 200)
        file.write(b"\xff" * 8 + b"\x00" * 8)

    mounted = mount("hurt")
    path = mounted / "latest" / "model.bin"
    wanted = (source / "model.bin").read_bytes()
    fd = os.open(path, os.O_RDONLY)
    failed = []
    try:
        for offset in range(0, len(wanted), 4096):
            try:
                assert os.pread(fd, 4096, offset) == wanted[offset : offset + 4096]
            except OSError as e:
                assert e.errno == errno.EIO
                failed.append(offset)
    finally:
        os.close(fd)
    assert failed == list(range(bad.start // 4096 * 4096, bad.end, 4096))
    assert (mounted / "latest" / "other.txt").read_bytes() == b"fine"
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    assert caught.value.errno == errno.EIO
    log = gpu_train_fuse.log_file(lab.workspace.home, job.id).read_text()
    lines = [line for line in log.splitlines() if " ERROR " in line]
    assert len(lines) == 1
    assert f"/checkpoints/checkpoint-1/model.bin: block {bad.digest.hex()[:16]} (bytes {bad.start}" in lines[0]


def test_a_home_that_vanishes_under_a_mount_gives_errors_and_no_hang(lab, mount, tmp_path):
    job = lab.job("gone")
    lab.checkpoint(job, "checkpoint-1", lab.folder("c", {"model.bin": os.urandom(2_000_000)}))
    mounted = mount("gone", tmp_path / "m")
    for pack in Path(lab.workspace.store.folders.packs).rglob("*"):
        if pack.is_file():
            pack.unlink()
    with pytest.raises(OSError) as caught:
        (mounted / "latest" / "model.bin").read_bytes()
    assert caught.value.errno == errno.EIO
    assert "job.json" in os.listdir(mounted)


def test_a_folder_of_many_files_is_listed_whole_whichever_way(lab, mount, tmp_path):
    files = {f"many/{i:04}-{'n' * (i % 200)}": b"%d" % i for i in range(700)}
    lab.checkpoint(lab.job("wide"), "c", lab.folder("wide", files))
    mounted = mount("wide", tmp_path / "m") / "checkpoints" / "c" / "many"
    names = {name.removeprefix("many/") for name in files}
    assert set(os.listdir(mounted)) == names, "a first listing comes with attributes, as far as the first answer goes"
    with os.scandir(mounted) as found:
        sizes = {item.name: item.stat(follow_symlinks=False).st_size for item in found}
    assert sizes == {name.removeprefix("many/"): len(data) for name, data in files.items()}
    fd = os.open(mounted, os.O_RDONLY)
    try:
        assert set(os.listdir(fd)) == set(os.listdir(fd)) == names, "from the beginning again after a rewind"
    finally:
        os.close(fd)
