"""The files of a data set on disk, found by one walk that reads none of them.

Data is often assembled from links, so links are followed, unlike in code: a linked file counts as the file
it leads to, a linked folder as the folder, wherever it lies. A link that leads back to a folder it lies
in would never end and is skipped; so are dangling links, and what is neither file nor folder.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from gpu_train.data_manifest import Skipped
from gpu_train.stat_cache import Signature, signature_of
from gpu_train_cas.errors import GpuTrainError, NotFound

_Id = tuple[int, int]


@dataclass(slots=True)
class DataListing:
    """What lies at a path.

    Attributes:
        root: the folder, or the file itself.
        is_folder: which of the two it is.
        files: by path from the root; of a single file its name.
        skipped: what is there and cannot be recorded.
    """

    root: Path
    is_folder: bool
    files: dict[bytes, Signature] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def location(self, path: bytes) -> bytes:
        """Where a file of the listing is on disk."""
        root = os.fsencode(self.root)
        return os.path.join(root, path) if self.is_folder else root


def list_data(path: Path, *, home: Path | None = None) -> DataListing:
    """Walk a folder, or take a single file; the folder `home` is skipped.

    Raises:
        NotFound: when there is nothing at the path.
        GpuTrainError: when it is neither file nor folder, or a folder cannot be read.
    """
    root = os.fsencode(path)
    try:
        found = os.stat(root)
    except (FileNotFoundError, NotADirectoryError) as e:
        raise NotFound(f"{path} is not there; give the path of the data") from e
    except OSError as e:
        raise GpuTrainError(f"{path}: {e.strerror}; check the path and its permissions") from e
    if stat.S_ISREG(found.st_mode):
        return DataListing(path, False, {os.path.basename(root): signature_of(found)})
    if not stat.S_ISDIR(found.st_mode):
        raise GpuTrainError(f"{path} is neither a file nor a folder; data must be one of them")
    listing = DataListing(path, True)
    _Walk(listing, _id_of_home(home)).run(root, found)
    listing.skipped.sort(key=lambda s: s.path)
    return listing


class _Walk:
    """One walk: folders to enter, each with the folders that lead to it."""

    def __init__(self, listing: DataListing, home: _Id | None) -> None:
        self._listing = listing
        self._home = home
        self._stack: list[tuple[bytes, bytes, tuple[_Id, ...]]] = []

    def run(self, root: bytes, found: os.stat_result) -> None:
        self._stack.append((b"", root, ((found.st_dev, found.st_ino),)))
        while self._stack:
            path, folder, above = self._stack.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self._entry(entry, path + entry.name, above)
            except OSError as e:
                raise GpuTrainError(f"{os.fsdecode(folder)}: {e.strerror}; make it readable and retry") from e

    def _entry(self, entry: os.DirEntry[bytes], path: bytes, above: tuple[_Id, ...]) -> None:
        try:
            found = entry.stat()
        except OSError:
            self._listing.skipped.append(Skipped(path, "a link that leads nowhere"))
            return
        if stat.S_ISREG(found.st_mode):
            self._listing.files[path] = signature_of(found)
        elif stat.S_ISDIR(found.st_mode):
            own = (found.st_dev, found.st_ino)
            if own in above:
                self._listing.skipped.append(Skipped(path, "a link to a folder it lies in"))
            elif own == self._home:
                self._listing.skipped.append(Skipped(path, "the home of gpu-train"))
            else:
                self._stack.append((path + b"/", entry.path, (*above, own)))
        else:
            self._listing.skipped.append(Skipped(path, "neither a file nor a folder"))


def _id_of_home(home: Path | None) -> _Id | None:
    if home is None or not home.is_dir():
        return None
    found = home.stat()
    return found.st_dev, found.st_ino
