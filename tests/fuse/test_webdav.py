"""The view over WebDAV, asked by real clients: Python's http, curl, rclone, davfs2."""

import errno
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote_from_bytes, unquote_to_bytes, urlsplit
from xml.etree import ElementTree

import pytest
from blake3 import blake3

from gpu_train_cas.pack import pack_path

pytest.importorskip("wsgidav", reason="the extra `webdav` is not installed")

PROGRAM = [sys.executable, "-c", "from gpu_train_cli.main import program; raise SystemExit(program())"]
DAV = "{DAV:}"
PASSWORD = "not a secret"


class Served:
    """A server of a process of its own, and one request at a time to it."""

    def __init__(self, *command, **environment):
        self.process = subprocess.Popen(
            [*PROGRAM, "mount", "--webdav", "--port", "0", *map(str, command)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.ended = False
        self.url = self.process.stdout.readline().strip()
        self.address = urlsplit(self.url)

    def ask(self, method, path="/", body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.address.port, timeout=60)
        try:
            target = path if isinstance(path, str) else quote_from_bytes(path)
            connection.request(method, target, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def names(self, path):
        """Name -> (whether it is a folder, its properties by name) of what is in a folder."""
        answer, body = self.ask("PROPFIND", path, Depth="1")
        assert answer.status == 207, body
        found = {}
        for response in ElementTree.fromstring(body):
            href = unquote_to_bytes(response.find(f"{DAV}href").text)
            prop = response.find(f"{DAV}propstat/{DAV}prop")
            texts = {item.tag.rpartition("}")[2]: item.text for item in prop}
            found[href.rstrip(b"/").rpartition(b"/")[2]] = (
                prop.find(f"{DAV}resourcetype/{DAV}collection") is not None,
                texts,
            )
        return found

    def end(self):
        """End it as a person would; what it said."""
        if self.ended:
            return ""
        self.ended = True
        self.process.terminate()
        try:
            said = self.process.communicate(timeout=30)[1]
        finally:
            self.process.kill()
        assert self.process.returncode == 0, said
        return said

    def kill(self):
        """End it as nobody wants to."""
        self.ended = True
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def serve():
    servers = []

    def start(*command, **environment):
        servers.append(Served(*command, **environment))
        assert servers[-1].url, servers[-1].process.communicate(timeout=30)[1]
        return servers[-1]

    yield start
    for server in servers:
        server.end()


@pytest.fixture
def job(lab):
    """A job that a test changes."""
    job = lab.job("run")
    lab.checkpoint(job, "checkpoint-100", lab.folder("c", {"model.bin": os.urandom(1_500_000)}), step=100)
    return job


@pytest.fixture(scope="module")
def source(shared_lab):
    """What is in the checkpoint of the job that all tests look at."""
    return shared_lab.awkward()


@pytest.fixture(scope="module")
def server(shared_lab, source):
    shared_lab.checkpoint(shared_lab.job("run"), "checkpoint-100", source, step=100)
    started = Served("run", GPU_TRAIN_HOME=str(shared_lab.workspace.home.root))
    yield started
    started.end()


# ---- looking -------------------------------------------------------------------------------------


def test_the_same_tree_with_latest_as_a_folder_and_no_links(server, source):
    root = server.names("/")
    assert {name: kind for name, (kind, _) in root.items() if name} == {
        b"checkpoints": True, b"latest": True, b"job.json": False,
    }  # fmt: skip
    inside = server.names("/latest/")
    shown = {os.fsencode(path.name) for path in source.iterdir()} - {b"around", b"dangling"}
    assert set(inside) == {b"latest", *shown}
    assert inside[b"empty"][0] and not inside[b"link"][0]
    facts = inside[b"model.bin"][1]
    assert facts["getcontentlength"] == "3500000"
    assert facts["getlastmodified"].startswith("Sun, 13 Sep 2020 12:26:4")
    assert facts["getetag"] == f'"{blake3((source / "model.bin").read_bytes()).hexdigest()}"'
    assert (facts["executable"], inside[b"run.sh"][1]["executable"]) == ("F", "T")
    assert json.loads(server.ask("GET", "/job.json")[1])["id"] == "run-aaaaaa"
    assert root[b""][1]["quota-available-bytes"] == "0"


def test_any_name_is_listed_and_read(server, source):
    names = {os.fsencode(path.name) for path in (source / "odd").iterdir()}
    assert len(names) > 10
    assert set(server.names("/latest/odd")) == {b"odd", *names}
    for name in names:
        answer, body = server.ask("GET", b"/latest/odd/" + name)
        assert (answer.status, body) == (200, name)


def test_a_browser_gets_a_page_of_a_folder_in_which_no_name_is_code(serve, lab):
    hurt = lab.folder("x", {"<script>alert(1)</script>": b"x", 'a"onclick="b': b"y"})
    lab.checkpoint(lab.job("page"), "checkpoint-1", hurt)
    server = serve("page")
    answer, body = server.ask("GET", "/latest/")
    assert (answer.status, answer.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    assert b"<script" not in body and b'"onclick' not in body
    assert b'<a href="/latest/%3Cscript%3Ealert(1)%3C/script%3E">' not in body
    assert b"&lt;script&gt;alert(1)&lt;" in body
    assert server.ask("HEAD", "/latest/")[1] == b""


def test_new_checkpoints_appear(serve, job, lab, until):
    server = serve("run")
    lab.checkpoint(job, "checkpoint-200", lab.folder("d", {"x": b"2"}), step=200)
    until(lambda: server.ask("GET", "/latest/x")[1] == b"2")
    assert set(server.names("/checkpoints")) == {b"checkpoints", b"checkpoint-100", b"checkpoint-200"}


def test_all_of_a_home(serve, job, lab):
    server = serve("all")
    assert set(server.names("/")) == {b"", b"jobs", b"code", b"data", b"models"}
    assert len(server.ask("GET", f"/jobs/{job.id}/latest/model.bin")[1]) == 1_500_000


def test_a_listing_without_end_is_refused(server):
    for headers in ({}, {"Depth": "infinity"}):
        answer, body = server.ask("PROPFIND", "/", **headers)
        assert (answer.status, b"propfind-finite-depth" in body) == (403, True)


@pytest.mark.parametrize("path", ["/nothing", "/latest/model.bin/x", "/latest/around", "/../etc/passwd", "/%2e%2e/x"])
def test_what_is_not_there(server, path):
    for method in ("GET", "HEAD", "PROPFIND"):
        assert server.ask(method, path, Depth="0")[0].status == 404


# ---- reading -------------------------------------------------------------------------------------


def test_ranges(server, source):
    wanted = (source / "model.bin").read_bytes()

    def part(text, **more):
        answer, body = server.ask("GET", "/latest/model.bin", Range=f"bytes={text}", **more)
        return answer.status, answer.getheader("Content-Range"), body

    size = len(wanted)
    assert part("10-19") == (206, f"bytes 10-19/{size}", wanted[10:20])
    assert part("3499990-") == (206, f"bytes 3499990-{size - 1}/{size}", wanted[-10:])
    assert part("-5") == (206, f"bytes {size - 5}-{size - 1}/{size}", wanted[-5:])
    assert part("1000000-2999999999") == (206, f"bytes 1000000-{size - 1}/{size}", wanted[1_000_000:])
    assert part(f"{size}-")[:2] == (416, f"bytes */{size}")
    etag = server.ask("HEAD", "/latest/model.bin")[0].getheader("ETag")
    assert part("0-0", If_Range=etag)[::2] == (206, wanted[:1])
    assert part("0-0", If_Range='"other"')[::2] == (200, wanted)
    unchanged, nothing = server.ask("GET", "/latest/model.bin", If_None_Match=etag)
    assert (unchanged.status, unchanged.getheader("Content-Length"), nothing) == (304, None, b"")
    assert server.ask("GET", "/latest/zero")[1] == b""


def test_parallel_readers_on_kept_connections(server, source):
    wanted = (source / "model.bin").read_bytes()

    def read(worker):
        connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=60)
        for n in range(20):
            start = (worker * 104_729 + n * 7_919) % len(wanted)
            connection.request("GET", "/latest/model.bin", headers={"Range": f"bytes={start}-{start + 100_000}"})
            if connection.getresponse().read() != wanted[start : start + 100_001]:
                return False
        connection.close()
        return True

    with ThreadPoolExecutor(24) as pool:
        assert all(pool.map(read, range(24)))


def test_what_is_removed_while_it_is_read_is_read_to_the_end(serve, lab, until):
    from gpu_train import retention

    job, data = lab.job("gone", status="finished"), os.urandom(16_000_000)
    row = lab.checkpoint(job, "checkpoint-1", lab.folder("gone", {"model.bin": data}))
    server = serve("gone")
    connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=60)
    connection.request("GET", "/latest/model.bin")
    answer = connection.getresponse()
    begun = answer.read(1)
    retention.remove(lab.workspace, [row])
    assert len(lab.workspace.store.gc(trash_days=0).kept) == 1
    assert begun + answer.read() == data
    connection.close()
    until(lambda: lab.workspace.store.gc(trash_days=0).records == [row.record])
    assert server.ask("GET", "/latest/model.bin")[0].status == 404


def test_a_damaged_block_fails_its_own_range_only_and_is_told(serve, lab):
    source = lab.folder("c", {"model.bin": os.urandom(6_000_000), "other.txt": b"fine"})
    row = lab.checkpoint(lab.job("hurt"), "checkpoint-1", source)
    store = lab.workspace.store
    entry = store.reader.lookup(store.record(row.record).root, b"model.bin")
    blocks = list(store.reader.manifest(entry).blocks())
    bad = blocks[len(blocks) // 2]
    place = store.packs.locate(bad.digest)
    with store.registry.read() as txn:
        pack = pack_path(store.folders.packs, store.tables.index.pack_name(txn, place.pack))
    pack.chmod(0o600)
    with pack.open("r+b") as file:
        file.seek(place.offset + 200)
        file.write(b"\xff" * 8 + b"\x00" * 8)

    server, wanted = serve("hurt"), (source / "model.bin").read_bytes()
    failed = []
    for ref in blocks:
        answer, body = server.ask("GET", "/latest/model.bin", Range=f"bytes={ref.start}-{ref.end - 1}")
        if answer.status == 206:
            assert body == wanted[ref.start : ref.end]
        else:
            assert (answer.status, b"cannot be read" in body) == (500, True)
            failed.append(ref)
    assert failed == [bad]
    with pytest.raises(http.client.IncompleteRead):  # broken off, neither shortened nor filled up
        server.ask("GET", "/latest/model.bin")
    assert server.ask("GET", "/latest/other.txt")[1] == b"fine"
    lines = [line for line in server.end().splitlines() if "cannot be read" in line]
    assert len(lines) == 1
    assert f"/latest/model.bin: block {bad.digest.hex()[:16]} (bytes {bad.start}" in lines[0]


# ---- who may, and what ---------------------------------------------------------------------------


def test_writes_change_nothing(server):
    for method in ("PUT", "DELETE", "MKCOL", "PROPPATCH", "MOVE", "COPY", "LOCK", "POST"):
        for path in ("/latest/model.bin", "/new"):
            answer, _ = server.ask(method, path, b"x" * 3_000_000 if method == "PUT" else None, Destination="/other")
            assert answer.status == 405
    assert set(server.names("/")) == {b"", b"checkpoints", b"latest", b"job.json"}


def test_a_page_that_rebinds_its_name_gets_nothing(server):
    assert server.ask("GET", "/job.json", Host=f"evil.example:{server.address.port}")[0].status == 403
    assert server.ask("GET", "/job.json", Host=f"localhost:{server.address.port}")[0].status == 200


def test_other_machines_need_a_password(serve, job, tmp_path):
    refused = subprocess.run(
        [*PROGRAM, "mount", "run", "--webdav", "--host", "0.0.0.0"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "can be reached from other machines, so a password is needed" in refused.stderr
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    by_file = serve("run", "--host", "0.0.0.0", "--password-file", tmp_path / "password")
    by_environment = serve("run", GPU_TRAIN_WEBDAV_PASSWORD=PASSWORD)
    for server in (by_file, by_environment):
        assert server.ask("GET", "/job.json")[0].status == 401
        assert server.ask("GET", "/job.json", Authorization=f"Bearer {PASSWORD}")[0].status == 200


def test_a_port_that_is_taken_and_options_that_do_not_go_together(job):
    def told(*words):
        done = subprocess.run([*PROGRAM, "mount", *map(str, words)], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, said = told("run", "--webdav", "--port", taken.getsockname()[1])
    assert (code, "give another --port" in said) == (6, True)
    assert told("run", "--port", "1")[0] == told("run", "/tmp/x", "--webdav")[0] == told("--webdav")[0] == 2
    code, said = told("rum", "--webdav")
    assert (code, "no job 'rum'" in said) == (3, True)


def test_it_says_how_to_use_it_and_ends_while_clients_wait(serve, job):
    server = serve("run")
    idle = socket.create_connection(("127.0.0.1", server.address.port))
    reader = http.client.HTTPConnection("127.0.0.1", server.address.port)
    reader.request("GET", "/latest/model.bin")
    reader.getresponse().read(10)
    said = server.end()
    idle.close()
    reader.close()
    for word in ("rclone", "davfs", "Finder", "net use", "ssh -N -L"):
        assert word in said


def test_after_a_crash_under_load_a_new_server_at_the_same_address_goes_on(serve, job, lab, tmp_path):
    data = os.urandom(16_000_000)
    lab.checkpoint(job, "checkpoint-200", lab.folder("big", {"model.bin": data}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = serve("run", "--port", port)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/latest/model.bin")
    answer = connection.getresponse()
    got = answer.read(1_000_000)
    server.kill()
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()
    connection.close()
    again = serve("run", "--port", port)
    answer, rest = again.ask("GET", "/latest/model.bin", Range=f"bytes={len(got)}-")
    assert (answer.status, got + rest == data) == (206, True)


def test_as_json(job):
    process = subprocess.Popen(
        [*PROGRAM, "mount", "run", "--webdav", "--port", "0", "-o", "json"], stdout=subprocess.PIPE, text=True
    )
    try:
        text, found = "", None
        while found is None:
            text += process.stdout.readline()
            try:
                found = json.loads(text)
            except json.JSONDecodeError:
                assert process.poll() is None
        assert found["pid"] == process.pid
        assert found["url"].startswith("http://127.0.0.1:")
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


# ---- other clients -------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_goes_on_where_it_was_cut_off(server, source, tmp_path):
    wanted = (source / "model.bin").read_bytes()
    (tmp_path / "out").write_bytes(wanted[:1_234_567])
    command = ["curl", "-sf", "-C", "-", "-o", tmp_path / "out", f"{server.url}latest/model.bin"]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "out").read_bytes() == wanted


@pytest.fixture
def rclone(tmp_path, rclone_program):
    (tmp_path / "rclone.conf").touch()

    def run(server, *words, check=True):
        command = [
            rclone_program,
            "--config",
            tmp_path / "rclone.conf",
            "--webdav-url",
            server.url,
            "--retries",
            "1",
            *words,
        ]
        return subprocess.run(list(map(str, command)), capture_output=True, timeout=120, check=check)

    return run


def test_rclone_copies_names_bytes_and_times(server, source, rclone, tmp_path):
    rclone(server, "copy", "--create-empty-src-dirs", ":webdav:checkpoints/checkpoint-100", tmp_path / "copy")
    hidden = ("around", "dangling")
    told = {os.fsencode(p.relative_to(source)): p for p in source.rglob("*") if p.name not in hidden}
    assert {os.fsencode(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*")} == set(told)
    for name, path in told.items():
        copy = Path(os.fsdecode(os.fsencode(tmp_path / "copy") + b"/" + name))
        if path.is_file():
            assert copy.read_bytes() == path.read_bytes()
            assert int(copy.stat().st_mtime) == int(path.stat().st_mtime)
        else:
            assert copy.is_dir()
    # Of names that are no UTF-8 rclone has two spellings, and takes one copy for another's.
    again = rclone(server, "check", "--exclude", "odd/**", ":webdav:latest", tmp_path / "copy")
    assert b"0 differences found" in again.stderr
    refused = rclone(server, "copy", "--low-level-retries", "1", source / "zero", ":webdav:latest/new", check=False)
    assert refused.returncode != 0


def test_rclone_knows_the_password(serve, job, rclone, rclone_program):
    server = serve("run", GPU_TRAIN_WEBDAV_PASSWORD=PASSWORD)
    assert rclone(server, "lsf", ":webdav:", check=False).returncode != 0
    assert b"latest/" in rclone(server, "--webdav-bearer-token", PASSWORD, "lsf", ":webdav:").stdout
    hidden = subprocess.run(
        [rclone_program, "obscure", PASSWORD], capture_output=True, text=True, check=True
    ).stdout.strip()
    found = rclone(server, "--webdav-user", "any", "--webdav-pass", hidden, "cat", ":webdav:latest/model.bin")
    assert len(found.stdout) == 1_500_000


@pytest.mark.skipif(shutil.which("mount.davfs", path="/usr/sbin:/sbin") is None, reason="davfs2 is not installed")
def test_davfs2(server, source, tmp_path, until):
    if os.geteuid() != 0:
        pytest.skip("davfs2 is tried as root")
    there = tmp_path / "dav"
    there.mkdir()
    (tmp_path / "davfs2.conf").write_text("ask_auth 0\nuse_locks 0\n")
    options = f"ro,conf={tmp_path / 'davfs2.conf'}"
    done = subprocess.run(
        ["mount.davfs", "-o", options, server.url, there], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"davfs2 cannot mount here: {done.stderr.strip()}")
    try:
        until(lambda: os.path.ismount(there))
        assert (there / "latest" / "model.bin").read_bytes() == (source / "model.bin").read_bytes()
        modes = [(there / "latest" / name).stat().st_mode & 0o100 for name in ("run.sh", "model.bin")]
        assert modes == [0o100, 0]
        with pytest.raises(OSError) as caught:
            (there / "new").touch()
        assert caught.value.errno == errno.EROFS
        try:
            assert set(os.listdir(there)) == {"checkpoints", "latest", "job.json"}
        except OSError as e:
            assert e.errno == errno.EINVAL, "davfs2 1.6 cannot list folders on newer kernels"
    finally:
        subprocess.run(["umount", there], check=False, capture_output=True)
        until(lambda: not os.path.ismount(there))
