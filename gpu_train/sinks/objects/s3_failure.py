"""What the answers and errors of S3 mean: whether it may work in a while, and if not, what a person has to do."""

from __future__ import annotations

import http.client
from typing import NamedTuple

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from gpu_train.errors import Corrupted, Refused, SinkFailed, Unavailable
from gpu_train.sinks.objects.retry_after import seconds_of

EXPIRED = {
    "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidClientTokenId", "InvalidToken",
    "RequestExpired", "TokenRefreshRequired",
}  # fmt: skip
"""What is answered when credentials are too old, or have been replaced: new ones may be there by now."""

_IN_A_WHILE = {
    "BandwidthLimitExceeded", "ConditionalRequestConflict", "IncompleteBody", "InternalError", "InvalidPart",
    "NoSuchUpload", "OperationAborted", "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException",
    "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException",
    "TooManyRequests",
}  # fmt: skip

_BROKEN = {
    "BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch",
}  # fmt: skip
"""The server got other bytes than were sent."""

_REGION = "the bucket is in another region than the requests were signed for; set its region"
_HINTS = {
    "AccessDenied": "access denied; the credentials need the rights to list, read, write and delete there",
    "AuthorizationHeaderMalformed": _REGION,
    "EntityTooLarge": "the object is larger than is allowed there",
    "ExpiredToken": "the credentials have expired; get new ones",
    "IllegalLocationConstraintException": _REGION,
    "InvalidAccessKeyId": "the access key is not known there; check the credentials",
    "InvalidBucketName": "this is no name for a bucket; correct it",
    "InvalidObjectState": "the object is in an archive; restore it there first",
    "InvalidToken": "the session token is not valid there; get new credentials",
    "MethodNotAllowed": "the server does not allow this; see its settings",
    "NoSuchBucket": "there is no such bucket; make it, or correct its name",
    "NotImplemented": "the server cannot do this; use another kind of server, or a newer one",
    "PermanentRedirect": _REGION,
    "QuotaExceeded": "the quota is used up; delete something, or have it raised",
    "RequestTimeTooSkewed": "the clock of this machine is wrong by many minutes; set it",
    "SignatureDoesNotMatch": "the secret key does not fit the access key; check the credentials",
    "XMinioStorageFull": "the server's disks are full",
}
_BY_STATUS = {
    301: _REGION, 401: "the credentials were not accepted; check them", 403: _HINTS["AccessDenied"],
    404: _HINTS["NoSuchBucket"], 405: _HINTS["MethodNotAllowed"], 501: _HINTS["NotImplemented"],
    507: "the server's disks are full",
}  # fmt: skip

_NO_ANSWER = (
    boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError, boto.MetadataRetrievalError,
    ResponseParserError, HTTPError, OSError, http.client.HTTPException,
)  # fmt: skip


class Failure(NamedTuple):
    """An answer that is an error.

    Attributes:
        code: such as "SlowDown"; the number of the status where there is no other.
        status: the HTTP status; 0 when there was none.
        message: what the server said about it.
        retry_after_s: how long it asked to be left alone.
    """

    code: str
    status: int
    message: str
    retry_after_s: float | None


def failure_of(error: boto.ClientError) -> Failure:
    """What an answer says."""
    told = error.response.get("Error", {})
    meta = error.response.get("ResponseMetadata", {})
    after = meta.get("HTTPHeaders", {}).get("retry-after")
    return Failure(
        str(told.get("Code") or meta.get("HTTPStatusCode") or "unknown"), int(meta.get("HTTPStatusCode") or 0),
        str(told.get("Message") or ""), None if after is None else seconds_of(after),
    )  # fmt: skip


def meaning_of(failure: Failure, what: str) -> SinkFailed:
    """The error of ours for an answer; `what` says where it came from."""
    said = f"{failure.code} {failure.message}".strip()
    if failure.code in _BROKEN:
        return Corrupted(f"{what}: what arrived is not what was sent ({said})")
    if failure.code in _IN_A_WHILE or failure.status in (408, 409, 423, 425, 429):
        return Unavailable(f"{what}: {said}", failure.retry_after_s)
    hint = _HINTS.get("ExpiredToken" if "Expired" in failure.code else failure.code) or _BY_STATUS.get(failure.status)
    if failure.status >= 500 and hint is None:
        return Unavailable(f"{what}: the server failed ({said})", failure.retry_after_s)
    return Refused(f"{what}: {hint} ({said})" if hint else f"{what}: refused ({said})")


def meaning_of_error(error: Exception, what: str) -> SinkFailed | None:
    """The error of ours for what was raised before or without an answer; None when it is no failure of the other
    side.
    """
    if isinstance(error, boto.FlexibleChecksumError):
        return Corrupted(f"{what}: what arrived is not what was sent ({error})")
    if isinstance(error, boto.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return Refused(f"{what}: its certificate is not trusted here; set AWS_CA_BUNDLE to its authority ({error})")
    if isinstance(error, _NO_ANSWER):
        return Unavailable(f"{what}: no answer ({error})")
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return Refused(
            f"{what}: no credentials were found; name them in secret_ref, set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or run `aws configure`"
        )
    if isinstance(error, boto.CredentialRetrievalError):
        provider = error.kwargs.get("provider")  # what that printed is not passed on: it deals with secrets
        return Refused(f"{what}: {provider} gave no credentials; run it by hand to see why")
    if isinstance(error, boto.SSOError | boto.TokenRetrievalError):
        return Refused(f"{what}: the login has expired; run `aws sso login` ({error})")
    if isinstance(error, RecursionError):  # botocore asks one that redirects where to go to, without end
        return Refused(f"{what}: {_REGION}")
    if isinstance(error, boto.BotoCoreError | ValueError):
        return Refused(f"{what}: {error}")
    return None
