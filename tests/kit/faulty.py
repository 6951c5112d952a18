"""A proxy before a server of objects that does to requests what networks and servers do: real TCP, on loopback.

    with faulty(server) as proxy:
        store = S3Objects(..., endpoint=proxy.endpoint)
        proxy.fail(answer(503, "SlowDown", after_s=2), reset_response(100, on="GET"))

Each fault is for the next request that fits it, and for so many; others pass. What passed is counted.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import NamedTuple

from objectservers import Server

ALWAYS = 10**9
_AT_ONCE = 64 << 10


class Seen(NamedTuple):
    """A request that arrived, and how much of its body."""

    method: str
    path: str
    body_bytes: int

    @property
    def line(self) -> str:
        """What faults and counts are chosen by."""
        return f"{self.method} {self.path}"


@dataclass
class Fault:
    """What is done to a request; made by the functions below.

    Attributes:
        on: a regular expression that its "METHOD /path?query" must match somewhere.
        times: for how many requests.
        status, headers, body: an answer that is given in the server's place.
        take: how many bytes of the request's body are read before the connection is reset; None for all.
        give: how many bytes of the answer's body are sent before something happens; None for all.
        end: what then happens: "close", "reset" or "stall".
        flip_request, flip_response: the byte in which a bit is flipped.
        change: what becomes of the answer's headers.
    """

    on: str = ""
    times: int = 1
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    take: int | None = None
    give: int | None = None
    end: str = ""
    flip_request: int | None = None
    flip_response: int | None = None
    change: Callable[[dict[str, str]], dict[str, str]] | None = None


def answer(
    status: int, code: str = "Failed", *, after_s: float | str | None = None, on: str = "", times: int = 1
) -> Fault:
    """The server answers with an error, as S3 and GCS say it, and does nothing."""
    body = json.dumps({
        "error": {"code": status, "message": code, "errors": [{"reason": code, "message": code}]}
    }).encode()  # fmt: skip
    headers = {"Content-Type": "application/json"} | ({} if after_s is None else {"Retry-After": str(after_s)})
    return Fault(on, times, status, headers, body)


def answer_xml(
    status: int, code: str, *, message: str = "", after_s: float | str | None = None, on: str = "", times: int = 1
) -> Fault:
    """The same in XML, as S3 says it."""
    fault = answer(status, code, after_s=after_s, on=on, times=times)
    fault.headers["Content-Type"] = "application/xml"
    fault.body = f"<Error><Code>{code}</Code><Message>{message or code}</Message></Error>".encode()
    return fault


def reset_request(after: int = 0, *, on: str = "", times: int = 1) -> Fault:
    """The connection breaks while a request is sent; the server never hears of it."""
    return Fault(on, times, take=after, end="reset")


def stall_request(after: int = 0, *, on: str = "", times: int = 1) -> Fault:
    """Nothing more is read of a request, and nothing said about it."""
    return Fault(on, times, take=after, end="stall")


def lose_answer(*, on: str = "", times: int = 1) -> Fault:
    """The server does what it is asked to, and nobody hears of it."""
    return Fault(on, times, give=-1, end="reset")


def reset_response(after: int = 0, *, on: str = "", times: int = 1) -> Fault:
    """The connection breaks within the body of an answer."""
    return Fault(on, times, give=after, end="reset")


def truncate_response(after: int = 0, *, on: str = "", times: int = 1) -> Fault:
    """An answer ends early, as if that were all: its Content-Length says otherwise."""
    return Fault(on, times, give=after, end="close")


def stall_response(after: int = 0, *, on: str = "", times: int = 1) -> Fault:
    """An answer goes on no more, and the connection stays; -1 for no answer at all, though the server did it."""
    return Fault(on, times, give=after, end="stall")


def flip_request(at: int = 0, *, on: str = "", times: int = 1) -> Fault:
    """A bit of what is sent flips."""
    return Fault(on, times, flip_request=at)


def flip_response(at: int = 0, *, on: str = "", times: int = 1) -> Fault:
    """A bit of what is received flips."""
    return Fault(on, times, flip_response=at)


def change_headers(change: Callable[[dict[str, str]], dict[str, str]], *, on: str = "", times: int = 1) -> Fault:
    """The headers of an answer say something else."""
    return Fault(on, times, change=change)


class Proxy:
    """What stands before a server."""

    def __init__(self, upstream: Server) -> None:
        self.upstream = upstream
        self.sessions: dict[str, str] = {}
        """How far resumable uploads to GCS are, as an answer says it, by their path. fake-gcs-server takes the question
        for the end of the upload, and makes an object of what there is; so it is answered here."""
        self.seen: list[Seen] = []
        self.stalled = threading.Event()  # something waits now
        self._over = threading.Event()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._tcp = _Tcp(("127.0.0.1", 0), _Handler)
        self._tcp.proxy = self
        self._thread = threading.Thread(target=self._tcp.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        """Where it listens on loopback."""
        return int(self._tcp.server_address[1])

    @property
    def endpoint(self) -> str:
        """What a store is given in place of the server's."""
        return f"http://127.0.0.1:{self.port}"

    def fail(self, *faults: Fault) -> None:
        """Have the next requests fail."""
        with self._lock:
            self._faults += faults

    def heal(self) -> None:
        """Let everything pass from now on."""
        with self._lock:
            self._faults.clear()

    def sent_bytes(self, on: str = "") -> int:
        """How many bytes of bodies came with requests that match."""
        return sum(one.body_bytes for one in self.seen if re.search(on, one.line))

    def count(self, on: str = "") -> int:
        """How many requests came that match."""
        return sum(bool(re.search(on, one.line)) for one in self.seen)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._tcp.shutdown()
        self._tcp.server_close()
        self._thread.join()

    def wait(self) -> None:
        """Stall until the proxy ends."""
        self.stalled.set()
        self._over.wait()

    def next_fault(self, line: str) -> Fault:
        with self._lock:
            for fault in self._faults:
                if re.search(fault.on, line):
                    fault.times -= 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                    return fault
        return Fault()


@contextmanager
def faulty(upstream: Server) -> Iterator[Proxy]:
    """A proxy while it runs."""
    proxy = Proxy(upstream)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()


class _Tcp(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64
    proxy: Proxy

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away are what this is about."""


class _Gone(Exception):
    """The connection is not used any more."""


class _Handler(StreamRequestHandler):
    """One connection of a client, and one to the server."""

    server: _Tcp

    def handle(self) -> None:
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.proxy.upstream.port)
        try:
            while self._one(upstream):
                pass
        except (_Gone, OSError, http.client.HTTPException):
            pass
        finally:
            upstream.close()

    def _one(self, upstream: http.client.HTTPConnection) -> bool:
        """Pass a request on; whether another one may follow."""
        proxy = self.server.proxy
        first = self.rfile.readline().decode("latin-1").rstrip("\r\n")
        if not first:
            return False
        method, path, _ = first.split(" ")
        headers = http.client.parse_headers(self.rfile)
        length = int(headers.get("Content-Length") or 0)
        fault = proxy.next_fault(f"{method} {path}")
        waits = headers.get("Expect", "").lower() == "100-continue"
        if fault.status is not None and waits:  # as servers do: the body is not wanted
            proxy.seen.append(Seen(method, path, 0))
            self._say(method, fault.status, {**fault.headers, "Connection": "close"}, fault.body)
            return False
        if waits:
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        wanted = length if fault.take is None else min(fault.take, length)
        body = self.rfile.read(wanted)
        proxy.seen.append(Seen(method, path, len(body)))
        if fault.take is not None:
            self._end(fault.end)
        if fault.status is not None:
            self._say(method, fault.status, fault.headers, fault.body)
            return True
        if fault.flip_request is not None:
            body = _flipped(body, fault.flip_request)
        asked = headers.get("Content-Range", "")
        if asked.startswith("bytes */"):
            at = self.server.proxy.sessions.get(path, "")
            self._say(method, 308, {"Range": at} if at else {}, b"")
            return True
        upstream.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if name.lower() != "expect":
                upstream.putheader(name, value)
        upstream.endheaders(body if length or method in ("POST", "PUT") else None)
        got = upstream.getresponse()
        data = got.read()
        told = dict(got.getheaders())
        if asked and got.status == 308:
            proxy.sessions[path] = "bytes=0-" + asked.removeprefix("bytes ").split("/")[0].split("-")[1]
        self._pass_back(method, got.status, told, data, fault)
        return True

    def _pass_back(self, method: str, status: int, told: dict[str, str], data: bytes, fault: Fault) -> None:
        proxy = self.server.proxy
        if "Location" in told:
            told["Location"] = told["Location"].replace(f":{proxy.upstream.port}/", f":{proxy.port}/")
        if fault.change is not None:
            told = fault.change(told)
        if fault.flip_response is not None:
            data = _flipped(data, fault.flip_response)
        if fault.give is None:
            self._say(method, status, told, data)
            return
        if fault.give >= 0:
            self._say(method, status, told, data, fault.give)
        self._end(fault.end)

    def _say(self, method: str, status: int, headers: dict[str, str], body: bytes, give: int | None = None) -> None:
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, 'Resume Incomplete')}"]
        kept = {name: value for name, value in headers.items() if name.lower() not in _OF_THE_CONNECTION}
        if method == "HEAD":
            kept["Content-Length"] = headers.get("Content-Length", "0")
            body = b""
        elif status not in (204, 304):
            kept["Content-Length"] = str(len(body))
        head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in kept.items()), "", ""])
        self.wfile.write(head.encode("latin-1") + body[: len(body) if give is None else give])
        if kept.get("Connection") == "close":
            raise _Gone

    def _end(self, how: str) -> None:
        if how == "stall":
            self.server.proxy.wait()
        if how == "reset":  # no lingering: the other side is told at once, whatever it has not read yet
            with suppress(OSError):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
        raise _Gone


_OF_THE_CONNECTION = {"content-length", "transfer-encoding", "keep-alive"}


def _flipped(data: bytes, at: int) -> bytes:
    if not data:
        return data
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
