"""Serve a mount of a job whose packs lie in a folder that stands for a far place: far_child.py HOME JOB FAR MOUNTPOINT.

The file `weather` in that folder tells how the place is: `fine`, `silent` (it never answers), `broken` (it fails).
"""

import sys
import time
from pathlib import Path

from gpu_train import Workspace
from gpu_train_cas import Digest, Entry, ReadAhead, Reader
from gpu_train_cas.errors import NotFound
from gpu_train_cas.packindexes import PackIndexes
from gpu_train_cas.patience import Patience, PatientRanges
from gpu_train_cas.remote import RemoteBlocks
from gpu_train_fuse.adapter import serve
from gpu_train_fuse.catalogue import WorkspaceCatalogue
from gpu_train_fuse.lifecycle import facts
from gpu_train_fuse.tree import job_tree


class Far:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        weather = (self._folder / "weather").read_text()
        if weather == "silent":
            time.sleep(3600)
        if weather == "broken":
            raise ConnectionResetError("the connection was reset")
        try:
            with (self._folder / key).open("rb") as pack:
                pack.seek(offset)
                return pack.read(length)
        except FileNotFoundError as e:
            raise NotFound(f"{key} is not there") from e


class FarCatalogue(WorkspaceCatalogue):
    def __init__(self, workspace: Workspace, reader: Reader) -> None:
        super().__init__(workspace)
        self._reader = reader

    def root(self, record: Digest) -> Entry:
        return self._reader.record(record).root


home, job, far, point = sys.argv[1:]
packs = {Digest(bytes.fromhex(path.stem)): path.stat().st_size for path in Path(far).glob("*.pack")}
ranges = PatientRanges(Far(Path(far)), Patience(attempt_s=0.3, attempts=2, pause_s=0.05, all_s=2.0, rest_s=0.3))
with Workspace.open(Path(home), create=False, read_only=True) as workspace:
    remote = RemoteBlocks(PackIndexes(ranges, packs, lambda name: name.hex() + ".pack"), ranges)
    reader = Reader([workspace.store.packs, remote], 8 << 20)
    ahead = ReadAhead(reader)
    tree = job_tree(FarCatalogue(workspace, reader), ahead, job)
    serve(tree, Path(point), name=job, facts=facts(workspace.home), on_ready=lambda: print("ready", flush=True))
    ahead.close()
