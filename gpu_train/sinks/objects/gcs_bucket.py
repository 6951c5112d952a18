"""Requests to one bucket of Google Cloud Storage: with credentials that are resolved anew when they are not accepted
any more, and our own errors. The library of Google is loaded with this module.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import google.auth
import requests
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import GoogleAPICallError, Unauthorized, from_http_response
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, RefreshError
from google.cloud import storage
from google.oauth2 import service_account
from google.oauth2.credentials import Credentials as Token

from gpu_train.errors import Refused, Unavailable
from gpu_train.sinks.objects.declined import Declined
from gpu_train.sinks.objects.gcs_failure import meaning_of
from gpu_train_cas.errors import GpuTrainError, UsageError

T = TypeVar("T")

Credentials = Callable[[], Mapping[str, str]]
"""Gives one of `service_account_json` (the text of a key file), `google_application_credentials` (the path of one) and
`token` (an access token), as it is now. Nothing at all means the usual places: environment, files, metadata server."""

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


class _Made(NamedTuple):
    """A client, and what must not be seen of it."""

    client: Any
    secrets: tuple[str, ...]


class Bucket:
    """See the module. Threads may share it."""

    def __init__(
        self, name: str, address: str, *, endpoint: str | None, project: str | None, credentials: Credentials | None,
        timeout_s: float,
    ) -> None:  # fmt: skip
        if endpoint and "@" in urlsplit(endpoint).netloc:
            raise UsageError(f"{address}: its endpoint has credentials in it; use secret_ref")
        self._name = name
        self._address = address
        self._endpoint = endpoint
        self._project = project
        self._credentials = credentials
        self._plain = requests.Session()
        self._made: _Made | None = None
        self._lock = threading.Lock()
        self.timeout_s = (min(timeout_s, 15.0), timeout_s)
        """For every request: to connect, and to wait for the next bytes."""

    def ask(self, do: Callable[[Any], T], key: str = "", *, expected: Collection[str] = ()) -> T:
        """What `do` returns, which is given the library's bucket. `key` is for messages.

        Raises:
            Declined: for an answer whose status is one of `expected`.
            Unavailable, Refused, Corrupted: for all others.
        """
        what = f"{self._address}: {key}" if key else self._address
        made = self._client(None)
        try:
            with self._explained(made, what, expected, passing=(Unauthorized, RefreshError)):
                return do(made.client.bucket(self._name))
        except (Unauthorized, RefreshError):
            made = self._client(made)
        with self._explained(made, what, expected):
            return do(made.client.bucket(self._name))

    def send(self, session: str, data: bytes, content_range: str, key: str) -> requests.Response:
        """The answer to a piece of a resumable upload: 200 and 201 when it is the last one, 308 when more is expected.
        What entitles to it is its URL.

        Raises:
            Declined: with 404 or 410, when the session is over.
            Unavailable, Refused, Corrupted: see `ask`.
        """
        what = f"{self._address}: {key}"
        headers = {"Content-Range": content_range, "Content-Type": "application/octet-stream"}
        with self._explained(_Made(None, (session,)), what, ("404", "410")):
            answer = self._plain.put(session, data=data, headers=headers, timeout=self.timeout_s, allow_redirects=False)
            if answer.status_code not in (200, 201, 308):
                raise from_http_response(answer)
            return answer

    def close(self) -> None:
        """Give the connections back; safe to call twice."""
        with self._lock:
            made, self._made = self._made, None
        if made is not None:
            made.client.close()
        self._plain.close()

    def _client(self, stale: _Made | None) -> _Made:
        """A client; another one than `stale`."""
        with self._lock:
            if self._made is None or self._made is stale:
                with self._explained(_Made(None, ()), self._address, ()):
                    self._made = self._make()
            return self._made

    def _make(self) -> _Made:
        given = {name.lower(): value for name, value in (self._credentials() if self._credentials else {}).items()}
        options = ClientOptions(api_endpoint=self._endpoint) if self._endpoint else None
        found, secrets = self._found(given)
        client = storage.Client(
            # Objects need no project, but the library does.
            project=self._project or getattr(found, "project_id", None) or "unknown", credentials=found,
            client_options=options,
        )  # fmt: skip
        # Newer versions of the library ask for the bucket's place in a thread of their own, for traces that we do not
        # make, and again and again when there is no answer.
        if hasattr(client, "_bucket_metadata_cache"):
            client._bucket_metadata_cache = None
        return _Made(client, secrets)

    def _found(self, given: Mapping[str, str]) -> tuple[Any, tuple[str, ...]]:
        """Credentials, and what is secret of them; None for what the library finds itself."""
        text = given.get("service_account_json")
        if path := given.get("google_application_credentials"):
            try:
                text = Path(path).read_text("utf-8")
            except OSError as e:
                raise Refused(f"{self._address}: the key file {path} cannot be read: {e.strerror}") from e
        if text:
            return _of_key(json.loads(text))
        if token := given.get("token"):
            return Token(token), (token,)
        if self._endpoint:  # a server of one's own, which may want none
            try:
                return google.auth.default(scopes=[_SCOPE])[0], ()
            except DefaultCredentialsError:
                return AnonymousCredentials(), ()
        return None, ()

    @contextmanager
    def _explained(
        self, made: _Made, what: str, expected: Collection[str], passing: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Raise our own errors."""
        try:
            yield
        except GpuTrainError:
            raise
        except Exception as e:
            if isinstance(e, passing):
                raise
            if isinstance(e, GoogleAPICallError) and str(int(e.code or 0)) in expected:
                raise Declined(str(int(e.code))) from None
            ours = meaning_of(e, what)
            if ours is None:
                raise
            text = str(ours)
            for secret in made.secrets:
                text = text.replace(secret, "***")
            if isinstance(ours, Unavailable):
                raise Unavailable(text, ours.retry_after_s) from None
            raise type(ours)(text) from None


def _of_key(told: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Credentials of a key file, and what is secret of them."""
    secrets = tuple(str(told[name]) for name in ("private_key", "refresh_token", "client_secret") if told.get(name))
    if told.get("type") == "service_account":
        return service_account.Credentials.from_service_account_info(told, scopes=[_SCOPE]), secrets
    if told.get("type") == "authorized_user":
        return Token.from_authorized_user_info(told, scopes=[_SCOPE]), secrets
    raise ValueError("the key is of no known type; set GOOGLE_APPLICATION_CREDENTIALS to its file instead")
