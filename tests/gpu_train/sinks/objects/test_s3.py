"""Objects in S3, on servers of two kinds."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from uuid import uuid4

import objectservers
import pytest
from faulty import ALWAYS, Fault, Proxy, answer_xml, change_headers, faulty, stall_request
from objectservers import BUCKET, KEY, SECRET, Server, credentials
from objectstore_suite import Counter, ObjectStoreSuite, pattern

from gpu_train.errors import Corrupted, Refused, SinkFailed, Taken, Unavailable
from gpu_train.sinks.objects.content import Content, Held, Lazy
from gpu_train.sinks.objects.objectstore import Put
from gpu_train.sinks.objects.patient import PatientObjects
from gpu_train.sinks.objects.s3 import S3Objects
from gpu_train_cas.errors import Damaged, UsageError


@pytest.fixture
def prefix() -> str:
    """Where a test's objects lie."""
    return f"runs/{uuid4().hex}"


PART_BYTES = 5 << 20
"""The smallest parts that the protocol allows."""


class TestSeaweedFS(ObjectStoreSuite):
    large_bytes = 2 * PART_BYTES + 1

    @pytest.fixture
    def store(self, seaweedfs: Server, prefix: str) -> Iterator[S3Objects]:
        store = S3Objects(BUCKET, prefix, endpoint=seaweedfs.endpoint, credentials=credentials, part_bytes=PART_BYTES)
        yield store
        store.close()


class TestRclone(ObjectStoreSuite):
    large_bytes = 2 * PART_BYTES + 1
    claims_are_exclusive = False  # it passes over If-None-Match

    @pytest.fixture
    def store(self, rclone: Server, prefix: str) -> Iterator[PatientObjects]:
        """A patient one: the server answers 500 when an object is read while it is replaced."""
        store = PatientObjects(
            S3Objects(BUCKET, prefix, endpoint=rclone.endpoint, credentials=credentials, part_bytes=PART_BYTES),
            first_s=0.01,
        )
        yield store
        store.close()


@pytest.fixture
def proxy(seaweedfs: Server) -> Iterator[Proxy]:
    with faulty(seaweedfs) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: Proxy, prefix: str) -> Iterator[S3Objects]:
    """A store behind the proxy, with nothing around it."""
    store = S3Objects(BUCKET, prefix, endpoint=proxy.endpoint, credentials=credentials, part_bytes=PART_BYTES)
    yield store
    store.close()


def unfinished(server: Server, prefix: str) -> list[str]:
    """The ids of the uploads of a prefix that were neither completed nor aborted."""
    answer = objectservers.client(server.endpoint).list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)
    return [one["UploadId"] for one in answer.get("Uploads", [])]


UPLOAD = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from objectservers import BUCKET, credentials
from objectstore_suite import pattern
from gpu_train.sinks.objects.content import Held
from gpu_train.sinks.objects.objectstore import Put
from gpu_train.sinks.objects.s3 import S3Objects
store = S3Objects(BUCKET, sys.argv[2], endpoint=sys.argv[3], credentials=credentials, part_bytes=int(sys.argv[4]))
store.put([Put("x", Held(pattern(int(sys.argv[5]))))])
"""


def test_a_killed_upload_goes_on_where_it_stopped(
    seaweedfs: Server, proxy: Proxy, store: S3Objects, prefix: str
) -> None:
    size, part = 3 * PART_BYTES + 9, r"^PUT .*partNumber="
    proxy.fail(stall_request(1000, on=part + r"3\b"))
    words = [sys.executable, "-c", UPLOAD, ":".join(sys.path), prefix, proxy.endpoint, str(PART_BYTES), str(size)]
    with subprocess.Popen(words) as process:
        assert proxy.stalled.wait(60)
        asking = objectservers.client(seaweedfs.endpoint)
        [upload] = unfinished(seaweedfs, prefix)
        while True:  # the other three parts have arrived
            there = asking.list_parts(Bucket=BUCKET, Key=f"{prefix}/x", UploadId=upload).get("Parts", [])
            if len(there) == 3:
                break
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
    assert store.size("x") is None
    proxy.seen.clear()
    counter = Counter()
    store.put([Put("x", Held(pattern(size)), again=True)], counter)
    assert proxy.sent_bytes(part) == counter.total == PART_BYTES
    assert store.read("x", size) == pattern(size)
    assert unfinished(seaweedfs, prefix) == []


def test_parts_of_other_bytes_are_sent_anew(seaweedfs: Server, proxy: Proxy, store: S3Objects, prefix: str) -> None:
    first, second = pattern(2 * PART_BYTES, 1), pattern(2 * PART_BYTES, 2)
    asking = objectservers.client(seaweedfs.endpoint)
    for data in (first, first, first[:PART_BYTES] + second[PART_BYTES:]):
        begun = asking.create_multipart_upload(Bucket=BUCKET, Key=f"{prefix}/x")
        for number in (1, 2):
            part = data[(number - 1) * PART_BYTES : number * PART_BYTES]
            asking.upload_part(
                Bucket=BUCKET, Key=f"{prefix}/x", UploadId=begun["UploadId"], PartNumber=number, Body=part
            )
    store.put([Put("x", Held(second), again=True)])
    assert proxy.sent_bytes("^PUT") in (PART_BYTES, 2 * PART_BYTES)  # the newest of one second is any of them
    assert store.read("x", 2 * PART_BYTES) == second
    assert unfinished(seaweedfs, prefix) == []


def test_what_failed_for_good_is_aborted(seaweedfs: Server, store: S3Objects, prefix: str) -> None:
    def read(length: int, offset: int) -> bytes:
        if offset > 0:
            raise Damaged("the block is broken")
        return bytes(length)

    content: Content = Lazy(2 * PART_BYTES, read)
    with pytest.raises(Damaged):
        store.put([Put("x", content)])
    assert unfinished(seaweedfs, prefix) == []


def odd_etags(headers: dict[str, str]) -> dict[str, str]:
    """As servers write them that encrypt with keys of somebody's own."""
    return headers | ({"Etag": f'"{uuid4().hex}"'} if "Etag" in headers else {})


def test_etags_that_are_no_md5s(proxy: Proxy, store: S3Objects) -> None:
    small, large = pattern(50_000), pattern(PART_BYTES + 9)
    proxy.fail(change_headers(odd_etags, on="/x|/y", times=ALWAYS))
    store.put([Put("x", Held(small))])
    assert proxy.count("^GET .*/x") == 1  # it is fetched once, to see
    store.put([Put("x", Held(small[::-1]))])
    assert proxy.count("^GET .*/x") == 1  # from then on a SHA-256 tells
    assert store.holds("x", Held(small[::-1]))
    assert not store.holds("x", Held(small))
    store.put([Put("x/of/a/part", Held(large))])
    assert store.holds("x/of/a/part", Held(large))


def test_a_wrong_etag_is_looked_into(proxy: Proxy, store: S3Objects) -> None:
    proxy.fail(change_headers(odd_etags, on="^HEAD"))
    store.put([Put("x", Held(b"right"))])
    assert store.read("x", 10) == b"right"


def test_many_are_proved_by_a_listing(proxy: Proxy, store: S3Objects) -> None:
    store.put([Put(f"a/{at}", Held(b"%d" % at)) for at in range(60)])
    assert proxy.count("^PUT") == 60
    assert proxy.count("^HEAD") == 1  # listings begin after a name
    assert proxy.count("list-type=2") == 1


def test_without_the_right_to_list_each_is_asked_for(proxy: Proxy, store: S3Objects) -> None:
    proxy.fail(answer_xml(403, "AccessDenied", on="list-type=2", times=ALWAYS))
    store.put([Put(f"a/{at}", Held(b"%d" % at)) for at in range(30)])
    assert proxy.count("^HEAD") == 30


def test_new_objects_cost_one_request_where_the_server_keeps_them(proxy: Proxy, store: S3Objects) -> None:
    store.put([Put("a", Held(b"a"), only_new=True)])
    proxy.seen.clear()
    store.put([Put("b", Held(b"b"), only_new=True)])
    assert [one.method for one in proxy.seen] == ["PUT", "HEAD"]
    with pytest.raises(Taken):
        store.put([Put("b", Held(b"c"), only_new=True)])
    assert store.read("b", 10) == b"b"


def test_a_server_that_does_not_know_conditions(proxy: Proxy, store: S3Objects) -> None:
    proxy.fail(answer_xml(501, "NotImplemented", on="^PUT"))
    store.put([Put("a", Held(b"a"), only_new=True)])
    with pytest.raises(Taken):
        store.put([Put("a", Held(b"b"), only_new=True)])
    assert store.read("a", 10) == b"a"


def test_objects_of_other_programs(seaweedfs: Server, proxy: Proxy, store: S3Objects, prefix: str) -> None:
    """Parts of another size."""
    data, step = pattern(3 * PART_BYTES), PART_BYTES + 1000
    asking = objectservers.client(seaweedfs.endpoint)
    begun = asking.create_multipart_upload(Bucket=BUCKET, Key=f"{prefix}/x")
    name = {"Bucket": BUCKET, "Key": f"{prefix}/x", "UploadId": begun["UploadId"]}
    parts = [
        {"PartNumber": at // step + 1}
        | {"ETag": asking.upload_part(**name, PartNumber=at // step + 1, Body=data[at : at + step])["ETag"]}
        for at in range(0, len(data), step)
    ]
    asking.complete_multipart_upload(**name, MultipartUpload={"Parts": parts})
    assert store.holds("x", Held(data))
    assert proxy.count("^GET") == 0
    assert not store.holds("x", Held(data[::-1]))


def test_deleting_one_by_one_where_the_server_cannot_do_more(proxy: Proxy, store: S3Objects) -> None:
    store.put([Put(key, Held(b"x")) for key in ("a", "b", "c")])
    proxy.fail(answer_xml(501, "NotImplemented", on="^POST"))
    store.delete(["a", "b", "never"])
    assert [found.key for found in store.list()] == ["c"]
    store.delete(["c", "b"])
    assert proxy.count("^POST") == 1
    assert list(store.list()) == []


def test_rclone_shows_the_times_of_files(seaweedfs: Server, store: S3Objects, prefix: str) -> None:
    store.put(
        [
            Put("x", Held(b"x"), mtime_ns=1_700_000_000_123_456_789),
            Put("large", Held(bytes(PART_BYTES + 1)), mtime_ns=5 * 10**17),
        ]
    )
    place = f":s3,provider=Other,endpoint='{seaweedfs.endpoint}',access_key_id={KEY},secret_access_key={SECRET}"
    words = [objectservers.program("rclone"), "--config", "/dev/null", "lsjson", f"{place}:{BUCKET}/{prefix}"]
    told = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=60).stdout)
    assert {row["Name"]: row["ModTime"] for row in told} == {
        "x": "2023-11-14T22:13:20.123456789Z", "large": "1985-11-05T00:53:20.000000000Z",
    }  # fmt: skip


def test_credentials_that_have_expired_are_resolved_anew_once(proxy: Proxy, prefix: str) -> None:
    asked = []

    def found() -> dict[str, str]:
        asked.append(len(asked))
        return (
            {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
            if len(asked) > 1
            else credentials() | {"access_key_id": "old"}
        )

    store = S3Objects(BUCKET, prefix, endpoint=proxy.endpoint, credentials=found)
    store.put([Put("x", Held(b"x"))])
    assert store.read("x", 10) == b"x"
    assert len(asked) == 2
    proxy.fail(answer_xml(400, "ExpiredToken", on="^PUT", times=2))  # it is asked in two ways
    store.put([Put("x", Held(b"y"))])
    assert len(asked) == 3
    proxy.fail(answer_xml(400, "ExpiredToken", times=ALWAYS))
    for do in (lambda: store.put([Put("x", Held(b"z"))]), lambda: store.size("x"), lambda: list(store.list())):
        with pytest.raises(Refused, match="expired; get new ones"):
            do()
    store.close()


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        (answer_xml(403, "RequestTimeTooSkewed", times=ALWAYS), Refused, "clock of this machine is wrong"),
        (answer_xml(403, "AccessDenied", times=ALWAYS), Refused, "need the rights"),
        (answer_xml(403, "SignatureDoesNotMatch", times=ALWAYS), Refused, "secret key does not fit"),
        (answer_xml(301, "PermanentRedirect", on="^(PUT|POST)"), Refused, "set its region"),
        (answer_xml(400, "KeyTooLongError", times=ALWAYS), Refused, "KeyTooLongError"),
        (answer_xml(507, "XMinioStorageFull", times=ALWAYS), Refused, "disks are full"),
        (answer_xml(409, "OperationAborted", times=ALWAYS), Unavailable, "OperationAborted"),
        (answer_xml(400, "RequestTimeout", times=ALWAYS), Unavailable, "RequestTimeout"),
        (answer_xml(400, "BadDigest", times=ALWAYS), Corrupted, "not what was sent"),
        (
            Fault(status=200, body=b"<Error><Code>InternalError</Code></Error>", on="^POST .*uploadId", times=ALWAYS),
            Unavailable,
            "InternalError",
        ),
        (Fault(status=200, body=b"<ListBucketRes", on="list-type=2", times=ALWAYS), Unavailable, "the server failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_answers_mean(proxy: Proxy, store: S3Objects, fault: Fault, error: type[SinkFailed], said: str) -> None:
    fault.times = ALWAYS
    proxy.fail(fault)
    with pytest.raises(error, match=said):
        store.put([Put("x", Held(bytes(PART_BYTES + 1))), *(Put(f"{at}", Held(b"x")) for at in range(20))])


@pytest.mark.long
def test_a_server_that_redirects_without_end(proxy: Proxy, store: S3Objects) -> None:
    proxy.fail(answer_xml(301, "PermanentRedirect", times=ALWAYS))
    with pytest.raises(Refused, match="set its region"):
        store.put([Put("x", Held(b"x"))])


def test_a_bucket_that_is_not_there(seaweedfs: Server) -> None:
    store = S3Objects("no-such-bucket", "p", endpoint=seaweedfs.endpoint, credentials=credentials)
    for do in (
        lambda: store.size("x"),
        lambda: store.read("x", 1),
        lambda: list(store.list()),
        lambda: store.put([Put("x", Held(b"x"))]),
    ):
        with pytest.raises(Refused, match="no-such-bucket"):
            do()
    store.close()


def test_no_credentials_at_all(seaweedfs: Server, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = S3Objects(BUCKET, endpoint=seaweedfs.endpoint)
    with pytest.raises(Refused, match="AWS_ACCESS_KEY_ID"):
        store.size("x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    store.close()
    assert S3Objects(BUCKET, endpoint=seaweedfs.endpoint, credentials=dict).size("no/such") is None


def test_nobody_listens(prefix: str) -> None:
    [port] = objectservers.free_ports(1)
    store = S3Objects(BUCKET, prefix, endpoint=f"http://127.0.0.1:{port}", credentials=credentials)
    with pytest.raises(Unavailable, match="no answer"):
        store.put([Put("x", Held(b"x"))])


@pytest.mark.parametrize("key", ["", "..", "a/../b", "/a", "a//b", "a/.", "a/", "a\0b", "x" * 1025])
def test_keys_that_are_none(store: S3Objects, key: str) -> None:
    with pytest.raises(Refused):
        store.put([Put(key, Held(b"x"))])


def test_secrets_are_seen_nowhere(
    proxy: Proxy, prefix: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in errors, not in reprs, not in logs with all of them turned on."""
    token = "the-token-of-a-session"
    secrets = {"access_key_id": KEY, "secret_access_key": SECRET, "session_token": token}
    for name in ("botocore.auth", "botocore.credentials", "botocore.endpoint", "botocore.parsers"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    caplog.set_level(logging.DEBUG)
    store = S3Objects(BUCKET, prefix, endpoint=proxy.endpoint, credentials=lambda: secrets, timeout_s=2)
    told = [repr(store), str(vars(store))]
    for fault in (
        answer_xml(403, "AccessDenied", message=f"{SECRET} of {KEY} with {token} is no good", times=ALWAYS),
        answer_xml(400, "ExpiredToken", message=token, times=ALWAYS),
        answer_xml(503, "SlowDown", message=token, times=ALWAYS),
        stall_request(times=ALWAYS),
    ):
        proxy.heal()
        proxy.fail(fault)
        with pytest.raises(SinkFailed) as caught:
            store.put([Put("x", Held(b"x"))])
        told += traceback.format_exception(caught.value)
    with pytest.raises(UsageError) as usage:
        S3Objects(BUCKET, endpoint=f"http://{KEY}:{SECRET}@127.0.0.1:1")
    told += traceback.format_exception(usage.value)
    assert caplog.records
    text = "".join([*told, caplog.text])
    assert [secret for secret in (SECRET, token) if secret in text] == []
    store.close()
