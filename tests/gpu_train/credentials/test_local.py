"""The credential store in the home."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_train.credentials.credential import Wanted
from gpu_train.credentials.local import Entry, LocalCredentials
from gpu_train.credentials.reference import Reference
from gpu_train.credentials.secret import Secret
from gpu_train.errors import Refused
from gpu_train.home import Home
from gpu_train_cas.errors import NotFound, TooNew

TOKEN = Secret("s3cret")


@pytest.fixture
def local(home: Path) -> LocalCredentials:
    return LocalCredentials(Home(home))


def test_what_is_added_can_be_read_by_its_owner_alone(local: LocalCredentials, home: Path) -> None:
    before = os.umask(0)
    try:
        local.add("hf", "hf", TOKEN)
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "credentials.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    [entry] = local.entries()
    assert (entry.name, entry.type, entry.where) == ("hf", "hf", "file")
    assert local.secret(entry).reveal() == "s3cret"
    assert "s3cret" not in repr(local.entries())


def test_a_file_that_others_can_read_is_refused(local: LocalCredentials, home: Path) -> None:
    local.add("hf", "hf", TOKEN)
    for mode in (0o640, 0o604, 0o620, 0o601):
        (home / "credentials.json").chmod(mode)
        with pytest.raises(Refused, match=r"others have rights to it; `chmod 600 .*credentials.json`"):
            local.entries()
        with pytest.raises(Refused, match="others have rights to it"):
            local.add("other", "hf", TOKEN)
    (home / "credentials.json").chmod(0o600)
    assert [entry.name for entry in local.entries()] == ["hf"]


def test_the_keyring_keeps_the_secret_where_there_is_one(
    local: LocalCredentials, home: Path, keyring_file: Path
) -> None:
    entry = local.add("s3://bucket/x", "s3", TOKEN)
    assert entry.where == "keyring"
    assert "s3cret" in keyring_file.read_text()
    assert "s3cret" not in (home / "credentials.json").read_text()
    assert local.secret(local.get("s3://bucket/x")).reveal() == "s3cret"
    local.remove("s3://bucket/x")
    assert "s3cret" not in keyring_file.read_text()
    assert local.entries() == []


def test_a_reference_takes_the_place_of_a_secret(local: LocalCredentials, keyring_file: Path, monkeypatch) -> None:
    local.add("hf", "hf", TOKEN)
    local.add("hf", "hf", Reference.parse("env://TOKEN"))
    assert "s3cret" not in keyring_file.read_text()
    monkeypatch.setenv("TOKEN", "other")
    [entry] = local.entries()
    assert (entry.where, str(entry.reference), local.secret(entry).reveal()) == ("reference", "env://TOKEN", "other")


def test_a_keyring_that_lost_it(local: LocalCredentials, keyring_file: Path) -> None:
    local.add("hf", "hf", TOKEN)
    keyring_file.unlink()
    with pytest.raises(Refused, match="nothing is stored there"):
        local.secret(local.get("hf"))
    local.remove("hf")


def test_a_locked_keyring(local: LocalCredentials, keyring_file: Path) -> None:
    keyring_file.parent.rmdir()
    with pytest.raises(Refused, match=r"the system's keyring refuses \(KeyringLocked\)"):
        local.add("hf", "hf", TOKEN)
    assert local.entries() == []


def test_names_that_are_not_there(local: LocalCredentials) -> None:
    assert local.entries() == []
    for do in (local.get, local.remove):
        with pytest.raises(NotFound, match="no credentials 'none'; `gpu-train credentials list`"):
            do("none")


def test_the_best_one_is_found(local: LocalCredentials) -> None:
    for name in ("s3", "s3://bucket", "s3://bucket/deep", "archive"):
        local.add(name, "s3", TOKEN)
    local.add("hf", "hf", TOKEN)

    def name(address: str, sink: str = "") -> str | None:
        found = local.find(Wanted(address, sink=sink))
        return None if found is None else found.name

    assert name("s3://other") == "s3"
    assert name("s3://bucket") == name("s3://bucket/") == name("s3://bucket/x") == "s3://bucket"
    assert name("s3://bucket-2") == "s3"
    assert name("s3://bucket/deep/er") == "s3://bucket/deep"
    assert name("s3://bucket/deep", "archive") == "archive"
    assert name("gs://bucket") is None
    local.add("hf://datasets/me", "hf", TOKEN)
    assert name("hf://datasets/me/x") == name("hf://me/x?repo_type=dataset") == "hf://datasets/me"
    assert name("hf://buckets/me/x", "archive") == "hf"


def test_many_at_once_lose_nothing(local: LocalCredentials) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: local.add(f"n{at}", "hf", Secret(f"s{at}")), range(24)))
    assert {entry.name: local.secret(entry).reveal() for entry in local.entries()} == {
        f"n{at}": f"s{at}" for at in range(24)
    }


@pytest.mark.parametrize("text", ["s3cret", '{"version": 1, "credentials": [{"name": "s3cret"}]}', '["s3cret"]', ""])
def test_a_file_that_makes_no_sense_is_not_repeated(local: LocalCredentials, home: Path, text: str) -> None:
    home.mkdir()
    (home / "credentials.json").write_text(text)
    (home / "credentials.json").chmod(0o600)
    with pytest.raises(Refused, match="cannot be understood") as caught:
        local.entries()
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_newer_file(local: LocalCredentials, home: Path) -> None:
    home.mkdir()
    (home / "credentials.json").write_text('{"version": 2, "credentials": []}')
    (home / "credentials.json").chmod(0o600)
    with pytest.raises(TooNew):
        local.entries()


def test_the_file_is_as_specified(local: LocalCredentials, home: Path) -> None:
    local.add("hf", "hf", TOKEN)
    found = json.loads((home / "credentials.json").read_text())
    [fields] = found["credentials"]
    assert found["version"] == 1
    assert fields.keys() == {"name", "type", "where", "added", "value"}
    assert Entry._of_json(fields).added_ns == local.entries()[0].added_ns
