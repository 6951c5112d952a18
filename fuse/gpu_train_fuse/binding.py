"""mfusepy as it is used here: chosen, made faster where bytes and names pass, and its mount's cache in reach."""

from __future__ import annotations

import ctypes
import errno
import os
from types import ModuleType
from typing import Any

from gpu_train_fuse.support import find_library

PAGE_BYTES = 4096
SLOW_OFFSETS = 63
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
READDIR_PLUS, FILL_DIR_PLUS = 1, 2  # fuse.h
KEPT_BYTES = 256 << 20
LARGEST_BYTES = 32 << 20  # glibc takes no more


def load() -> ModuleType:
    """mfusepy bound to the libfuse we prefer; it chooses by this variable, and the older one by itself."""
    os.environ.setdefault("FUSE_LIBRARY_PATH", find_library())
    import mfusepy  # noqa: PLC0415  raises OSError without libfuse, and only the serving process needs it

    module: ModuleType = mfusepy
    return module


def keep_memory() -> None:
    """Have malloc keep what is freed, and all in one arena, for the process that serves.

    Replies and blocks of 1 MiB come and go. By itself glibc gives such memory back to the system each time, and fresh
    pages cost as much as copying does.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        for option, value in ((M_MMAP_THRESHOLD, LARGEST_BYTES), (M_TRIM_THRESHOLD, KEPT_BYTES), (M_ARENA_MAX, 1)):
            libc.mallopt(option, value)


def bound(fuse: ModuleType) -> type[Any]:
    """mfusepy's FUSE, where it would do more, or less, than is good for speed.

    It reads into the reply's own memory, without making bytes first; and where the kernel asks for a listing with
    attributes (READDIRPLUS, libfuse 3) it gives them.
    """
    libc = ctypes.PyDLL(None)  # keeps the GIL, which comes back late where many threads want it
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)

    class Vector(ctypes.Structure):
        """A fuse_bufvec with its one fuse_buf, as libfuse lays them out; it frees them and the memory."""

        _fields_ = (
            ("count", ctypes.c_size_t), ("index", ctypes.c_size_t), ("offset", ctypes.c_size_t),
            ("buffer", fuse.fuse_buf),
        )  # fmt: skip

    def allocate(size: int) -> int:
        """Memory from which the kernel copies fast.

        AMD's Zen 3 takes six times as long to copy to addresses that are 1 to 63 above the source's, modulo 4096
        (measured: 1.5 against 9 GB/s), and the kernel copies to the starts of pages.
        """
        memory: int | None = libc.malloc(size)
        for _ in range(3):
            if memory is None or memory % PAGE_BYTES < PAGE_BYTES - SLOW_OFFSETS:
                break
            unlucky, memory = memory, libc.malloc(size)
            libc.free(unlucky)
        if memory is None:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return memory

    class Binding(fuse.FUSE):  # type: ignore[name-defined,misc]
        def read_buf(self, path: bytes, answer: Any, size: int, offset: int, info: Any) -> int:
            memory = allocate(size)
            vector = libc.malloc(ctypes.sizeof(Vector))
            try:
                buffer = memoryview((ctypes.c_ubyte * size).from_address(memory)).cast("B")
                length = self.operations.read(path.decode(self.encoding, self.errors), buffer, offset, info.contents)
            except BaseException:
                libc.free(vector)
                libc.free(memory)
                raise
            filled = Vector.from_address(vector)
            filled.count, filled.index, filled.offset = 1, 0, 0
            filled.buffer = fuse.fuse_buf(length, 0, memory, -1, 0)
            ctypes.c_void_p.from_address(ctypes.addressof(answer.contents)).value = vector
            return 0

        def readdir_fuse_3(self, path: bytes, buffer: Any, fill: Any, offset: int, info: Any, flags: int) -> int:
            text = path.decode(self.encoding, self.errors)
            plus = bool(flags & READDIR_PLUS)
            for name, found, after in self.operations.readdir_with_offset(text, offset, info.contents.fh, plus):
                status = fuse.c_stat()
                fuse.set_st_attrs(status, found, use_ns=True)
                whole = FILL_DIR_PLUS if "st_size" in found else 0
                if fill(buffer, name.encode(self.encoding, self.errors), status, after, whole) != 0:
                    break
            return 0

    return Binding


class KernelCache:
    """Drops single paths from what the kernel keeps of a mount; with libfuse 2 everything expires instead."""

    def __init__(self, fuse: ModuleType) -> None:
        self._library = fuse._libfuse
        self._session: int | None = None

    def enter(self) -> None:
        """Learn which mount it is; called by libfuse's thread within `init`, where alone it can be asked."""
        call = getattr(self._library, "fuse_invalidate_path", None)
        if call is not None:
            call.argtypes, call.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_int
            self._session = self._library.fuse_get_context().contents.fuse

    def drop(self, path: bytes) -> None:
        """Forget attributes and pages of a path; a path that the kernel does not know is fine."""
        if self._session is not None:
            self._library.fuse_invalidate_path(self._session, path)
