"""cheroot's server, set up for large answers to a few clients, and stopped at once whoever still reads."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from cheroot.server import HTTPConnection
from cheroot.wsgi import Server

from gpu_train_fuse.gate import Application

log = logging.getLogger("gpu_train_fuse")

THREADS = 16
CONNECTIONS = 64
"""Kept open while nothing is asked; those of a client that reads several files at once."""

PATIENCE_S = 60
"""For so long a client may take nothing of an answer before its connection is closed."""

HEADER_LIMIT_BYTES = 1 << 16


class _Connection(HTTPConnection):
    """A connection that its server knows for as long as it is open."""

    def __init__(self, server: WebServer, sock: socket.socket, *more: Any) -> None:
        super().__init__(server, sock, *more)
        server.sockets.add(sock)


class WebServer(Server):
    """A server for one application; `prepare` listens, `serve` answers until `stop`."""

    ConnectionClass = _Connection
    keep_alive_conn_limit = CONNECTIONS
    max_request_header_size = HEADER_LIMIT_BYTES

    def __init__(self, host: str, port: int, application: Application) -> None:
        super().__init__(
            (host, port), application, numthreads=THREADS, server_name="gpu-train", request_queue_size=CONNECTIONS,
            timeout=PATIENCE_S, shutdown_timeout=1,
        )  # fmt: skip
        self.sockets: WeakSet[socket.socket] = WeakSet()

    def error_log(self, msg: str = "", level: int = logging.INFO, traceback: bool = False) -> None:
        """Log what cheroot has to say: of clients that went away, mostly."""
        log.log(level, "%s", msg, exc_info=traceback)

    def stop(self) -> None:
        """Stop, without waiting for clients that take their time."""
        for sock in list(self.sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        super().stop()
