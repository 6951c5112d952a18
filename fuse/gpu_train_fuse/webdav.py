"""The view over WebDAV: what wsgidav asks of a file or folder, and the application that answers requests.

Of wsgidav its `RequestServer` is used, which speaks the protocol; the application around it is our own, so that
names are bytes (wsgidav's own takes UTF-8 alone), failures stand in the log of the view, and an answer that cannot be
finished is broken off rather than shortened.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_from_bytes

from wsgidav.dav_error import DAVError, get_http_status_string
from wsgidav.dav_provider import DAVCollection, DAVNonCollection, DAVProvider
from wsgidav.request_server import RequestServer

from gpu_train_cas.errors import GpuTrainError, NotFound
from gpu_train_fuse.gate import Environ, StartResponse
from gpu_train_fuse.linkless import Linkless
from gpu_train_fuse.node import Attributes, Directory, File, Handle
from gpu_train_fuse.page import Line, page
from gpu_train_fuse.report import Report

PART_BYTES = 1 << 20
EXECUTABLE = "{http://apache.org/dav/props/}executable"
"""Apache's property, by which davfs2 shows a file as a program."""

logging.getLogger("wsgidav").propagate = False
"""What it has to say of a request stands in the answer, and what is wrong with the store in our own log."""

SAFE = "/!*'(),$-_|."
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Shown:
    """What files and folders have in common."""

    path: str
    name: str
    shown: Attributes

    def get_last_modified(self) -> int:
        return self.shown.mtime_ns // 1_000_000_000

    def get_creation_date(self) -> int:
        return self.get_last_modified()

    def get_display_name(self) -> str:
        """The name as far as XML can hold it; clients go by the address."""
        return _printable(self.path.rpartition("/")[2])

    def line(self) -> Line:
        """What a page says of it."""
        size = None if isinstance(self, DAVCollection) else self.shown.size_bytes
        return Line(self.get_display_name(), self.get_href(), size, self.get_last_modified())

    def get_ref_url(self) -> str:
        return self.get_href()

    def get_href(self) -> str:
        """The address; a folder's ends with a slash."""
        slash = "/" if isinstance(self, DAVCollection) and self.path != "/" else ""
        return quote_from_bytes(_raw(self.path), SAFE) + slash


class _Folder(_Shown, DAVCollection):  # type: ignore[misc]
    """A folder."""

    def __init__(self, path: str, environ: Environ, folder: Directory) -> None:
        super().__init__(path, environ)
        self.shown = folder.attributes()

    def get_member_names(self) -> list[str]:
        """Only the list of members is asked for."""
        return [member.name for member in self.get_member_list()]

    def get_member_list(self) -> list[_Shown]:
        """What is in it. What vanishes meanwhile is left out, and so is what cannot be read: the others can."""
        base, found = self.path.rstrip("/") + "/", []
        for name, node in self.provider.view.members(_raw(self.path)):
            try:
                found.append(_resource(base + _text(name), self.environ, node))
            except FileNotFoundError:
                continue
            except GpuTrainError as e:
                self.provider.report(f"{base}{_text(name)}: {e}")
        return found

    def get_used_bytes(self) -> int | None:
        """Of the root: what all checkpoints would take as plain files."""
        return int(self.provider.view.tree.totals().size_bytes) if self.path == "/" else None

    def get_available_bytes(self) -> int | None:
        """Of the root: nothing, it is full."""
        return 0 if self.path == "/" else None


class _Bytes(_Shown, DAVNonCollection):  # type: ignore[misc]
    """A file."""

    def __init__(self, path: str, environ: Environ, file: File) -> None:
        super().__init__(path, environ)
        self._file = file
        self.shown = file.attributes()

    def get_content_length(self) -> int:
        return self.shown.size_bytes

    def get_etag(self) -> str | None:
        """The digest of what is stored; what may change has none."""
        identity = self._file.identity
        return None if identity is None else identity.hex()

    def support_etag(self) -> bool:
        return self._file.identity is not None

    def support_ranges(self) -> bool:
        return True

    def get_content(self) -> _Content:
        return _Content(self._file.open(), self.shown.size_bytes)

    def get_property_names(self, *, is_allprop: bool) -> list[str]:
        return [*super().get_property_names(is_allprop=is_allprop), EXECUTABLE]

    def get_property_value(self, name: str) -> Any:
        if name == EXECUTABLE:
            return "T" if self.shown.mode & 0o100 else "F"
        if name == "{DAV:}getetag" and self.support_etag():
            return f'"{self.get_etag()}"'  # as in the header, which wsgidav does not do
        return super().get_property_value(name)


class _Content:
    """An open file as wsgidav reads it."""

    def __init__(self, handle: Handle, size_bytes: int) -> None:
        self._handle = handle
        self._size_bytes = size_bytes
        self._at = 0

    def seek(self, offset: int) -> None:
        self._at = offset

    def read(self, length: int) -> bytes:
        buffer = bytearray(length)
        got = self._handle.readinto(memoryview(buffer), self._at)
        if not got and self._at < self._size_bytes:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        self._at += got
        return bytes(buffer) if got == length else bytes(memoryview(buffer)[:got])

    def close(self) -> None:
        self._handle.close()


class _Provider(DAVProvider):  # type: ignore[misc]
    """Addresses to files and folders."""

    def __init__(self, view: Linkless, report: Report) -> None:
        super().__init__()
        self.view = view
        self.report = report
        self.verbose = 0
        self.share_path = ""

    def is_readonly(self) -> bool:
        return True

    def get_resource_inst(self, path: str, environ: Environ) -> _Shown | None:
        """What is at a path, or None."""
        clean = "/" + "/".join(filter(None, path.split("/")))
        node = self.view.find(_raw(clean))
        try:
            return None if node is None else _resource(clean, environ, node)
        except FileNotFoundError:
            return None

    def custom_request_handler(self, environ: Environ, start_response: StartResponse, default_handler: Any) -> Any:
        """A folder that is got is a page for browsers; all else is wsgidav's."""
        method = environ["REQUEST_METHOD"]
        found = self.get_resource_inst(environ["PATH_INFO"], environ) if method in ("GET", "HEAD") else None
        if not isinstance(found, _Folder):
            return default_handler(environ, start_response)
        body = page(_printable(found.path), (member.line() for member in found.get_member_list()))
        start_response("200 OK", [("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [b"" if method == "HEAD" else body]


def _resource(path: str, environ: Environ, node: File | Directory) -> _Shown:
    return _Folder(path, environ, node) if isinstance(node, Directory) else _Bytes(path, environ, node)


class WebDav:
    """The application: WSGI, read-only. Requests are answered by many threads at once."""

    def __init__(self, view: Linkless, report: Report) -> None:
        self._provider = _Provider(view, report)
        self._report = report

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterator[bytes]:
        """Answer a request.

        Raises:
            ConnectionAbortedError: when it has begun to be answered and the rest cannot be read.
        """
        path = environ["PATH_INFO"] = _text(environ["PATH_INFO"].encode("latin-1"))
        environ.update({
            "wsgidav.provider": self._provider, "wsgidav.verbose": 0, "wsgidav.auth.user_name": "",
            "wsgidav.config": {"block_size": PART_BYTES, "add_header_MS_Author_Via": True},
        })  # fmt: skip
        server = RequestServer(self._provider)
        server.allow_propfind_infinite = False
        begun: list[tuple[str, list[tuple[str, str]]]] = []
        parts = server(environ, lambda status, headers, exc_info=None: begun.append((status, headers)))
        sent = False
        try:
            for part in parts:
                if not sent:  # not before: what cannot be read at all has another status
                    start_response(*begun[-1])
                    sent = True
                yield part
        except Exception as e:
            status, headers, body = self._failure(path, e)
            if sent:
                # Closing is all that tells the client that the rest is missing; this errno closes without a word.
                raise ConnectionAbortedError(errno.EPIPE, "the rest cannot be read") from e
            length = [] if status.startswith("304") else [("Content-Length", str(len(body)))]
            start_response(status, [*headers, *length])
            yield b"" if environ["REQUEST_METHOD"] == "HEAD" else body
        finally:
            parts.close()

    def _failure(self, path: str, error: Exception) -> tuple[str, list[tuple[str, str]], bytes]:
        """What is answered instead; what nobody foresaw stands in the log."""
        plain = [("Content-Type", "text/plain; charset=utf-8")]
        if isinstance(error, DAVError):
            status, more = get_http_status_string(error), list(error.add_headers or [])
            if error.err_condition:
                kind, body = error.get_response_page()
                return status, [("Content-Type", kind), *more], body
            if error.value == 304:
                return status, more, b""
            return status, [*plain, *more], f"{error.context_info or status}\n".encode(errors="backslashreplace")
        if isinstance(error, NotFound):
            return "404 Not Found", plain, f"{error}\n".encode(errors="backslashreplace")
        foreseen = isinstance(error, GpuTrainError | OSError)
        self._report(f"{path}: {error}" if foreseen else f"{path}: unexpected error: {error!r}")
        return "500 Internal Server Error", plain, f"Input/output error: {error}\n".encode(errors="backslashreplace")


def _raw(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _printable(path: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", path)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
