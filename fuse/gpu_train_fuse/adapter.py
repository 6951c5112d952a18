"""The adapter between `FileTree` and libfuse (by way of `binding`), and the loop that serves a mount.

The kernel is told to keep names, attributes and pages for long, since stored files never change; what does
change (`FileTree.changes`) is taken back from its cache by a `Watcher`. Plain live
files (logs, job.json) are read past the page cache. Requests are answered on libfuse's threads, many at once.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, NoReturn, ParamSpec, TypeVar

from gpu_train_cas import EntryKind
from gpu_train_cas.errors import GpuTrainError, NotFound
from gpu_train_fuse import binding, table
from gpu_train_fuse.node import XATTR_PREFIX, Attributes, Directory, File, Handle, Link, Node
from gpu_train_fuse.report import Report
from gpu_train_fuse.support import MountUnavailable
from gpu_train_fuse.tree import FileTree, inode
from gpu_train_fuse.watcher import Watcher

log = logging.getLogger("gpu_train_fuse")

REQUEST_BYTES = 1 << 20
PAGE_BYTES = 4096
THREADS = 16
MAX_THREADS = 64
READ_AHEAD_KIB = 4096
"""The kernel's read-ahead for a mount; its default of 128 KiB also bounds the size of a request."""

DOTS = 2
"""A listing begins with `.` and `..`."""

KEEP_S = 86_400.0
MAX_IDENTITIES = 65_536
P = ParamSpec("P")
R = TypeVar("R")
FORMAT = {EntryKind.FILE: stat.S_IFREG, EntryKind.DIRECTORY: stat.S_IFDIR, EntryKind.SYMLINK: stat.S_IFLNK}


def _answered(
    operation: Callable[Concatenate[Adapter, str, P], R],
) -> Callable[Concatenate[Adapter, str, P], R]:
    """Turn what the tree raises into errnos; an error that nobody foresaw is EIO and stands in the log."""

    def answer(self: Adapter, path: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return operation(self, path, *args, **kwargs)
        except NotFound:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        except GpuTrainError as e:
            self._report(f"{path}: {e}")
        except OSError:
            raise
        except Exception:
            log.exception("%s: unexpected error in %s", path, operation.__name__)
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    answer.__name__, answer.__doc__ = operation.__name__, operation.__doc__
    return answer


class _Open(NamedTuple):
    """An open file, and what stat(2) said when it was opened."""

    handle: Handle
    attributes: Attributes


class Adapter:
    """The operations that mfusepy calls, by libfuse's names; paths come as surrogate-escaped text."""

    use_ns = True  # times are nanoseconds

    def __init__(self, tree: FileTree, facts: Mapping[str, str], invalidate: Callable[[bytes], None]) -> None:
        """Serve `tree`. `facts` become xattrs of the root; `invalidate` drops a path from the kernel's cache."""
        self._tree = tree
        self._facts = {XATTR_PREFIX + key: os.fsencode(value) for key, value in facts.items()}
        self._owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}
        self._handles: dict[int, _Open] = {}
        self._listed: dict[int, list[tuple[bytes, EntryKind]]] = {}
        self._numbers = itertools.count(1)
        self._identities: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._report = Report()
        self._watcher = Watcher(tree, invalidate, self._report)
        self.entered: Callable[[], None] = lambda: None
        self.keep_s = KEEP_S

    # ---- life ----------------------------------------------------------------------------------

    def init_with_config(self, connection: Any, config: Any | None) -> None:
        """Called once by libfuse, before the first request; `config` is None with libfuse 2."""
        if config is not None:
            connection.max_read = REQUEST_BYTES
            connection.max_readahead = READ_AHEAD_KIB << 10
            config.use_ino = 1
            config.entry_timeout = config.attr_timeout = self.keep_s
            config.negative_timeout = 0  # a name that is not there may appear at any moment
            config.kernel_cache = 0  # decided for each open file
        self._watcher.start()
        self.entered()

    def destroy(self, path: str) -> None:
        """Called once by libfuse, after the last request."""
        self._watcher.stop()

    # ---- looking -------------------------------------------------------------------------------

    def _stat(self, path: str, found: Attributes) -> dict[str, Any]:
        # readdir(3) reads so many bytes at a time, and the first of them come with all attributes.
        plain = found.kind is not EntryKind.DIRECTORY
        return {
            "st_mode": FORMAT[found.kind] | found.mode, "st_size": found.size_bytes, "st_ino": inode(_raw(path)),
            "st_nlink": 1, "st_blocks": -(-found.size_bytes // 512) if plain else 0,
            "st_blksize": REQUEST_BYTES if plain else PAGE_BYTES,
            "st_mtime": found.mtime_ns, "st_ctime": found.mtime_ns, "st_atime": found.mtime_ns, **self._owner,
        }  # fmt: skip

    @_answered
    def getattr(self, path: str, info: Any = None) -> dict[str, Any]:
        """stat(2); before each read of an open file the kernel asks too, and then says of which one."""
        try:
            found = self._tree.attributes(_raw(path))
        except NotFound:
            opened = None if info is None else self._handles.get(info.fh)
            if opened is None:
                raise
            found = opened.attributes  # it was removed, and is read on
        return self._stat(path, found)

    @_answered
    def opendir(self, path: str) -> int:
        """Begin to list a directory."""
        if not isinstance(self._tree.lookup(_raw(path)), Directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        handle = next(self._numbers)
        self._listed[handle] = []
        return handle

    @_answered
    def readdir_with_offset(
        self, path: str, offset: int, handle: int, plus: bool = False
    ) -> Iterator[tuple[str, dict[str, Any], int]]:
        """Names from the one at `offset` on, with what follows each; with `plus` also with all that stat(2) tells.

        Those who list with `ls -l` would ask for that name by name, at the price of a request each. What can be listed
        but not looked at has its kind and number alone.
        """
        if offset == 0:
            self._listed[handle] = self._names(path)
        return self._entries(path, self._listed[handle], offset, plus)

    def _names(self, path: str) -> list[tuple[bytes, EntryKind]]:
        node = self._tree.lookup(_raw(path))
        if not isinstance(node, Directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return [(b".", EntryKind.DIRECTORY), (b"..", EntryKind.DIRECTORY), *node.names()]

    def _entries(
        self, path: str, names: list[tuple[bytes, EntryKind]], offset: int, plus: bool
    ) -> Iterator[tuple[str, dict[str, Any], int]]:
        base = _raw(path).rstrip(b"/") + b"/"
        for at in range(offset, len(names)):
            name, kind = names[at]
            entry: dict[str, Any] = {"st_mode": FORMAT[kind]}
            if at >= DOTS:
                entry["st_ino"] = inode(base + name)
                if plus:
                    with suppress(GpuTrainError, OSError):
                        entry = self._stat(path, self._tree.attributes(base + name)) | {"st_ino": entry["st_ino"]}
            yield _text(name), entry, at + 1

    @_answered
    def releasedir(self, path: str, handle: int) -> int:
        """The end of listing a directory."""
        self._listed.pop(handle, None)
        return 0

    @_answered
    def readlink(self, path: str) -> str:
        """The target of a link."""
        node = self._tree.lookup(_raw(path))
        if not isinstance(node, Link):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return _text(node.target())

    def _xattrs(self, path: str, node: Node) -> Mapping[str, bytes]:
        return {**node.xattrs(), **self._facts} if path == "/" else node.xattrs()

    @_answered
    def getxattr(self, path: str, name: str) -> bytes:
        """One extended attribute.

        `ls -l` asks each file for its access list and its security context. Told that there is none it asks the next
        file; told that the file system has no such thing it asks no more.
        """
        if name.startswith(XATTR_PREFIX):
            node = self._tree.lookup(_raw(path))
            value = self._xattrs(path, node).get(name)
            if value is not None:
                return value
            measure = node.measures().get(name)
            if measure is not None:
                return measure()
        if name.startswith("user."):
            raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), path)
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)

    @_answered
    def listxattr(self, path: str) -> list[str]:
        """The names of all extended attributes."""
        node = self._tree.lookup(_raw(path))
        return [*self._xattrs(path, node), *node.measures()]

    @_answered
    def statfs(self, path: str) -> dict[str, int]:
        """A full disk as large as the checkpoints would be as plain files."""
        size, files = self._tree.totals()
        blocks = -(-size // 4096)
        return {
            "f_bsize": 4096, "f_frsize": 4096, "f_blocks": blocks, "f_bfree": 0, "f_bavail": 0,
            "f_files": files, "f_ffree": 0, "f_favail": 0, "f_namemax": 255,
        }  # fmt: skip

    # ---- reading -------------------------------------------------------------------------------

    @_answered
    def open(self, path: str, info: Any) -> int:
        """Open a file and say what the kernel may do with pages that it has of it."""
        if info.flags & os.O_ACCMODE != os.O_RDONLY:
            self._refuse()
        node = self._tree.lookup(_raw(path))
        if not isinstance(node, File):
            raise OSError(errno.EISDIR if isinstance(node, Directory) else errno.ELOOP, "not a file", path)
        opened = _Open(attributes=node.attributes(), handle=node.open())
        info.fh = next(self._numbers)
        self._handles[info.fh] = opened
        info.direct_io, info.keep_cache = self._caching(path, node.identity)
        return 0

    def _caching(self, path: str, identity: bytes | None) -> tuple[int, int]:
        """Whether to read past the page cache, and whether pages of earlier opens still hold.

        A path can come to mean another content (the newest under a name that is overwritten in place). The
        watcher takes the old pages and size back a moment later; until then they are gone around.
        """
        if identity is None:
            return 1, 0
        with self._lock:
            known = self._identities.pop(path, None)
            if known is None or known == identity:
                self._identities[path] = identity
                if len(self._identities) > MAX_IDENTITIES:
                    self._identities.popitem(last=False)
        if known is None or known == identity:
            return 0, int(known is not None)
        return 1, 0

    @_answered
    def read(self, path: str, buffer: memoryview, offset: int, info: Any) -> int:
        """Bytes of an open file. A damaged block fails every request that touches it, never more.

        Not shorter than asked for but at the end: the kernel would take it for the end and show zeros.
        """
        return self._handles[info.fh].handle.readinto(buffer, offset)

    read_buf = read  # libfuse asks this one, and `binding` turns it into the other

    @_answered
    def release(self, path: str, info: Any) -> int:
        """The last close of an open file."""
        self._handles.pop(info.fh).handle.close()
        return 0

    # ---- writing: the kernel refuses first, because the mount is read-only -----------------------

    def _refuse(self, *_: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    create = write = truncate = fallocate = mknod = mkdir = symlink = link = _refuse
    unlink = rmdir = rename = chmod = chown = utimens = setxattr = removexattr = _refuse


def _raw(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


# ---- serving ---------------------------------------------------------------------------------------


def serve(
    tree: FileTree, mountpoint: Path, *, name: str, facts: Mapping[str, str], allow_other: bool = False,
    on_ready: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Mount `tree` and answer until it is unmounted, or SIGTERM, SIGINT or SIGHUP comes (which unmounts).

    To be called in the main thread of a process that will do nothing else; it does not fork. `on_ready` is
    called from another thread once the mount answers.

    Raises:
        MountUnavailable: when libfuse is missing or refuses to mount; libfuse then has told stderr why.
    """
    binding.keep_memory()
    fuse = binding.load()
    kernel = binding.KernelCache(fuse)
    adapter = Adapter(tree, facts, kernel.drop)
    answered = threading.Event()
    mountpoint = mountpoint.resolve()  # as the kernel lists it

    def when_it_answers() -> None:
        with suppress(OSError):
            os.listxattr(mountpoint)  # waits for the kernel, and the kernel for the loop below
        device = table.device(mountpoint)
        if device is not None:
            _raise_read_ahead(device)
            answered.set()
            on_ready()
            with suppress(OSError):
                mountpoint.stat()  # reads what is to be shown, before somebody looks at it

    def entered() -> None:
        kernel.enter()
        threading.Thread(target=when_it_answers, name="ready", daemon=True).start()

    adapter.entered = entered
    options: dict[str, Any] = {"foreground": True, "ro": True, "nosuid": True, "nodev": True, "noatime": True}
    options |= {"fsname": table.source(name, Path(facts["home"])), "subtype": "gpu-train"}
    if fuse.fuse_version_major >= 3:
        options |= {"max_read": REQUEST_BYTES, "max_idle_threads": THREADS}
        if fuse.fuse_version_minor >= 12:  # 10 by default: so many reads that wait for a disk would hold up all others
            options |= {"max_threads": MAX_THREADS}
    else:
        adapter.keep_s = 1.0
        options |= {"attr_timeout": 1, "entry_timeout": 1, "negative_timeout": 0, "use_ino": True, "nonempty": True}
    if allow_other:
        # The stored modes then decide who may read what; without others only this user gets in at all.
        options |= {"allow_other": True, "default_permissions": True}
    try:
        binding.bound(fuse)(adapter, os.fspath(mountpoint), raw_fi=True, **options)
    except RuntimeError as e:
        if not answered.is_set():
            raise MountUnavailable(f"{mountpoint}: libfuse could not mount it (code {e})") from e
        log.info("the loop ended with code %s", e)  # as it does after a signal


def _raise_read_ahead(device: str) -> None:
    """Let the kernel read ahead further on this mount; only root may, and not where /sys is read-only."""
    path = Path(f"/sys/class/bdi/{device}/read_ahead_kb")
    with suppress(OSError):
        path.write_text(str(READ_AHEAD_KIB))
