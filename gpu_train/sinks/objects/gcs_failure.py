"""What the answers and errors of Google Cloud Storage mean: whether it may work in a while, and if not, what to do."""

from __future__ import annotations

import http.client
import re

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from urllib3.exceptions import HTTPError

from gpu_train.errors import Corrupted, Refused, SinkFailed, Unavailable
from gpu_train.sinks.objects.retry_after import seconds_of

_LOGIN = (
    "name credentials in secret_ref, set GOOGLE_APPLICATION_CREDENTIALS to a key file, or run "
    "`gcloud auth application-default login`"
)
_HINTS = {
    401: f"the credentials were not accepted; {_LOGIN}",
    403: "access denied; the credentials need a role such as Storage Object Admin for the bucket",
    404: "there is no such bucket; make it, or correct its name",
}
_SESSION = re.compile(r"(upload_id=|url: )[^\s&,)'\"]+")
"""Whoever knows the id of an upload can write to it."""


def meaning_of(error: Exception, what: str) -> SinkFailed | None:
    """The error of ours for what was raised; None when it is no failure of the other side."""
    said = _SESSION.sub(r"\1...", str(error))
    if isinstance(error, api.GoogleAPICallError):
        return _meaning_of_answer(error, said, what)
    if type(error).__name__ == "DataCorruption":  # its module differs between versions of the library
        return Corrupted(f"{what}: what arrived is not what was sent ({said})")
    if isinstance(error, auth.TransportError) or (isinstance(error, auth.RefreshError) and error.retryable):
        return Unavailable(f"{what}: the credentials could not be renewed now ({said})")
    if isinstance(error, auth.DefaultCredentialsError):
        return Refused(f"{what}: no credentials were found; {_LOGIN}")
    if isinstance(error, auth.GoogleAuthError):
        return Refused(f"{what}: the credentials do not work; {_LOGIN} ({said})")
    if isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in said:
        return Refused(f"{what}: its certificate is not trusted here; set REQUESTS_CA_BUNDLE to its authority ({said})")
    if isinstance(error, requests.RequestException | HTTPError | OSError | http.client.HTTPException):
        return Unavailable(f"{what}: no answer ({said})")
    if isinstance(error, ValueError):
        return Refused(f"{what}: {said}")
    return None


def _meaning_of_answer(error: api.GoogleAPICallError, said: str, what: str) -> SinkFailed:
    status = int(error.code or 0)
    asked = getattr(error.response, "headers", {}).get("Retry-After")
    if status == 400 and re.search(r"(crc32c|md5|hash|checksum).*match", said, re.IGNORECASE | re.DOTALL):
        return Corrupted(f"{what}: what arrived is not what was sent ({said})")
    if status in (408, 409, 410, 425, 429) or status >= 500 or "ateLimitExceeded" in said:
        if status == 501:
            return Refused(f"{what}: the server cannot do this ({said})")
        return Unavailable(f"{what}: {said}", None if asked is None else seconds_of(asked))
    return Refused(f"{what}: {_HINTS.get(status, 'refused')} ({said})")
