"""What a secret text says, as named fields: what people and programs write for each type of backend.

`s3` needs aws_access_key_id and aws_secret_access_key, beside them may be aws_session_token; `hf` needs token; `gcs`
needs one of token (an access token), service_account_json (the text of a key file, which a secret may be as a whole)
and google_application_credentials (the path of one). Others are passed on.

Read are a plain token; lines `key = value`, as in ~/.aws/credentials or an env file; JSON, also as `aws sts` and
programs for `credential_process` print it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from gpu_train.credentials.secret import Secret, Secrets
from gpu_train.errors import Refused

NEEDED: Mapping[str, tuple[str, ...]] = {
    "s3": ("aws_access_key_id", "aws_secret_access_key"),
    "gcs": ("token",),
    "hf": ("token",),
}

_KEY_FILE = "type"
"""What all of Google's kinds of key files have."""

_FOR_GOOGLE = ("service_account_json", "google_application_credentials")

_SAME = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "accesskeyid": "aws_access_key_id",
    "secretaccesskey": "aws_secret_access_key",
    "sessiontoken": "aws_session_token",
    "hf_token": "token",
    "hugging_face_hub_token": "token",
    "huggingface_token": "token",
    "access_token": "token",
}
_SINGLE = {*_SAME, *_FOR_GOOGLE, *(name for names in NEEDED.values() for name in names)}
"""Keys that make a single line `key=value`; another one is a token, in which `=` may occur."""


def fields_of(secret: Secret, kind: str, where: str) -> Secrets:
    """The fields of a secret for a type of backend; `where` it comes from is named in errors, the secret never.

    Raises:
        Refused: when it does not say what that type needs.
    """
    text = secret.reveal()
    fields = _from_json(text, where) if text.startswith("{") else _from_lines(text)
    if fields is None:
        if kind == "s3":
            raise Refused(f"{where}: S3 needs two values, lines aws_access_key_id=... and aws_secret_access_key=...")
        fields = {"token": text}
    if kind == "gcs" and text.startswith("{") and _KEY_FILE in fields:
        return Secrets({"service_account_json": text})
    fields = {_SAME.get(name.lower(), name.lower()): value for name, value in fields.items()}
    if kind == "gcs" and any(fields.get(name) for name in _FOR_GOOGLE):
        return Secrets(fields)
    for needed in NEEDED.get(kind, ()):
        if not fields.get(needed):
            raise Refused(f"{where}: there is no {needed} in it; there is {', '.join(fields) or 'nothing'}")
    return Secrets(fields)


def _from_json(text: str, where: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Refused(f"{where}: it begins like JSON, and is none") from None
    if isinstance(inner := found.get("Credentials"), dict):  # what `aws sts` prints
        found = inner
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items() if value is not None
    }


def _from_lines(text: str) -> dict[str, str] | None:
    """The fields of lines `key=value`; None when it is something else."""
    fields = {}
    for line in text.splitlines():
        line = line.strip().removeprefix("export ").strip()
        if not line or line.startswith(("#", ";", "[")):
            continue
        key, found, value = line.partition("=")
        key = key.strip()
        if not found or not key.isidentifier():
            return None
        fields[key] = _unquoted(value.strip())
    if len(fields) == 1 and next(iter(fields)).lower() not in _SINGLE:
        return None
    return fields or None


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
