"""Objects as plain files below a folder: another disk, a NAS, any mounted file system."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from blake3 import blake3

from gpu_train.errors import Corrupted, Refused, Taken, Unavailable
from gpu_train.sinks.objects.content import PART_BYTES, Content, parts
from gpu_train.sinks.objects.objectstore import Found, OnBytes, Put
from gpu_train_cas.errors import GpuTrainError, NotFound
from gpu_train_cas.filesystem import sync_directory

TEMPORARY = ".gpu-train-"
"""How the names of files begin that are being written."""

_NEEDS_A_PERSON = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.ELOOP}


class FolderObjects:
    """See `ObjectStore`. Files are written beside their place, made durable, read back past the page cache where the
    system can do that, compared, and renamed.

    The folder itself may be missing as long as nothing was written, but not the one above it: a NAS that is not mounted
    must not be filled in its place.
    """

    few_files = False

    def __init__(self, root: Path) -> None:
        self.address = str(root)
        self._root = root

    def put(self, objects: Sequence[Put], on_bytes: OnBytes = lambda count: None) -> None:
        """See `ObjectStore`."""
        with self._explained():
            if not self._root.is_dir():
                self._root.mkdir(exist_ok=True)  # its parent must be there
            folders = set()
            for one in objects:
                path = self._path(one.key)
                if one.again and self.holds(one.key, one.content):
                    continue
                _make_folders(path.parent)
                self._write(one, path, on_bytes)
                folders.add(path.parent)
            for folder in folders:
                sync_directory(folder)

    def size(self, key: str) -> int | None:
        """See `ObjectStore`."""
        with self._explained():
            self._need_root()
            try:
                found = self._path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return found.st_size if stat.S_ISREG(found.st_mode) else None

    def holds(self, key: str, content: Content) -> bool:
        """See `ObjectStore`."""
        if self.size(key) != content.size_bytes:
            return False
        hashed = blake3()
        for part in parts(content):
            hashed.update(part)
        with self._explained():
            return _digest_of(self._path(key)) == hashed.digest()

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        """See `ObjectStore`."""
        with self._explained():
            try:
                with self._path(key).open("rb") as file:
                    return os.pread(file.fileno(), length, offset)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._need_root()
                raise NotFound(f"{self.address}: there is no {key}") from None

    def list(self, prefix: str = "") -> Iterator[Found]:
        """See `ObjectStore`."""
        start = self._root / prefix.rpartition("/")[0]
        with self._explained():
            self._need_root()
            for folder, _, names in os.walk(start, onerror=_unless_gone):
                for name in names:
                    path = Path(folder, name)
                    key = path.relative_to(self._root).as_posix()
                    if key.startswith(prefix) and not name.startswith(TEMPORARY):
                        with suppress(FileNotFoundError):
                            yield Found(key, path.stat().st_size)

    def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore`. Folders that become empty go too."""
        with self._explained():
            self._need_root()
            for key in keys:
                path = self._path(key)
                with suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
                for folder in path.parents:
                    if folder == self._root:
                        break
                    try:
                        folder.rmdir()
                    except OSError:
                        break

    def close(self) -> None:
        """See `ObjectStore`."""

    def _path(self, key: str) -> Path:
        names = key.split("/")
        if any(name in ("", ".", "..") or "\0" in name for name in names):
            raise Refused(f"{self.address}: {key!r} is no name for an object")
        return self._root.joinpath(*names)

    def _need_root(self) -> None:
        if not (self._root.is_dir() or self._root.parent.is_dir()):
            raise Unavailable(f"{self.address}: {self._root.parent} is not there; is the disk mounted?")

    def _write(self, one: Put, path: Path, on_bytes: OnBytes) -> None:
        temporary = path.with_name(f"{TEMPORARY}{uuid4().hex}")
        hashed = blake3()
        try:
            with temporary.open("xb") as file:
                for part in parts(one.content):
                    file.write(part)
                    hashed.update(part)
                    on_bytes(len(part))
                file.flush()
                os.fsync(file.fileno())
                if one.mtime_ns is not None:
                    os.utime(file.fileno(), ns=(one.mtime_ns, one.mtime_ns))
                # Only what is not in memory any more is read from where it was written to.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if _digest_of(temporary) != hashed.digest():
                raise Corrupted(f"{self.address}: {one.key} does not read back as it was written; check that disk")
            if not one.only_new:
                temporary.replace(path)
                return
            _place_new(temporary, path)
            if _digest_of(path) != hashed.digest():
                raise Taken(f"{self.address}: {one.key} is there already with other bytes")
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except GpuTrainError:
            raise
        except OSError as e:
            what = f"{self.address}: {e.strerror}" + (f": {e.filename}" if e.filename else "")
            if e.errno == errno.ENOENT and not self._root.parent.is_dir():
                raise Unavailable(f"{self.address}: {self._root.parent} is not there; is the disk mounted?") from e
            raise (Refused if e.errno in _NEEDS_A_PERSON else Unavailable)(what) from e


def _place_new(temporary: Path, path: Path) -> None:
    """Give a file its name unless that is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError as e:  # no hard links there: the best that is left has a moment's gap
        if e.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        if not path.exists():
            temporary.replace(path)


def _make_folders(folder: Path) -> None:
    """Make folders, each durable in the one above it."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_directory(new.parent)


def _digest_of(path: Path) -> bytes:
    hashed = blake3()
    with path.open("rb", buffering=0) as file:
        while data := file.read(PART_BYTES):
            hashed.update(data)
    return hashed.digest()


def _unless_gone(error: OSError) -> None:
    """What a folder's walk does about an error: what is deleted meanwhile is no error."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
