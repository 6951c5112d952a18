"""Serving a view over WebDAV, for machines where nothing can be mounted."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from gpu_train import Workspace
from gpu_train_cas.errors import Busy, UsageError
from gpu_train_fuse.gate import Gate, is_address
from gpu_train_fuse.lifecycle import ALL, tree_of
from gpu_train_fuse.linkless import Linkless
from gpu_train_fuse.report import Report
from gpu_train_fuse.support import MountUnavailable
from gpu_train_fuse.tree import FileTree
from gpu_train_fuse.watcher import Watcher

if TYPE_CHECKING:
    from gpu_train_fuse.webserver import WebServer

LOOPBACK = "127.0.0.1"
PORT = 8765
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve_webdav(
    workspace: Workspace, target: str, *, host: str = LOOPBACK, port: int = PORT, password: str | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:  # fmt: skip
    """Serve a job, or "all", over WebDAV until SIGINT, SIGTERM or SIGHUP; only from the main thread.

    Args:
        workspace: the home to show.
        target: a job's id, its name or the start of its id, or "all".
        host: the address to listen at.
        port: the port, 0 for any that is free.
        password: what clients have to know, with any user name or as a bearer token.
        on_ready: called with the address once it can be asked.

    Raises:
        NotFound, UsageError: for a target that is not there or is ambiguous.
        UsageError: for an address that others can reach, without a password.
        MountUnavailable: when wsgidav or cheroot is not installed.
        Busy: when the port is taken or the address is not this machine's.
    """
    name = target if target == ALL else workspace.jobs.find(target).id
    if password is None and not is_loopback(host):
        raise UsageError(
            f"{host} can be reached from other machines, so a password is needed: give --password-file, or set "
            f"GPU_TRAIN_WEBDAV_PASSWORD; or serve {LOOPBACK} and come through `ssh -L`"
        )
    with tree_of(workspace, name) as tree:
        _serve(tree, host, port, password, on_ready)


def _serve(tree: FileTree, host: str, port: int, password: str | None, on_ready: Callable[[str], None]) -> None:
    report = Report()
    server = _server(Linkless(tree), report, host, port, password)
    watcher = Watcher(tree, lambda path: None, report)
    watcher.start()
    try:
        with _ended_by_signals(), suppress(_Ended):
            _listen(server, host, port)
            on_ready(url_of(host, server.bind_addr[1]))
            server.serve()
    finally:
        server.stop()
        watcher.stop()


def _listen(server: WebServer, host: str, port: int) -> None:
    try:
        server.prepare()
    except OSError as e:
        raise Busy(f"{host}:{port} cannot be listened at ({e}); give another --port, 0 for any, or --host") from e


def _server(view: Linkless, report: Report, host: str, port: int, password: str | None) -> WebServer:
    try:
        from gpu_train_fuse.webdav import WebDav  # noqa: PLC0415  only who serves needs wsgidav and cheroot
        from gpu_train_fuse.webserver import WebServer  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise MountUnavailable(
            f"{str(e.name).partition('.')[0]} is not installed, so nothing can be served over WebDAV; "
            "install it: `pip install 'gpu-train[webdav]'`"
        ) from e
    return WebServer(host, port, Gate(WebDav(view, report), host, password))


class _Ended(KeyboardInterrupt):
    """A signal came."""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise _Ended  # the server's loop lets it through

    before: dict[signal.Signals, Any] = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's alone."""
    if is_address(host):
        return ipaddress.ip_address(host).is_loopback
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)


def url_of(host: str, port: int) -> str:
    """The address to give to a client on this machine, or on another where the host is none."""
    if is_address(host):
        address = ipaddress.ip_address(host)
        name = os.uname().nodename if address.is_unspecified else f"[{host}]" if address.version == 6 else host
    else:
        name = host
    return f"http://{name}:{port}/"
