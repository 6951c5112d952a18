#!/usr/bin/env python3
"""A mount that does nothing: noop_mount.py MOUNTPOINT SIZE shows one file of zeros, `zeros`, until SIGTERM.

Plain mfusepy over libfuse 3, as fast as it goes by its own means: requests of 1 MiB, the kernel's read-ahead as far as
gpu-train's (where that is allowed), and one buffer that is returned over and over.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("FUSE_LIBRARY_PATH", "libfuse3.so.3")

import mfusepy

REQUEST_BYTES = 1 << 20
READ_AHEAD_KIB = 4096


class Noop(mfusepy.Operations):
    use_ns = True

    def __init__(self, point: Path, size: int) -> None:
        self.point, self.size = point, size
        self.zeros = bytes(REQUEST_BYTES)

    def init_with_config(self, connection: Any, config: Any) -> None:
        connection.max_read, connection.max_readahead = REQUEST_BYTES, READ_AHEAD_KIB << 10
        config.kernel_cache, config.attr_timeout, config.entry_timeout = 1, 86_400.0, 86_400.0
        threading.Thread(target=self.ready, daemon=True).start()

    def ready(self) -> None:
        device = self.point.stat().st_dev
        with suppress(OSError):
            path = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
            path.write_text(str(READ_AHEAD_KIB))
        print("ready", flush=True)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path == "/zeros":
            return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": self.size}
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", "zeros"]

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        length = max(0, min(size, self.size - offset))
        return self.zeros if length == REQUEST_BYTES else self.zeros[:length]


if __name__ == "__main__":
    with suppress(RuntimeError):  # which is how mfusepy ends after a signal
        point = Path(sys.argv[1])
        mfusepy.FUSE(
            Noop(point, int(sys.argv[2])), str(point), foreground=True, ro=True, max_read=REQUEST_BYTES,
            max_idle_threads=16,
        )  # fmt: skip
