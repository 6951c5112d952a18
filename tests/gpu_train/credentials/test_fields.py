"""What people and programs write as a secret."""

from __future__ import annotations

import json

import pytest

from gpu_train.credentials.fields import fields_of
from gpu_train.credentials.secret import Secret
from gpu_train.errors import Refused

KEYS = {"aws_access_key_id": "AKIA", "aws_secret_access_key": "s3cr=t/+"}


@pytest.mark.parametrize(
    "text",
    [
        "aws_access_key_id=AKIA\naws_secret_access_key=s3cr=t/+",
        "[default]\n# mine\naws_access_key_id = AKIA\r\naws_secret_access_key = s3cr=t/+\n",
        "export AWS_ACCESS_KEY_ID='AKIA'\nexport AWS_SECRET_ACCESS_KEY=\"s3cr=t/+\"",
        json.dumps(KEYS),
        '{"Version": 1, "AccessKeyId": "AKIA", "SecretAccessKey": "s3cr=t/+", "SessionToken": null}',
    ],
)
def test_keys_for_s3(text: str) -> None:
    fields = fields_of(Secret(text), "s3", "x")
    assert {name: fields[name] for name in KEYS} == KEYS
    assert "aws_session_token" not in fields


def test_a_session_as_sts_prints_it() -> None:
    inner = {"AccessKeyId": "A", "SecretAccessKey": "B", "SessionToken": "C", "Expiration": "2030-01-01T00:00:00Z"}
    fields = fields_of(Secret(json.dumps({"Credentials": inner, "AssumedRoleUser": {"Arn": "x"}})), "s3", "x")
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "expiration")
    assert [fields[name] for name in names] == ["A", "B", "C", "2030-01-01T00:00:00Z"]


@pytest.mark.parametrize("text", ["hf_token=abc", "HF_TOKEN=abc", '{"token": "abc"}', "abc", "export HF_TOKEN='abc'"])
def test_a_token_for_the_hub(text: str) -> None:
    assert fields_of(Secret(text), "hf", "x") == {"token": "abc"}


@pytest.mark.parametrize("text", ["dG9rZW4=", "abc=def", "a b c", "ya29.x=="])
def test_a_token_may_hold_what_separates_keys(text: str) -> None:
    assert fields_of(Secret(text), "gcs", "x") == {"token": text}


def test_an_account_of_google() -> None:
    account = {
        "type": "service_account",
        "private_key": "-----BEGIN\n",
        "client_email": "a@b",
        "token_uri": "https://t",
    }
    text = json.dumps(account, indent=2)
    assert fields_of(Secret(text), "gcs", "x") == {"service_account_json": text}
    assert fields_of(Secret("GOOGLE_APPLICATION_CREDENTIALS=/a/key.json"), "gcs", "x") == {
        "google_application_credentials": "/a/key.json"
    }


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("s3cret", "s3", "x: S3 needs two values"),
        ("aws_access_key_id=s3cret", "s3", "x: there is no aws_secret_access_key in it; there is aws_access_key_id"),
        ("aws_access_key_id=s3cret\naws_secret_access_key=", "s3", "there is no aws_secret_access_key"),
        ('{"key": "s3cret"}', "hf", "x: there is no token in it; there is key"),
        ('{"key": s3cret}', "hf", "x: it begins like JSON, and is none"),
        ("{}", "gcs", "there is no token in it; there is nothing"),
    ],
)
def test_what_lacks_something_is_refused_without_repeating_it(text: str, kind: str, says: str) -> None:
    with pytest.raises(Refused, match=says) as caught:
        fields_of(Secret(text), kind, "x")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
