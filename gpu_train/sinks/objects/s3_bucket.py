"""Requests to one bucket: with credentials that are resolved anew when they have expired, and our own errors."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import boto3
import botocore.loaders
import botocore.session
from botocore.config import Config
from botocore.credentials import Credentials as Keys
from botocore.exceptions import ClientError

from gpu_train.errors import Refused, Unavailable
from gpu_train.sinks.objects.declined import Declined
from gpu_train.sinks.objects.retry_after import seconds_of
from gpu_train.sinks.objects.s3_failure import EXPIRED, Failure, failure_of, meaning_of, meaning_of_error
from gpu_train.sinks.objects.s3_signed import SignedPuts
from gpu_train_cas.errors import GpuTrainError, UsageError

Credentials = Callable[[], Mapping[str, str]]
"""Gives `access_key_id`, `secret_access_key` and, where there is one, `session_token`, as they are now; names as in the
environment (`AWS_ACCESS_KEY_ID`, ...) do as well. Nothing at all means the usual places: environment, files, roles."""

_MODELS = botocore.loaders.create_loader()
"""The descriptions of services, read once: that of S3 takes a tenth of a second."""

_WITHOUT_ASKING_BYTES = 1 << 20
"""Smaller bodies are sent along with their headers; for larger ones the server is asked first whether it wants them."""

_HEADERS = {
    "ContentMD5": "content-md5", "ChecksumSHA256": "x-amz-checksum-sha256", "IfNoneMatch": "if-none-match",
    "StorageClass": "x-amz-storage-class",
}  # fmt: skip


class _Made(NamedTuple):
    """A client, and what must not be seen of it."""

    client: Any
    secrets: tuple[str, ...]
    signed: SignedPuts | None = None


class Bucket:
    """See the module. Threads may share it."""

    def __init__(
        self, name: str, address: str, *, endpoint: str | None, region: str | None, credentials: Credentials | None,
        addressing: str | None, connections: int, timeout_s: float,
    ) -> None:  # fmt: skip
        if endpoint and "@" in urlsplit(endpoint).netloc:
            raise UsageError(f"{address}: its endpoint has credentials in it; use secret_ref")
        self._name = name
        self._address = address
        self._endpoint = endpoint or None
        self._region = region or None
        self._credentials = credentials
        self._connections = connections
        self._takes_short_way = True
        self._config = Config(
            connect_timeout=min(timeout_s, 15.0), read_timeout=timeout_s, max_pool_connections=connections,
            tcp_keepalive=True,
            # Trying again is the caller's business: it knows for how long.
            retries={"total_max_attempts": 1, "mode": "standard"},
            # Others than AWS often refuse these. Every body carries its MD5, which is signed, so that the body itself
            # need not be signed as well: that costs as much again.
            request_checksum_calculation="when_required", response_checksum_validation="when_required",
            s3={"payload_signing_enabled": False, "addressing_style": addressing or ("path" if endpoint else "auto")},
        )  # fmt: skip
        self._made: _Made | None = None
        self._lock = threading.Lock()

    def ask(self, operation: str, key: str = "", *, expected: Collection[str] = (), **params: Any) -> dict[str, Any]:
        """The answer to a request, such as `put_object`; all but the bucket is in `params`. `key` is for messages.

        Raises:
            Declined: for an error whose code is one of `expected`; that is the status where there is no other.
            Unavailable, Refused, Corrupted: for all others.
        """
        what = f"{self._address}: {key}" if key else self._address
        made = self._client(None)
        failure = self._once(made, what, operation, params)
        if isinstance(failure, Failure) and failure.code in EXPIRED:
            made = self._client(made)
            failure = self._once(made, what, operation, params)
        if not isinstance(failure, Failure):
            return failure
        if failure.code in expected:
            raise Declined(failure.code)
        raise meaning_of(failure._replace(message=_without(failure.message, made.secrets)), what)

    def put_small(self, key: str, **params: Any) -> bool:
        """Write an object the short way, with the parameters of `put_object`; False when that cannot be done, or was
        answered in an unexpected way: then `ask` does it, or knows why not.

        Raises:
            Declined: with "PreconditionFailed".
            Unavailable: when there is no answer in time, or an error of the server.
        """
        what = f"{self._address}: {key}"
        made = self._client(None)
        if made.signed is None or not self._takes_short_way:
            return False
        headers = {_HEADERS[name]: value for name, value in params.items() if name in _HEADERS}
        headers |= {f"x-amz-meta-{name}": value for name, value in params.get("Metadata", {}).items()}
        with self._explained(made, what):
            answer = made.signed.put(params["Key"], params["Body"], headers)
        if answer.status == 200:
            return True
        if answer.status == 412:
            raise Declined("PreconditionFailed")
        code, message = (_element(answer.body, name) for name in ("Code", "Message"))
        after = answer.headers.get("retry-after")
        ours = meaning_of(
            Failure(
                code or str(answer.status), answer.status, _without(message, made.secrets),
                None if after is None else seconds_of(after),
            ), what,
        )  # fmt: skip
        if not isinstance(ours, Refused):
            raise ours
        self._takes_short_way = answer.status == 501  # else there is something about it that botocore may know
        return False

    def read(self, key: str, expected: Collection[str], **params: Any) -> tuple[dict[str, Any], bytes]:
        """The answer to `get_object` with its body, whole.

        Raises:
            Declined, Unavailable, Refused, Corrupted: see `ask`.
        """
        answer = self.ask("get_object", key, expected=expected, **params)
        what = f"{self._address}: {key}"
        made = self._client(None)
        with answer["Body"] as body, self._explained(made, what):
            data: bytes = body.read()
        if len(data) != answer["ContentLength"]:
            raise Unavailable(f"{what}: only {len(data)} of {answer['ContentLength']} bytes arrived")
        return answer, data

    def close(self) -> None:
        """Give the connections back; safe to call twice."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.client.close()
            if made.signed is not None:
                made.signed.close()

    def _once(self, made: _Made, what: str, operation: str, params: dict[str, Any]) -> dict[str, Any] | Failure:
        try:
            with self._explained(made, what):
                answer: dict[str, Any] = getattr(made.client, operation)(Bucket=self._name, **params)
                return answer
        except ClientError as e:
            failure = failure_of(e)
        if failure.code.isdigit() and failure.status in (301, 400, 403):
            # Answers to HEAD have no body that would say more. Another request of the same rights does.
            try:
                with self._explained(made, what):
                    made.client.list_objects_v2(Bucket=self._name, MaxKeys=1)
            except ClientError as e:
                return failure_of(e)
        return failure

    def _client(self, stale: _Made | None) -> _Made:
        """A client; another one than `stale`."""
        with self._lock:
            if self._made is None or self._made is stale:
                with self._explained(_Made(None, ()), self._address):
                    self._made = self._make()
            return self._made

    def _make(self) -> _Made:
        _keep_requests_out_of_logs()
        told = self._credentials() if self._credentials else {}
        given = {name.lower().removeprefix("aws_"): value for name, value in told.items()}
        plain = botocore.session.Session()
        plain.register_component("data_loader", _MODELS)
        session = boto3.session.Session(region_name=self._region, botocore_session=plain)
        client = session.client(
            "s3", endpoint_url=self._endpoint, config=self._config,
            # Servers of one's own have no regions, but a signature has.
            region_name=self._region or session.region_name or "us-east-1",
            aws_access_key_id=given.get("access_key_id"), aws_secret_access_key=given.get("secret_access_key"),
            aws_session_token=given.get("session_token"),
        )  # fmt: skip
        client.meta.events.register_last("before-call.s3", _send_small_at_once)
        self._takes_short_way = True
        secrets = tuple(value for value in given.values() if value)
        return _Made(client, secrets, self._short_way(client, plain, given))

    def _short_way(self, client: Any, session: Any, given: Mapping[str, str]) -> SignedPuts | None:
        """For what is signed and addressed in the usual way."""
        found = (
            Keys(given["access_key_id"], given.get("secret_access_key"), given.get("session_token") or None)
            if given.get("access_key_id")
            else session.get_credentials()
        )
        usual = client.meta.config.signature_version == "s3v4" and not self._name.endswith("--x-s3")
        if found is None or not usual or self._name.startswith("arn:"):
            return None
        url = client.generate_presigned_url("put_object", Params={"Bucket": self._name, "Key": "-"})
        return SignedPuts(
            url.partition("?")[0].removesuffix("-"), client.meta.region_name, found.get_frozen_credentials,
            ca_bundle=session.get_config_variable("ca_bundle"), connections=self._connections,
            timeout_s=(self._config.connect_timeout, self._config.read_timeout),
        )  # fmt: skip

    @contextmanager
    def _explained(self, made: _Made, what: str) -> Iterator[None]:
        """Raise our own errors for all but answers."""
        try:
            yield
        except (ClientError, GpuTrainError):
            raise
        except Exception as e:
            ours = meaning_of_error(e, what)
            if ours is None:
                raise
            text = _without(str(ours), made.secrets)
            if text == str(ours):
                raise ours from e
            raise type(ours)(text) from None


def _without(text: str, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _element(body: bytes, name: str) -> str:
    """The text of an element of an error's XML; empty without one."""
    found = re.search(rf"<{name}>(.*?)</{name}>", body.decode("utf-8", "replace"), re.DOTALL)
    return found[1] if found else ""


def _send_small_at_once(params: dict[str, Any], **_: Any) -> None:
    """Undo for small bodies that the server is asked first: that costs a round trip each."""
    body = params.get("body")
    if isinstance(body, BytesIO) and body.getbuffer().nbytes <= _WITHOUT_ASKING_BYTES:
        params["headers"].pop("Expect", None)


def _keep_requests_out_of_logs() -> None:
    """Signed requests have session tokens in them, and servers may repeat them. Who wants to see them all the same sets
    the levels of these loggers.
    """
    for name in ("botocore.auth", "botocore.credentials", "botocore.endpoint", "botocore.parsers"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
