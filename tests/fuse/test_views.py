"""One suite for every way to look at a checkpoint: a mounted job, a mounted home, and WebDAV as rclone mounts it."""

import errno
import mmap
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from blake3 import blake3

import gpu_train_fuse
from gpu_train import retention
from gpu_train_fuse.unmount import unmount

PROGRAM = [sys.executable, "-c", "from gpu_train_cli.main import program; raise SystemExit(program())"]
ROUNDS = 3
"""Rounds of captures and collections while threads read."""


@dataclass
class View:
    """A checkpoint as it is seen, and whether links, modes and exact times are."""

    path: Path
    exact: bool

    def shows(self, path: Path) -> bool:
        """Whether something of the source can be seen."""
        return self.exact or path.name not in ("around", "dangling")


@pytest.fixture(scope="module")
def source(shared_lab):
    folder = shared_lab.awkward()
    shared_lab.checkpoint(shared_lab.job("run"), "checkpoint-100", folder, step=100)
    return folder


@pytest.fixture(scope="module", autouse=True)
def mountable():
    try:
        gpu_train_fuse.check()
    except gpu_train_fuse.MountUnavailable as e:
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def mounted_job(shared_lab, source):
    path = gpu_train_fuse.mount(shared_lab.workspace, "run").path
    yield path / "latest"
    unmount(path, lazy=True)


@pytest.fixture(scope="module")
def mounted_home(shared_lab, source):
    path = gpu_train_fuse.mount(shared_lab.workspace, "all").path
    yield path / "jobs" / "run-aaaaaa" / "checkpoints" / "checkpoint-100"
    unmount(path, lazy=True)


@pytest.fixture(scope="module")
def mounted_webdav(shared_lab, source, tmp_path_factory, rclone_program):
    """What rclone mounts of a server; two processes, both gone afterwards."""
    pytest.importorskip("wsgidav", reason="the extra `webdav` is not installed")
    root = tmp_path_factory.mktemp("rclone")
    (root / "conf").touch()
    environment = {**os.environ, "GPU_TRAIN_HOME": str(shared_lab.workspace.home.root)}
    server = subprocess.Popen(
        [*PROGRAM, "mount", "run", "--webdav", "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment
    )
    client = None
    try:
        url = server.stdout.readline().strip()
        (root / "m").mkdir()
        client = subprocess.Popen(
            [
                rclone_program,
                "mount",
                ":webdav:",
                root / "m",
                "--webdav-url",
                url,
                "--read-only",
                "--config",
                root / "conf",
            ]
        )
        deadline = time.monotonic() + 20
        while not os.path.ismount(root / "m"):
            assert client.poll() is None and time.monotonic() < deadline, "rclone did not mount"
            time.sleep(0.02)
        yield root / "m" / "latest"
    finally:
        if os.path.ismount(root / "m"):
            unmount(root / "m", lazy=True)
        for process in (client, server):
            if process is not None:
                process.terminate()
                process.wait(30)
        server.stdout.close()


@pytest.fixture(params=["job", "home", "webdav"])
def view(request):
    return View(request.getfixturevalue(f"mounted_{request.param}"), request.param != "webdav")


def sh(*command, **options):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=120, **options).stdout


def contents(root, shown=lambda path: True):
    """Each file below a folder, links to files too, by its digest; folders by None."""
    found = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in folders + files:
            path = Path(os.fsdecode(folder + b"/" + name))
            if shown(path):
                key = os.fsencode(path.relative_to(root))
                found[key] = None if path.is_dir() else blake3(path.read_bytes()).hexdigest() if path.exists() else ""
    return found


@pytest.fixture
def same(source, view):
    """Insist that a copy has all that the view shows of the source."""

    def compare(copy):
        assert contents(copy, view.shows) == contents(source, view.shows)

    return compare


def test_all_names_kinds_and_bytes(view, source, same, same_tree):
    same(view.path)
    assert contents(view.path) == contents(view.path, view.shows), "and nothing else"
    if view.exact:
        same_tree(source, view.path.resolve())


def test_ls_find_and_du(view, source):
    assert b"model.bin" in sh("ls", "-lR", f"{view.path}/")
    listed = sh("find", ".", "-mindepth", "1", "-type", "f", "-printf", "%s %P\\0", cwd=view.path)
    wanted = {
        b"%d %s" % (path.stat().st_size, os.fsencode(path.relative_to(source)))
        for path in source.rglob("*")
        if path.is_file() and (not path.is_symlink() or not view.exact)
    }
    assert set(listed.rstrip(b"\0").split(b"\0")) == wanted
    size = int(sh("du", "-b", view.path / "model.bin").split()[0])
    assert size == 3_500_000
    assert int(sh("du", "-sB1", f"{view.path}/").split()[0]) >= size


COPIES = {
    "cp": ["cp", "-a", "{0}/.", "{1}"],
    "rsync": ["rsync", "-a", "{0}/", "{1}"],
    "tar": ["sh", "-c", 'tar --format=posix -cC "$1" . | tar -xpC "$2"', "sh", "{0}", "{1}"],
}


@pytest.mark.parametrize("command", COPIES.values(), ids=COPIES)
def test_copies(view, source, same, same_tree, tmp_path, command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    (tmp_path / "copy").mkdir()
    sh(*(word.format(view.path, tmp_path / "copy") for word in command))
    same(tmp_path / "copy")
    if view.exact:
        same_tree(source, tmp_path / "copy")
    if command[0] == "rsync":
        assert sh("rsync", "-rlptc", "--itemize-changes", f"{view.path}/", tmp_path / "copy") == b""


def test_cmp_and_diff(view, source):
    sh("cmp", view.path / "model.bin", source / "model.bin")
    sh("cmp", view.path / "sparse", source / "sparse")
    if view.exact:
        sh("diff", "-r", "--no-dereference", f"{view.path}/", f"{source}/")


def test_mmap(view, source):
    wanted = (source / "model.bin").read_bytes()
    with (view.path / "model.bin").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[3_000_000:3_000_100] == wanted[3_000_000:3_000_100]
        assert mapped[:] == wanted


def test_sendfile(view, source):
    wanted, got = (source / "model.bin").read_bytes(), bytearray()
    ours, theirs = socket.socketpair()

    def receive():
        while part := theirs.recv(1 << 16):
            got.extend(part)

    with ours, theirs, (view.path / "model.bin").open("rb") as file:
        thread = threading.Thread(target=receive)
        thread.start()
        sent = 0
        while part := os.sendfile(ours.fileno(), file.fileno(), sent, len(wanted)):
            sent += part
        ours.shutdown(socket.SHUT_WR)
        thread.join(30)
    assert bytes(got) == wanted


def test_direct_io(view, source):
    wanted, got = (source / "model.bin").read_bytes(), bytearray()
    fd = os.open(view.path / "model.bin", os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 1 << 20) as buffer:
            while length := os.readv(fd, [buffer]):
                got += buffer[:length]
    finally:
        os.close(fd)
    assert bytes(got) == wanted


def test_the_end_of_files(view):
    assert (view.path / "zero").read_bytes() == b""
    fd = os.open(view.path / "model.bin", os.O_RDONLY)
    try:
        assert os.pread(fd, 100, 3_500_000) == b""
        assert len(os.pread(fd, 100, 3_499_990)) == 10
    finally:
        os.close(fd)
    assert os.listdir(view.path / "empty") == []


def test_nothing_can_be_made_or_changed(view):
    attempts = [
        lambda: (view.path / "new").mkdir(), lambda: (view.path / "new").touch(), lambda: (view.path / "zero").unlink(),
        lambda: os.open(view.path / "model.bin", os.O_WRONLY), lambda: (view.path / "model.bin").chmod(0o777),
    ]  # fmt: skip
    for attempt in attempts:
        with pytest.raises(OSError) as caught:
            attempt()
        assert caught.value.errno == errno.EROFS


def test_parallel_readers_while_others_capture_and_collect(view, source, shared_lab):
    wanted, stop, wrong = (source / "model.bin").read_bytes(), threading.Event(), []
    lab, rounds = shared_lab, []

    def read(seed):
        order = random.Random(seed)
        while not stop.is_set():
            start, length = order.randrange(len(wanted)), order.randrange(1, 300_000)
            try:
                with (view.path / "model.bin").open("rb", buffering=0) as file:
                    if os.pread(file.fileno(), length, start) != wanted[start : start + length]:
                        wrong.append((start, length))
            except OSError as e:
                wrong.append(e)
            rounds.append(None)

    job = lab.workspace.jobs.get("busy-aaaaaa") or lab.job("busy", status="finished")
    threads = [threading.Thread(target=read, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    try:
        for n in range(ROUNDS):
            # Half of it is also in the checkpoint that is read: it has to stay when this one goes.
            name = f"{view.path.parent.name}-{n}"
            other = lab.folder(f"busy-{name}", {"model.bin": wanted[: 1 << 20] + os.urandom(2 << 20)})
            row = lab.checkpoint(job, name, other)
            retention.remove(lab.workspace, [row])
            assert lab.workspace.store.gc(trash_days=0).records == [row.record]
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert wrong == []
    assert len(rounds) > len(threads)
    assert (view.path / "model.bin").read_bytes() == wanted
