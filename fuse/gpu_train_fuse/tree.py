"""What a job, or the whole home, looks like as a file system. Pure: no FUSE here, and no LMDB.

    mount JOB                        mount all
    ├── checkpoints/<name>/...       ├── jobs/<job>/...   each like `mount JOB`
    ├── latest -> checkpoints/<name> ├── code/<version>/...
    ├── best   -> checkpoints/<name> ├── data/<name>/<version>.json
    ├── code/...                      └── models/<name>/...
    ├── logs/...
    └── job.json

`latest` and `best` stand beside checkpoints/, not in it: a trainer may well name a checkpoint "best", and
`checkpoints/*` then means each checkpoint once. A name with a slash is shown nested. What a job does not
have (code, logs, a best checkpoint) has no name.

`FileTree` answers path by path. What it read from the registry it keeps until the registry has changed, and
then says in `changes` which paths are no longer what they were, so that an adapter in front of a cache (the
kernel's) can drop just those.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from blake3 import blake3

from gpu_train_cas import Digest, EntryKind
from gpu_train_cas.errors import GpuTrainError, NotFound
from gpu_train_fuse.listing import Branch, Catalogue, Listing
from gpu_train_fuse.node import (
    Attributes,
    Directory,
    LiveDirectory,
    Node,
    Objects,
    Pointer,
    StoredDirectory,
    TextFile,
)
from gpu_train_fuse.shelf import Shelf

MAX_WATCHED = 10_000


class Totals(NamedTuple):
    """What all checkpoints in a view would take as plain files."""

    size_bytes: int
    files: int


_Made = dict[bytes, tuple[EntryKind, Callable[[], Node]]]


class Folder(Directory):
    """A made-up directory of known names; the nodes are made when they are looked at."""

    def __init__(self, mtime_ns: int, nodes: _Made) -> None:
        self._mtime_ns = mtime_ns
        self._nodes = nodes

    def attributes(self) -> Attributes:
        """A folder that everyone may read."""
        return Attributes(EntryKind.DIRECTORY, 0o755, 4096, self._mtime_ns)

    def find(self, name: bytes) -> Node | None:
        """The node of that name, or None."""
        found = self._nodes.get(name)
        return None if found is None else found[1]()

    def names(self) -> Iterator[tuple[bytes, EntryKind]]:
        """The known names."""
        return ((name, kind) for name, (kind, _) in self._nodes.items())


class CheckpointFolder(Directory):
    """A branch: the files of its checkpoint or model, if it is one, and those that are nested in its name."""

    def __init__(self, branch: Branch, shelf: Shelf) -> None:
        self._branch = branch
        self._shelf = shelf

    def _stored(self) -> StoredDirectory | None:
        return None if self._branch.checkpoint is None else self._shelf.checkpoint(self._branch.checkpoint)

    def attributes(self) -> Attributes:
        """Those of the checkpoint, or of a made-up folder as old as the newest checkpoint in it."""
        stored = self._stored()
        if stored is not None:
            return stored.attributes()
        return Attributes(EntryKind.DIRECTORY, 0o755, 4096, self._branch.changed_ns)

    def xattrs(self) -> Mapping[str, bytes]:
        """Those of the checkpoint."""
        stored = self._stored()
        return {} if stored is None else stored.xattrs()

    def measures(self) -> Mapping[str, Callable[[], bytes]]:
        """Those of the checkpoint."""
        stored = self._stored()
        return {} if stored is None else stored.measures()

    def find(self, name: bytes) -> Node | None:
        """A nested checkpoint, else a file of this one."""
        nested = self._branch.children.get(name)
        if nested is not None:
            return CheckpointFolder(nested, self._shelf)
        stored = self._stored()
        return None if stored is None else stored.find(name)

    def names(self) -> Iterator[tuple[bytes, EntryKind]]:
        """The nested ones and the files."""
        for name in self._branch.children:
            yield name, EntryKind.DIRECTORY
        stored = self._stored()
        for name, kind in stored.names() if stored is not None else ():
            if name not in self._branch.children:
                yield name, kind


class JobFolder(Directory):
    """A job: its checkpoints, code, logs and description as they are at this look."""

    def __init__(self, job_id: str, base: bytes, shelf: Shelf) -> None:
        self._job_id = job_id
        self._base = base
        self._shelf = shelf

    def _folder(self) -> Folder:
        listing = self._shelf.listing(self._job_id, self._base)
        job, code, logs = listing.job, listing.job.code, listing.job.logs
        nodes: _Made = {
            b"checkpoints": (EntryKind.DIRECTORY, lambda: CheckpointFolder(listing.places.root, self._shelf)),
            b"job.json": (EntryKind.FILE, lambda: TextFile(job.description, job.changed_ns)),
        }
        for name, record in ((b"latest", job.latest), (b"best", job.best)):
            if record is not None and record in listing.places.shown:
                nodes[name] = (EntryKind.SYMLINK, partial(_pointer, listing, record))
        if code is not None:
            nodes[b"code"] = (EntryKind.DIRECTORY, lambda: self._shelf.record(code))
        if logs is not None and logs.is_dir():
            nodes[b"logs"] = (EntryKind.DIRECTORY, lambda: LiveDirectory(logs))
        return Folder(job.changed_ns, nodes)

    def attributes(self) -> Attributes:
        """A folder as old as the job's last change."""
        return self._folder().attributes()

    def find(self, name: bytes) -> Node | None:
        """The node of that name, or None."""
        return self._folder().find(name)

    def names(self) -> Iterator[tuple[bytes, EntryKind]]:
        """What the job has at this moment."""
        return self._folder().names()


def _pointer(listing: Listing, record: Digest) -> Pointer:
    path, checkpoint = listing.places.shown[record]
    return Pointer(b"/".join((b"checkpoints", *path)), checkpoint.created_ns)


class NamedFolder(Directory):
    """A folder whose names are asked for at each look: all jobs, all code versions."""

    live = True

    def __init__(self, times_ns: Callable[[], Mapping[str, int]], node: Callable[[str], Node]) -> None:
        """Show the names with their times; `node` raises NotFound for another name."""
        self._times_ns = times_ns
        self._node = node

    def attributes(self) -> Attributes:
        """A folder as old as the newest thing in it."""
        newest = max(self._times_ns().values(), default=0)
        return Attributes(EntryKind.DIRECTORY, 0o755, 4096, newest)

    def find(self, name: bytes) -> Node | None:
        """The node of that name, or None."""
        try:
            return self._node(name.decode())
        except (NotFound, UnicodeDecodeError):
            return None

    def names(self) -> Iterator[tuple[bytes, EntryKind]]:
        """All names."""
        return ((name.encode(), EntryKind.DIRECTORY) for name in self._times_ns())


class FileTree:
    """The view behind a mount: paths to nodes. Safe to share between threads; no lock is held while reading."""

    def __init__(self, root: Directory, shelf: Shelf, totals: Callable[[], Totals]) -> None:
        self._root = root
        self.totals = totals
        self._shelf = shelf
        self._watched: OrderedDict[bytes, Attributes] = OrderedDict()
        self._evicted: list[bytes] = []
        self._lock = threading.Lock()

    def lookup(self, path: bytes) -> Node:
        """The node at an absolute path; links are not followed.

        Raises:
            NotFound: when there is none.
            Damaged: when a directory on the way cannot be read.
        """
        node: Node = self._root
        for name in path.split(b"/"):
            if not name:
                continue
            found = node.find(name) if isinstance(node, Directory) else None
            if found is None:
                raise NotFound(f"{path.decode(errors='backslashreplace')}: no such file or folder")
            node = found
        return node

    def attributes(self, path: bytes) -> Attributes:
        """What stat(2) says; a path whose node may change is watched from here on. Raises as `lookup`."""
        node = self.lookup(path)
        found = node.attributes()
        if node.live:
            with self._lock:
                self._watched[path] = found
                self._watched.move_to_end(path)
                if len(self._watched) > MAX_WATCHED:
                    self._evicted.append(self._watched.popitem(last=False)[0])
        return found

    def changes(self) -> list[bytes]:
        """The paths that are no longer what they were when they were last looked at; each is told once.

        The cost is that of reading again what changed; nothing is read while the registry stays as it is,
        but for one stat of each live file that somebody looked at.
        """
        changed = self._shelf.changes()
        with self._lock:
            watched, evicted = list(self._watched.items()), self._evicted
            self._evicted = []
        for path, before in watched:
            try:
                same = self.lookup(path).attributes() == before
            except (GpuTrainError, OSError):
                same = False
            if not same:
                changed.append(path)
                with self._lock:
                    self._watched.pop(path, None)  # watched again when it is looked at again
        return changed + evicted


def inode(path: bytes) -> int:
    """The inode number of a path: the same in every mount, different for equal files at two paths.

    From the path and not from the content: tools take equal numbers for hard links, or for a loop.
    """
    if path in (b"", b"/"):
        return 1
    return int.from_bytes(blake3(path).digest(8), "little") >> 1 | 2


def job_tree(catalogue: Catalogue, objects: Objects, job_id: str) -> FileTree:
    """One job as a file system; raises NotFound when there is no such job."""
    shelf = Shelf(catalogue, objects)

    def totals() -> Totals:
        checkpoints = shelf.listing(job_id, b"").job.checkpoints
        return Totals(sum(c.size_bytes for c in checkpoints), sum(c.files for c in checkpoints))

    if not catalogue.has_job(job_id):  # said now; its checkpoints are read at the first look
        raise NotFound(f"no job {job_id!r}; `gpu-train jobs` lists what there is")
    return FileTree(JobFolder(job_id, b"", shelf), shelf, totals)


def home_tree(catalogue: Catalogue, objects: Objects) -> FileTree:
    """The whole home as a file system."""
    shelf = Shelf(catalogue, objects)

    def job(name: str) -> Node:
        base = b"/jobs/" + name.encode()
        shelf.listing(name, base)  # NotFound for a job that is not there
        return JobFolder(name, base, shelf)

    def version(name: str) -> Node:
        found = shelf.code().get(name)
        if found is None:
            raise NotFound(f"{name}: no such code version")
        return shelf.record(found.record)

    def code_times() -> Mapping[str, int]:
        return {name: version.created_ns for name, version in shelf.code().items()}

    def data() -> Node:
        folder = catalogue.data()
        return LiveDirectory(folder, ".json") if folder.is_dir() else Folder(0, {})

    made: _Made = {
        b"jobs": (EntryKind.DIRECTORY, lambda: NamedFolder(catalogue.jobs, job)),
        b"code": (EntryKind.DIRECTORY, lambda: NamedFolder(code_times, version)),
        b"data": (EntryKind.DIRECTORY, data),
        b"models": (EntryKind.DIRECTORY, lambda: CheckpointFolder(shelf.models().root, shelf)),
    }
    return FileTree(Folder(0, made), shelf, lambda: Totals(*catalogue.totals()))
