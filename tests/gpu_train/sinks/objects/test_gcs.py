"""Objects in Google Cloud Storage, on a server of the tests' own."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import traceback
from collections.abc import Iterator
from urllib.request import urlopen
from uuid import uuid4

import objectservers
import pytest
from faulty import ALWAYS, Fault, Proxy, answer, faulty, lose_answer, reset_request, stall_request
from objectservers import BUCKET, Server
from objectstore_suite import ObjectStoreSuite

from gpu_train.errors import Corrupted, Refused, SinkFailed, Unavailable
from gpu_train.sinks.objects.content import Held
from gpu_train.sinks.objects.gcs import PART_BYTES, GcsObjects
from gpu_train.sinks.objects.objectstore import Put
from gpu_train_cas.errors import UsageError

TOKEN = "a-token-of-the-tests"


@pytest.fixture
def prefix() -> str:
    """Where a test's objects lie."""
    return f"runs/{uuid4().hex}"


class TestFakeGcs(ObjectStoreSuite):
    large_bytes = 2 * PART_BYTES + 1

    @pytest.fixture
    def store(self, fake_gcs: Server, prefix: str) -> Iterator[GcsObjects]:
        store = GcsObjects(BUCKET, prefix, endpoint=fake_gcs.endpoint, credentials=lambda: {"token": TOKEN})
        yield store
        store.close()


@pytest.fixture
def proxy(fake_gcs: Server) -> Iterator[Proxy]:
    with faulty(fake_gcs) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: Proxy, prefix: str) -> Iterator[GcsObjects]:
    """A store behind the proxy, with nothing around it."""
    store = GcsObjects(BUCKET, prefix, endpoint=proxy.endpoint, credentials=lambda: {"token": TOKEN})
    yield store
    store.close()


def test_many_are_proved_by_a_listing(proxy: Proxy, store: GcsObjects) -> None:
    store.put([Put(f"a/{at}", Held(b"%d" % at)) for at in range(60)])
    assert proxy.count("^POST .*upload") == 60
    assert proxy.count("^GET .*/o[?]") == 1
    assert proxy.count("^GET .*/o/") == 0


def test_without_the_right_to_list_each_is_asked_for(proxy: Proxy, store: GcsObjects) -> None:
    proxy.fail(answer(403, "forbidden", on="^GET .*/o[?]", times=ALWAYS))
    store.put([Put(f"a/{at}", Held(b"%d" % at)) for at in range(30)])
    assert proxy.count("^GET .*/o/") == 30


def test_files_keep_their_times(fake_gcs: Server, store: GcsObjects, prefix: str) -> None:
    """As rclone and gsutil read them."""
    store.put([Put("x", Held(b"x"), mtime_ns=1_700_000_000_123_456_789)])
    with urlopen(f"{fake_gcs.endpoint}/storage/v1/b/{BUCKET}/o/{prefix.replace('/', '%2F')}%2Fx") as told:
        kept = json.load(told)["metadata"]
    assert kept == {"mtime": "2023-11-14T22:13:20.123456789Z", "goog-reserved-file-mtime": "1700000000"}


def test_credentials_that_are_not_accepted_any_more_are_resolved_anew_once(proxy: Proxy, prefix: str) -> None:
    asked = []

    def found() -> dict[str, str]:
        asked.append(len(asked))
        return {"token": TOKEN}

    store = GcsObjects(BUCKET, prefix, endpoint=proxy.endpoint, credentials=found)
    proxy.fail(answer(401, "authError", on="upload"))
    store.put([Put("x", Held(b"x"))])
    assert len(asked) == 2
    proxy.fail(answer(401, "authError", times=ALWAYS))
    with pytest.raises(Refused, match="GOOGLE_APPLICATION_CREDENTIALS"):
        store.put([Put("x", Held(b"x"))])
    assert len(asked) == 3
    store.close()


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        (answer(403, "forbidden"), Refused, "Storage Object Admin"),
        (answer(403, "rateLimitExceeded"), Unavailable, "rateLimitExceeded"),
        (answer(404, "notFound"), Refused, "no such bucket"),
        (answer(400, "Provided CRC32C does not match the calculated one"), Corrupted, "not what was sent"),
        (answer(501, "notImplemented"), Refused, "cannot do this"),
        (answer(500, "backendError"), Unavailable, "backendError"),
        (Fault(status=200, body=b'{"kind": "stora'), Unavailable, "no answer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_answers_mean(proxy: Proxy, store: GcsObjects, fault: Fault, error: type[SinkFailed], said: str) -> None:
    fault.times = ALWAYS
    proxy.fail(fault)
    with pytest.raises(error, match=said):
        store.put([Put("x", Held(b"x"))])


def test_a_bucket_that_is_not_there(fake_gcs: Server) -> None:
    store = GcsObjects("no-such-bucket", "p", endpoint=fake_gcs.endpoint, credentials=lambda: {"token": TOKEN})
    for do in (lambda: store.size("x"), lambda: store.read("x", 1), lambda: store.put([Put("x", Held(b"x"))])):
        with pytest.raises(Refused, match="no-such-bucket"):
            do()
    store.close()


def test_an_emulator_needs_no_credentials(fake_gcs: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", fake_gcs.endpoint)
    store = GcsObjects(BUCKET, prefix)
    store.put([Put("x", Held(b"x"))])
    assert store.read("x", 10) == b"x"
    store.close()


def test_a_key_file_that_is_none(fake_gcs: Server, tmp_path) -> None:
    for given in (
        {"service_account_json": '{"type": "service_account", "private_key": "a-private-key"}'},
        {"service_account_json": "no JSON"},
        {"google_application_credentials": str(tmp_path / "none.json")},
    ):
        store = GcsObjects(BUCKET, endpoint=fake_gcs.endpoint, credentials=lambda given=given: given)
        with pytest.raises(Refused) as caught:
            store.size("x")
        assert "a-private-key" not in str(caught.value)


def test_a_library_that_is_missing_is_named() -> None:
    code = """
import sys
sys.modules["google.cloud"] = None
from gpu_train.errors import Refused
from gpu_train.sinks.objects.gcs import GcsObjects
try:
    GcsObjects("bucket")
except Refused as e:
    print(e)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'gpu-train[gcs]'" in told


def test_secrets_are_seen_nowhere(proxy: Proxy, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not in errors and reprs, and the token not in logs with all of them turned on; who knows the id of a session can
    write to it, so that is not in errors either.
    """
    caplog.set_level(logging.DEBUG)
    store = GcsObjects(BUCKET, prefix, endpoint=proxy.endpoint, credentials=lambda: {"token": TOKEN}, timeout_s=2)
    told = [repr(store), str(vars(store))]
    for fault, data in (
        (answer(403, f"{TOKEN} is no good", times=ALWAYS), b"x"),
        (answer(503, TOKEN, times=ALWAYS), b"x"),
        (stall_request(times=ALWAYS), b"x"),
        (reset_request(on="^PUT", times=ALWAYS), bytes(PART_BYTES + 1)),
        (answer(503, on="^PUT", times=ALWAYS), bytes(PART_BYTES + 1)),
        (lose_answer(on="^PUT", times=ALWAYS), bytes(PART_BYTES + 1)),
    ):
        proxy.heal()
        proxy.fail(fault)
        with pytest.raises(SinkFailed) as caught:
            store.put([Put("x", Held(data))])
        told += traceback.format_exception(caught.value)
    with pytest.raises(UsageError) as usage:
        GcsObjects(BUCKET, endpoint=f"http://somebody:{TOKEN}@127.0.0.1:1")
    told += traceback.format_exception(usage.value)
    assert caplog.records
    assert TOKEN not in "".join([*told, caplog.text])
    ids = {one.path.partition("upload_id=")[2] for one in proxy.seen if "upload_id=" in one.path}
    assert ids
    assert [one for one in ids if one in "".join(told)] == []
    store.close()


def test_nobody_listens(prefix: str) -> None:
    [port] = objectservers.free_ports(1)
    store = GcsObjects(BUCKET, prefix, endpoint=f"http://127.0.0.1:{port}", credentials=lambda: {"token": TOKEN})
    with pytest.raises(Unavailable, match="no answer"):
        store.put([Put("x", Held(b"x"))])
