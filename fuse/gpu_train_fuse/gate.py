"""What a request has to be before it is answered over HTTP: for a known name, by who knows the password, a read.

A page in a browser can send requests to this machine's own addresses, by a name that its author makes point there
(DNS rebinding), and would then read the answers as its own. So only names that nobody else can point anywhere are
answered to, and no answer may be used in another site's page, or run as one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import socket
from collections.abc import Callable, Iterable
from typing import Any

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

METHODS = ("OPTIONS", "HEAD", "GET", "PROPFIND")
BODY_LIMIT_BYTES = 1 << 16
"""A PROPFIND names the properties that it asks for; nothing else that is answered has a body."""

PROTECTION = [
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'none'; sandbox"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-cache"),
]
ASK = ("WWW-Authenticate", 'Basic realm="gpu-train", charset="UTF-8"')


class Gate:
    """WSGI in front of an application."""

    def __init__(self, application: Application, host: str, password: str | None = None) -> None:
        """Answer to `host` and this machine's names. A password is asked for if there is one, a user's name is not."""
        self._application = application
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}
        self._password = None if password is None else password.encode()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request that may not pass, or have it answered."""

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [*headers, *PROTECTION], exc_info)

        refusal = self._refusal(environ)
        if refusal is None:
            return self._application(environ, start)
        status, text, headers = refusal
        body = f"{text}\n".encode()
        sent = b"" if environ["REQUEST_METHOD"] == "HEAD" else body
        start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *headers])
        return [sent]

    def _refusal(self, environ: Environ) -> tuple[str, str, list[tuple[str, str]]] | None:
        name = host_name(environ.get("HTTP_HOST", ""))
        if not (is_address(name) or name in self._names or name.endswith(".localhost")):
            return "403 Forbidden", f"this is not served under the name {name!r}; use the machine's address", []
        if not self._knows_password(environ.get("HTTP_AUTHORIZATION", "")):
            return (
                "401 Unauthorized",
                "the password is needed (with any user name), or the same as a bearer token",
                [ASK],
            )
        method = environ["REQUEST_METHOD"]
        if method not in METHODS:
            allow = ("Allow", ", ".join(METHODS))
            return "405 Method Not Allowed", f"{method}: this is read-only, {allow[1]} are answered", [allow]
        if method == "PROPFIND" and environ.get("HTTP_TRANSFER_ENCODING"):
            return "411 Length Required", "a PROPFIND needs a Content-Length", []
        if method == "PROPFIND" and _length(environ) > BODY_LIMIT_BYTES:
            return "413 Content Too Large", f"a PROPFIND has at most {BODY_LIMIT_BYTES} bytes", []
        return None

    def _knows_password(self, header: str) -> bool:
        if self._password is None:
            return True
        scheme, _, given = header.partition(" ")
        if scheme.lower() == "bearer":
            return hmac.compare_digest(given.strip().encode("latin-1"), self._password)
        if scheme.lower() != "basic":
            return False
        try:
            _, _, password = base64.b64decode(given, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(password, self._password)


def host_name(header: str) -> str:
    """The name or address in a Host header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].rstrip(".").lower()


def is_address(name: str) -> bool:
    """Whether it is an IP address, which no name server can change."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _length(environ: Environ) -> int:
    text = environ.get("CONTENT_LENGTH") or "0"
    return int(text) if text.isascii() and text.isdecimal() else 0
