"""Sinks as they are set."""

from __future__ import annotations

import pytest

from gpu_train.sinks.setting import SinkSetting, sinks_of


@pytest.mark.parametrize(
    ("text", "address", "fields"),
    [
        ("/mnt/nas", "/mnt/nas", {"type": "local"}),
        ("/mnt/nas/", "/mnt/nas", {"type": "local"}),
        ("file:///mnt/a%20b?layout=packs", "/mnt/a b", {"type": "local", "layout": "packs"}),
        ("s3://b", "s3://b", {"type": "s3", "bucket": "b"}),
        ("s3://b/some/where/", "s3://b/some/where", {"prefix": "some/where"}),
        (
            "s3://b/p?endpoint=http://127.0.0.1:9000&layout=packs&limit=20MB/s&secret_ref=env://X",
            "s3://b/p?endpoint=http://127.0.0.1:9000",
            {"layout": "packs", "limit": 20e6, "secret_ref": "env://X", "endpoint": "http://127.0.0.1:9000"},
        ),
        ("gs://b/p", "gs://b/p", {"type": "gcs"}),
        ("hf://me/ckpts", "hf://me/ckpts", {"type": "hf", "repo_id": "me/ckpts"}),
        ("hf://me/ckpts/runs/a?private=true", "hf://me/ckpts/runs/a", {"prefix": "runs/a", "private": True}),
        ("hf://datasets/me/d", "hf://me/d?repo_type=dataset", {"repo_type": "dataset"}),
        ("hf://buckets/me/b/p", "hf://buckets/me/b/p", {"bucket": "me/b", "prefix": "p", "repo_id": ""}),
    ],
)
def test_addresses(text: str, address: str, fields: dict[str, object]) -> None:
    setting = SinkSetting.of(text)
    assert setting.address == address
    assert {key: getattr(setting, key) for key in fields} == fields
    assert SinkSetting.of(str(setting)) == setting
    assert SinkSetting.of(setting.to_row()) == setting


def test_tables() -> None:
    told = {"type": "s3", "bucket": "b", "prefix": "/p/", "name": "main", "layout": "packs", "secret_ref": "file:///x"}
    setting = SinkSetting.of(told)
    assert (setting.address, setting.called, setting.layout) == ("s3://b/p", "main", "packs")
    assert setting.secret_ref == "file:///x"


def test_a_folder_is_found_from_wherever(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert SinkSetting.of("nas").address == str(tmp_path / "nas")
    assert SinkSetting.of({"type": "local", "dest": "~/nas"}).address == "/home/me/nas"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"type": "s4"}, "one of local, s3, gcs, hf"),
        ({}, "one of local"),
        ({"type": "s3"}, 'needs bucket = "name"'),
        ({"type": "local"}, "needs dest"),
        ({"type": "hf"}, "repo_id"),
        ({"type": "hf", "repo_id": "a/b", "bucket": "a/b"}, "or bucket"),
        ({"type": "hf", "repo_id": "name"}, "owner and name"),
        ({"type": "s3", "bucket": "b", "pefix": "p"}, "did you mean prefix"),
        ({"type": "s3", "bucket": "b", "token_ref": "env://X"}, "no such setting of a sink of type s3"),
        ({"type": "s3", "bucket": 3}, "a text is expected"),
        ({"type": "s3", "bucket": "b", "layout": "tar"}, "files or packs"),
        ({"type": "s3", "bucket": "b", "limit": "fast"}, "bytes a second"),
        ({"type": "s3", "bucket": "b", "limit": 0}, "bytes a second"),
        ("ftp://x", "an address begins with"),
        ("s3://key:secret@b", "no credentials in an address"),
        ({"type": "hf", "repo_id": "a/b", "token_ref": "hf_secret@"}, "token_ref: a reference to a secret is expected"),
        ("s3://b?secret_ref=secret@", "secret_ref: a reference to a secret is expected"),
        (3, "a sink is"),
    ],
)
def test_what_makes_no_sense_is_told(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        SinkSetting.of(value)
    assert "secret@" not in str(caught.value)


def test_of_a_command_that_gives_credentials_the_program_is_shown() -> None:
    setting = SinkSetting.of("hf://a/b?token_ref=cmd://vault+read+s3cret&private=true")
    assert SinkSetting.of(str(setting)).token_ref == "cmd://vault read s3cret"
    assert setting.shown == "hf://a/b?private=true&token_ref=cmd://vault+..."
    assert SinkSetting.of("s3://b/p?secret_ref=env://X").shown == "s3://b/p?secret_ref=env://X"


def test_lists() -> None:
    assert [s.address for s in sinks_of("s3://a/b, /nas")] == ["s3://a/b", "/nas"]
    with pytest.raises(ValueError, match="s3://a/b is there twice"):
        sinks_of(["s3://a/b", {"type": "s3", "bucket": "a", "prefix": "b", "layout": "packs"}])
    with pytest.raises(ValueError, match="main is there twice"):
        sinks_of(["s3://a?name=main", "s3://b?name=main"])
    with pytest.raises(ValueError, match="a list of sinks"):
        sinks_of(3)
