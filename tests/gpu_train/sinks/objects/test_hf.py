"""Objects on a hub: the real client against a small hub on loopback."""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub import READ, WRITE, Entry, Hub, running
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from objectstore_suite import Counter, ObjectStoreSuite, pattern

from gpu_train.errors import Corrupted, Refused, Taken, Unavailable
from gpu_train.sinks.objects import hf_hub, hf_repo
from gpu_train.sinks.objects.content import FileContent, Held, Lazy
from gpu_train.sinks.objects.hf import HfObjects
from gpu_train.sinks.objects.objectstore import Put
from gpu_train.sinks.objects.patient import PatientObjects
from gpu_train_cas.errors import NotFound, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the client's way to send files


@pytest.fixture(autouse=True)
def nobody_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with running(tmp_path) as one:
        yield one


def token() -> dict[str, str]:
    return {"token": WRITE}


class TestRepo(ObjectStoreSuite):
    @pytest.fixture
    def store(self, hub: Hub) -> HfObjects:
        return HfObjects("you/ckpts", private=True, endpoint=hub.url, credentials=token)


class TestBelowAPrefix(ObjectStoreSuite):
    @pytest.fixture
    def store(self, hub: Hub) -> HfObjects:
        return HfObjects.at("hf://datasets/you/ckpts/runs/a b", endpoint=hub.url, credentials=token)


class TestBucket(ObjectStoreSuite):
    claims_are_exclusive = False  # a bucket has no condition on what is there

    @pytest.fixture
    def store(self, hub: Hub) -> HfObjects:
        return HfObjects.at("hf://buckets/you/ckpts/x", endpoint=hub.url, credentials=token)


class TestRepoWithoutXet(ObjectStoreSuite):
    @pytest.fixture
    def store(self, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> HfObjects:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        return HfObjects("you/ckpts", endpoint=hub.url, credentials=token)


@pytest.fixture
def repo(hub: Hub) -> HfObjects:
    return HfObjects("you/ckpts", endpoint=hub.url, credentials=token)


@pytest.fixture
def without_xet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)


def many(count: int) -> list[Put]:
    return [Put(f"d/f{at:04}.json", Held(b"{%d}" % at)) for at in range(count)]


def test_many_objects_are_few_commits(hub: Hub, repo: HfObjects) -> None:
    repo.put(many(250))
    assert hub.commits() == 3
    assert repo.few_files
    repo.delete([one.key for one in many(250)])
    assert hub.commits() == 4
    assert list(repo.list()) == []


def test_listing_leaves_calls_of_others_alone(hub: Hub, repo: HfObjects) -> None:
    repo.put(many(3))
    found = repo.list()
    next(found)
    hub.fail("POST .*/paths-info/", 503)
    with pytest.raises(HfHubHTTPError):
        HfApi(endpoint=hub.url, token=WRITE).get_paths_info("you/ckpts", ["x"])
    assert len(list(found)) == 2


def test_a_card_of_a_model(repo: HfObjects) -> None:
    card = b"---\nlicense: mit\n---\n# A model\n"
    repo.put([Put("README.md", Held(card))])
    assert repo.read("README.md", 100) == card


def test_what_is_held_in_memory_has_a_limit(hub: Hub, repo: HfObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_repo, "COMMIT_BYTES", 250_000)
    repo.put([Put(f"f{at}.txt", Held(b"%d" % at * 100_000)) for at in range(5)])
    assert hub.commits() == 3


@pytest.mark.parametrize(("private", "expected"), [(True, True), (False, False), (None, False)])
def test_the_repository_is_made_with_the_first_object(hub: Hub, private: bool | None, expected: bool) -> None:
    store = HfObjects("you/new", repo_type="dataset", private=private, endpoint=hub.url, credentials=token)
    assert store.size("x") is None
    assert list(store.list()) == []
    store.delete(["x"])
    with pytest.raises(NotFound):
        store.read("x", 1)
    assert hub.repos == {}
    store.put(many(1))
    assert hub.repos["dataset", "you/new"].private is expected


def test_a_branch_is_made_too(hub: Hub) -> None:
    store = HfObjects("you/ckpts", revision="runs/a", endpoint=hub.url, credentials=token)
    store.put([Put("x", Held(b"x"))])
    assert store.read("x", 10) == b"x"
    assert HfObjects("you/ckpts", endpoint=hub.url, credentials=token).size("x") is None


def test_files_of_our_own_and_streams(hub: Hub, repo: HfObjects, tmp_path: Path) -> None:
    data = pattern(12 << 20)
    (tmp_path / "pack").write_bytes(data)
    count = Counter()
    with FileContent(tmp_path / "pack") as content:
        other = pattern(len(data), 1)
        lazy = Lazy(len(other), lambda length, offset: other[offset : offset + length])
        repo.put([Put("a.pack", content), Put("b.pack", lazy), Put("c.txt", Held(b"text"))], count)
        assert count.total == 2 * len(data) + 4
        assert repo.holds("a.pack", content)
        assert repo.holds("b.pack", lazy)
        assert not repo.holds("b.pack", content)
    assert hub.xet.keys() == {hashlib.sha256(data).hexdigest()}, "what is a file goes through xet"
    assert repo.read("b.pack", 1000, 11 << 20) == other[11 << 20 :][:1000]


def test_buckets_know_files_of_our_own_by_their_checksum(hub: Hub, tmp_path: Path) -> None:
    store = HfObjects.at("hf://buckets/you/b", endpoint=hub.url, credentials=token)
    (tmp_path / "pack").write_bytes(pattern(3 << 20))
    (tmp_path / "other").write_bytes(pattern(3 << 20, 1))
    with FileContent(tmp_path / "pack") as content, FileContent(tmp_path / "other") as other:
        store.put([Put("x.pack", content, mtime_ns=1_700_000_000_123_000_000)])
        asked = hub.count("resolve")
        assert store.holds("x.pack", content)
        assert not store.holds("x.pack", other)
        assert hub.count("resolve") == asked
    assert hub.buckets["you/b"]["x.pack"]["mtimeMs"] == 1_700_000_000_123
    assert not store.few_files


@pytest.mark.parametrize(
    ("request_", "make"),
    [
        ("GET /api/models/you/ckpts/revision/main", lambda store: store.put(many(1))),
        ("POST .*/preupload/", lambda store: store.put(many(1))),
        ("POST .*/objects/batch", lambda store: store.put([Put("x.bin", Held(b"x" * 100))])),
        ("PUT /lfs/", lambda store: store.put([Put("x.bin", Held(b"x" * 100))])),
        ("PUT /lfs-part/.*/2", lambda store: store.put([Put("x.bin", Held(pattern(11 << 20)))])),
        ("POST /lfs-complete/", lambda store: store.put([Put("x.bin", Held(pattern(11 << 20)))])),
        ("POST .*/commit/", lambda store: store.put(many(1))),
        ("POST .*/paths-info/", lambda store: store.size("there")),
        ("GET .*/tree/", lambda store: list(store.list())),
        ("GET .*/resolve/", lambda store: store.read("there", 1)),
    ],
)
def test_a_hub_that_is_tired_is_asked_once_and_says_for_how_long(
    hub: Hub, repo: HfObjects, without_xet: None, capfd: pytest.CaptureFixture[str],
    request_: str, make: Callable[[HfObjects], object],
) -> None:  # fmt: skip
    repo.put([Put("there", Held(b"x"))])
    for status, headers, expected in (
        (429, {"Retry_After": "3600"}, 3600.0), (503, {}, None), (429, {"RateLimit": '"api";r=0;t=55'}, 55.0),
        (500, {}, None), (429, {"Retry_After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ):  # fmt: skip
        before = hub.count(request_)
        hub.fail(request_, status, **headers)
        with pytest.raises(Unavailable, match=r"^hf://you/ckpts: ") as caught:
            make(repo)
        assert caught.value.retry_after_s == expected
        assert hub.count(request_) == before + 1
    assert hub.faults == []
    make(repo)
    assert capfd.readouterr() == ("", "")


def test_patience_gets_it_done(hub: Hub, repo: HfObjects, without_xet: None) -> None:
    for pattern_ in ("POST .*/preupload/", "PUT /lfs-part/", "POST .*/commit/"):
        hub.fail(pattern_, 503)
    waited: list[float] = []
    count = Counter()
    data = pattern(11 << 20)
    patient = PatientObjects(repo, sleep=waited.append)
    patient.put([Put("x.bin", Held(data)), Put("y.txt", Held(b"y"))], count)
    assert hub.faults == []
    assert len(waited) >= 2
    assert 0 < count.total <= len(data) + 1, "what is there from an attempt before is not sent again"
    assert repo.read("x.bin", len(data)) == data
    assert hub.commits() == 1


def test_an_answer_that_is_lost(hub: Hub, repo: HfObjects) -> None:
    hub.drop("POST .*/commit/")
    with pytest.raises(Unavailable, match="no answer from the hub"):
        repo.put(many(3))
    PatientObjects(repo).put([one._replace(again=True) for one in many(3)])
    assert hub.commits() == 1, "it had been committed"


def test_a_hub_that_says_nothing(hub: Hub, repo: HfObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.put(many(1))
    monkeypatch.setitem(hf_hub.TIMEOUT_S, "read", 0.5)
    hub.hang("POST .*/paths-info/")
    with pytest.raises(Unavailable, match="no answer from the hub"):
        repo.size("x")
    hub.hang("POST .*/preupload/", times=10)
    before = hub.count("preupload")
    with pytest.raises(Unavailable, match="no answer from the hub"):
        repo.put([Put("new", Held(b"x"))])
    assert hub.count("preupload") <= before + 2


def test_a_hub_that_is_not_there() -> None:
    for place in ({"repo_id": "you/ckpts"}, {"bucket": "you/ckpts"}):
        store = HfObjects(**place, endpoint="http://127.0.0.1:9", credentials=token)
        for do in (lambda: store.put(many(1)), lambda: list(store.list()), lambda: store.size("x")):  # noqa: B023
            with pytest.raises(Unavailable, match=r"no answer from the hub: .*Connection refused"):
                do()


def test_a_download_that_is_cut_off(hub: Hub, repo: HfObjects) -> None:
    data = pattern(2 << 20)
    repo.put([Put("x.bin", Held(data)), Put("y.txt", Held(b"y" * 1000))])
    for path, key, expected in (("/cdn/", "x.bin", data), ("resolve", "y.txt", b"y" * 1000)):
        hub.break_off(f"GET .*{path}")
        with pytest.raises(Unavailable, match="no answer"):
            repo.read(key, len(expected))
        hub.break_off(f"GET .*{path}")
        assert PatientObjects(repo, sleep=lambda s: None).read(key, len(expected)) == expected


def test_others_commit_in_between(hub: Hub, repo: HfObjects) -> None:
    repo.put(many(1))

    def other(key: str, data: bytes) -> None:
        hub.before_commit = lambda: None
        branch = hub.repos["model", "you/ckpts"].branches["main"]
        branch.append((secrets.token_hex(20), {**branch[-1][1], key: Entry(data, size=len(data))}))

    hub.before_commit = lambda: other("theirs", b"x")
    repo.put([Put("ours", Held(b"x"), only_new=True), Put("text", Held(b"y"))])
    assert repo.read("ours", 10) == repo.read("theirs", 10) == b"x"
    hub.before_commit = lambda: other("claim", b"mine")
    repo.put([Put("claim", Held(b"mine"), only_new=True)])
    hub.before_commit = lambda: other("claim-2", b"theirs")
    with pytest.raises(Taken, match="claim-2"):
        repo.put([Put("claim-2", Held(b"mine"), only_new=True)])
    assert repo.read("claim-2", 10) == b"theirs"
    hub.fail("POST .*/commit/", 412, times=3)
    repo.put([Put("whatever", Held(b"x"))])
    hub.fail("POST .*/commit/", 412, times=100)
    with pytest.raises(Unavailable, match="others commit"):
        repo.put([Put("again", Held(b"x"))])


@pytest.mark.parametrize("body", [{"oid": "0" * 40, "size": 1}, {"oid": "0" * 40, "size": 2}])
def test_other_bytes_than_were_sent(hub: Hub, repo: HfObjects, body: dict[str, object]) -> None:
    hub.fail("POST .*/paths-info/", 200, body=[{"type": "file", "path": "x", **body}])
    with pytest.raises(Corrupted, match="the hub holds other bytes of x"):
        repo.put([Put("x", Held(b"x"))])


def test_other_bytes_in_a_bucket(hub: Hub) -> None:
    store = HfObjects(bucket="you/b", endpoint=hub.url, credentials=token)
    hub.fail("POST .*/paths-info", 200, body=[{"type": "file", "path": "x", "xetHash": "0" * 64, "size": 1}])
    with pytest.raises(Corrupted, match="the bucket holds other bytes of x"):
        store.put([Put("x", Held(b"x"))])
    hub.fail("POST .*/batch", 422, body={"failed": [{"path": "x", "error": "no room"}]})
    with pytest.raises(Refused, match="x was not added: no room"):
        store.put([Put("x", Held(b"x"))])
    hub.fail("POST .*/batch", 429, Retry_After="9")
    with pytest.raises(Unavailable) as caught:
        store.put([Put("x", Held(b"x"))])
    assert caught.value.retry_after_s == 9.0


def test_an_old_client(monkeypatch: pytest.MonkeyPatch, repo: HfObjects) -> None:
    monkeypatch.delattr(HfApi, "batch_bucket_files")
    with pytest.raises(Refused, match=r"buckets need huggingface_hub 1\.5 and hf_xet 1\.5; `pip install"):
        HfObjects(bucket="you/b")
    monkeypatch.setattr(hf_hub, "get_session", object)  # before 1.0 it gave one without hooks
    with pytest.raises(Refused, match=r"too old; `pip install -U 'huggingface_hub>=1\.0'`"):
        repo.size("x")


def test_what_the_repository_ignores(repo: HfObjects) -> None:
    with pytest.raises(Refused, match=r"x\.ignored is not there after it was committed; does a \.gitignore"):
        repo.put([Put("x.ignored", Held(b"x"))])


@pytest.mark.parametrize("place", [{"repo_id": "you/ckpts"}, {"bucket": "you/ckpts"}])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"token": "hf_wrong"}, "does not know the token.*`gpu-train credentials add hf`"),
        ({}, "wants one"),
        ({"token": READ}, "has no right to do that"),
    ],
)
def test_tokens_that_will_not_do(hub: Hub, place: dict[str, str], given: dict[str, str], says: str) -> None:
    HfObjects(**place, private=True, endpoint=hub.url, credentials=token).put(many(1))
    store = HfObjects(**place, endpoint=hub.url, credentials=lambda: given)
    with pytest.raises(Refused, match=says) as caught:
        store.put([Put("x", Held(b"x"))])
    assert WRITE not in str(caught.value)
    assert "hf_wrong" not in str(caught.value)


def test_private_and_gated_repositories(hub: Hub) -> None:
    HfObjects("you/ckpts", private=True, endpoint=hub.url, credentials=token).put(many(1))
    stranger = HfObjects("you/ckpts", endpoint=hub.url, credentials=dict)
    for do in (lambda: stranger.size("x"), lambda: list(stranger.list()), lambda: stranger.read("x", 1)):
        with pytest.raises(Refused, match="wants one"):
            do()
    hub.repos["model", "you/ckpts"].private = False
    hub.repos["model", "you/ckpts"].gated = True
    with pytest.raises(Refused, match="access is given on request"):
        stranger.read("x", 1)


def test_the_token_is_asked_for_at_each_attempt(hub: Hub) -> None:
    tokens = iter(["hf_expired", WRITE, WRITE, WRITE, WRITE, WRITE, WRITE])
    store = HfObjects("you/ckpts", endpoint=hub.url, credentials=lambda: {"token": next(tokens)})
    with pytest.raises(Refused):
        store.put([Put("x", Held(b"x"))])
    store.put([Put("x", Held(b"x"))])

    def gone() -> dict[str, str]:
        raise Refused("env://HF is not set")

    with pytest.raises(Refused, match="env://HF is not set"):
        HfObjects("you/ckpts", endpoint=hub.url, credentials=gone).size("x")


def test_the_token_goes_to_the_hub_alone(hub: Hub, repo: HfObjects, without_xet: None) -> None:
    repo.put([Put("x.bin", Held(b"x" * 100)), Put("y.bin", Held(pattern(6 << 20)))])
    assert repo.read("x.bin", 10) == b"x" * 10
    assert len(hub.seen_authorization) >= 4
    assert not any(hub.seen_authorization), "storage elsewhere has addresses that are signed"


def test_others_in_this_process_keep_the_client_as_it_is(hub: Hub, repo: HfObjects) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled

    before = are_progress_bars_disabled()
    repo.put(many(1))
    assert are_progress_bars_disabled() == before
    hub.fail("POST .*/paths-info/", 503)
    with pytest.raises(HfHubHTTPError):
        HfApi(endpoint=hub.url, token=WRITE).get_paths_info("you/ckpts", ["x"])


def test_offline(hub: Hub, repo: HfObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(Refused, match="HF_HUB_OFFLINE is set; unset it"):
        repo.size("x")
    assert hub.requests == []


@pytest.mark.parametrize("key", ["", "..", "a/../b", "/a", "a//b", "a/.", ".git/config", "a/.cache/b"])
def test_no_key_leads_out(hub: Hub, repo: HfObjects, key: str) -> None:
    with pytest.raises(Refused, match="no name for an object"):
        repo.put([Put(key, Held(b"x"))])
    assert hub.requests == []


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("hf://you/ckpts", "hf://you/ckpts"),
        ("hf://you/ckpts/runs/a/", "hf://you/ckpts/runs/a"),
        ("hf://models/you/ckpts/x", "hf://you/ckpts/x"),
        ("hf://datasets/you/ckpts", "hf://datasets/you/ckpts"),
        ("hf://buckets/you/ckpts/x", "hf://buckets/you/ckpts/x"),
    ],
)
def test_addresses(address: str, expected: str) -> None:
    assert HfObjects.at(address).address == expected


@pytest.mark.parametrize(
    "address", ["hf://you", "hf://", "hf://buckets/you", "s3://you/ckpts", "you/ckpts", "hf:///x/y"]
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="is expected"):
        HfObjects.at(address)
    with pytest.raises(UsageError, match="either repo_id or bucket"):
        HfObjects("you/ckpts", bucket="you/ckpts")


def test_the_client_downloads_what_was_put(hub: Hub, repo: HfObjects, tmp_path: Path) -> None:
    data = pattern(1 << 20)
    repo.put([Put("job/checkpoint-5/model.safetensors", Held(data)), Put("job/checkpoint-5/config.json", Held(b"{}"))])
    code = "import huggingface_hub as h; print(h.snapshot_download('you/ckpts', allow_patterns='job/*'))"
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": WRITE, "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    folder = Path(done.stdout.strip(), "job", "checkpoint-5")
    assert (folder / "model.safetensors").read_bytes() == data
    assert (folder / "config.json").read_bytes() == b"{}"


@pytest.mark.long  # transformers takes many seconds to load
def test_transformers_loads_what_was_put(hub: Hub, tmp_path: Path) -> None:
    code = """
    from pathlib import Path
    import torch, transformers
    from gpu_train.sinks.objects.content import FileContent
    from gpu_train.sinks.objects.hf import HfObjects
    from gpu_train.sinks.objects.objectstore import Put
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=16,
    )
    trained = transformers.BertModel(config)
    trained.save_pretrained("here")
    store = HfObjects("you/ckpts", private=True, prefix="job/checkpoints")
    store.put([Put(f"checkpoint-5/{path.name}", FileContent(path)) for path in Path("here").iterdir()])
    loaded = transformers.AutoModel.from_pretrained("you/ckpts", subfolder="job/checkpoints/checkpoint-5")
    for (name, ours), (_, theirs) in zip(trained.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    print("the same")
    """
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": WRITE, "HF_HOME": str(tmp_path / "hf")}
    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, cwd=tmp_path, env=env, check=False, capture_output=True, text=True)
    assert done.stdout == "the same\n", done.stderr
    assert hub.count("resolve/.*/job/checkpoints/checkpoint-5/model.safetensors") > 0
    assert hub.count("GET /cdn/") > 0


@pytest.mark.long
def test_a_large_content_is_not_held_in_memory(hub: Hub, tmp_path: Path) -> None:
    """640 MiB that are almost all the same, of which xet sends little, and could hold all."""
    code = """
    import resource
    from gpu_train.sinks.objects.content import Lazy
    from gpu_train.sinks.objects.hf import HfObjects
    from gpu_train.sinks.objects.objectstore import Put
    import os
    block = os.urandom(1 << 20)

    def read(length, offset):
        first, last = offset >> 20, (offset + length - 1) >> 20
        data = b"".join(at.to_bytes(8, "little") + block[8:] for at in range(first, last + 1))
        return data[offset - (first << 20) :][:length]

    store = HfObjects.at("hf://buckets/you/ckpts")
    store.put([Put("warm", Lazy(8 << 20, read))])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store.put([Put("x.bin", Lazy(640 << 20, read))])
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
    """
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": WRITE, "HF_HOME": str(tmp_path / "hf")}
    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 450


def test_the_environment_names_the_hub_and_the_token(hub: Hub, tmp_path: Path) -> None:
    code = """
    from gpu_train.sinks.objects.content import Held
    from gpu_train.sinks.objects.hf import HfObjects
    from gpu_train.sinks.objects.objectstore import Put
    store = HfObjects("you/ckpts")
    store.put([Put("x", Held(b"by the environment"))])
    print(store.read("x", 100).decode())
    """
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": WRITE, "HF_HOME": str(tmp_path / "hf")}
    words = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("by the environment\n", "")
    env["HF_HUB_OFFLINE"] = "1"
    offline = subprocess.run(words, env=env, check=False, capture_output=True, text=True)
    assert "HF_HUB_OFFLINE is set" in offline.stderr
