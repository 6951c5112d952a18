"""Our signatures are those of botocore."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from gpu_train.sinks.objects.s3_signed import SignedPuts

NOW = datetime(2026, 2, 28, 23, 59, 58, tzinfo=UTC)


class FixedAuth(S3SigV4Auth):
    """At one moment."""

    def add_auth(self, request: AWSRequest) -> None:
        request.context["timestamp"] = NOW.strftime("%Y%m%dT%H%M%SZ")
        self._modify_request_before_signing(request)
        text = self.string_to_sign(request, self.canonical_request(request))
        self._inject_signature_to_request(request, self.signature(text, request))


@pytest.mark.parametrize("token", [None, "a token/of+a=session"])
@pytest.mark.parametrize(
    ("base", "key"),
    [
        ("https://bucket.s3.eu-west-1.amazonaws.com/", "runs/a b+c&d=e/%41/ä-𝄞 (1)~!*'.pack"),
        ("http://127.0.0.1:9000/bucket/", "x"),
        ("http://host:80/bucket/", "a/b"),
        ("https://host:443/bucket/", "a/b"),
    ],
)
def test_as_botocore_signs(base: str, key: str, token: str | None) -> None:
    found = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG", token)
    puts = SignedPuts(
        base, "eu-west-1", found.get_frozen_credentials, ca_bundle=None, connections=1, timeout_s=(1.0, 1.0)
    )
    headers = {"content-md5": "XrY7u+Ae7tCTyyK7j1rNww==", "x-amz-meta-mtime": "1.5", "if-none-match": "*"}
    url, ours = puts.signed(key, headers, NOW)
    request = AWSRequest("PUT", url, headers | {"X-Amz-Security-Token": token} if token else headers)
    request.context["client_config"] = Config(s3={"payload_signing_enabled": False})
    FixedAuth(found, "s3", "eu-west-1").add_auth(request)
    assert ours["authorization"] == request.headers["Authorization"]
    assert ours["x-amz-content-sha256"] == request.headers["X-Amz-Content-SHA256"] == "UNSIGNED-PAYLOAD"
    assert ours["x-amz-date"] == request.headers["X-Amz-Date"]
    assert ours.get("x-amz-security-token") == token
