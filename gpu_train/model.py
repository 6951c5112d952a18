"""Base models: what fine-tunes start from, kept so that their checkpoints are stored as what differs from them.

A model is a record of kind "model": its files of tensors and its small JSON files. Where to find it again is in the
record's facts; nothing lives in the registry alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_train.environment import hugging_face_cache
from gpu_train.home import Home
from gpu_train.kind import CONFIG_LIMIT_BYTES, SAID_IN
from gpu_train_cas import Entry, Manifest, OnProgress, Record, Store
from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import GpuTrainError, NotFound, UsageError
from gpu_train_cas.formats import FileSource, layout
from gpu_train_cas.pairing import shortened

KIND = "model"
PREFERRED = (".safetensors",)
OTHERS = (".bin", ".pt", ".pth", ".ckpt", ".npz", ".gguf")
SMALL_FILES = (".json", ".txt", ".model")
SMALL_LIMIT_BYTES = 64 << 20
ENOUGH = 0.5
"""A model serves as base when at least so much of a checkpoint's tensors has one of the same name and shape there."""

_NEAR = 5


@dataclass(frozen=True, slots=True)
class Model:
    """A registered base model.

    Attributes:
        name: what it is called, as a checkpoint's config calls it where that is known.
        source: the folder or file that it was read from.
        revision: the commit of the Hugging Face cache; empty for a folder.
        files, size_bytes: of what is kept of it; stored_bytes: what it added to the store.
        created_ns: when it was registered.
        record: the record in the store.
        new: whether this call made it.
    """

    name: str
    source: str
    revision: str
    files: int
    size_bytes: int
    stored_bytes: int
    created_ns: int
    record: Digest
    new: bool = False


class Models:
    """The base models of a home. Threads and processes may register at the same time."""

    def __init__(self, home: Home, store: Store) -> None:
        self._home = home
        self._store = store

    def add(self, wanted: str | Path, name: str | None = None, *, progress: OnProgress | None = None) -> Model:
        """Register a folder or file, or a model of that name in `models/` of the home or in the Hugging Face cache.

        The same content under the same name again changes nothing.

        Raises:
            NotFound: when there is nothing of that name or at that path.
            UsageError: when there are no tensors in it.
            SourceChanged, StorageFull: as for ingest.
        """
        path, revision = self._locate(wanted)
        called = name or (str(wanted) if not Path(wanted).expanduser().exists() else path.name)
        if not called.strip() or "\n" in called:
            raise UsageError(f"a model cannot be called {called!r}; give --name")
        endings = self._endings(path)
        with self._store.writer(KIND) as writer:
            if path.is_dir():
                added = writer.add_tree(path, exclude=_all_but(path, endings), follow=True, progress=progress)
            else:
                added = writer.add_file(path, progress=progress)
            for model, root in self._records():
                if (model.name, root.identity) == (called, added.root.identity):
                    return model
            now = time.time_ns()
            meta = {"source": str(path), "revision": revision, "stored_bytes": added.stored_bytes}
            with writer.commit() as txn:
                digest = txn.put_record(Record(KIND, called, revision, now, added.root, meta))
        return Model(
            called, str(path), revision, added.files, added.size_bytes, added.stored_bytes, now, digest, new=True
        )

    def list(self) -> Sequence[Model]:
        """All models, the last registered first."""
        return sorted((model for model, _ in self._records()), key=lambda m: (-m.created_ns, m.name))

    def get(self, name: str) -> Model:
        """The model of that name, the last registered where there are several; a unique end of a name will do.

        Raises:
            NotFound: when there is none.
            UsageError: when several names end so.
        """
        known = self.list()
        exact = [m for m in known if m.name == name]
        ending = {m.name: m for m in reversed(known) if m.name.rpartition("/")[2] == name}
        if exact:
            return exact[0]
        if len(ending) > 1:
            raise UsageError(f"{name!r} could be {', '.join(sorted(ending)[:_NEAR])}; give the whole name")
        if not ending:
            names = ", ".join(m.name for m in known[:_NEAR])
            raise NotFound(f"no model {name!r}; " + (f"there are {names}" if names else "none is registered yet"))
        return next(iter(ending.values()))

    def remove(self, name: str) -> Model:
        """Move a model to the trash. What was stored as deltas against it stays readable.

        Raises:
            NotFound, UsageError: as for `get`.
        """
        model = self.get(name)
        self._store.trash(model.record)
        return model

    def roots_for(self, folder: Path) -> Sequence[Entry]:
        """The model that the checkpoint in a folder was made from, as its files say or its tensors show."""
        known = list(self._records())
        if not known:
            return []
        said = set(_said_in(folder))
        named = [(m, root) for m, root in known if {m.name, m.source, m.name.rpartition("/")[2]} & said]
        tensors = _tensors_in(folder)
        if not tensors:
            return []
        ranked = [(self._alike(root, tensors), m.created_ns, root) for m, root in named or known]
        share, _, root = max(ranked, key=lambda found: found[:2])
        return [root] if share >= ENOUGH or named else []

    # Finding one

    def _locate(self, wanted: str | Path) -> tuple[Path, str]:
        """The folder or file of a model, and its revision."""
        path = Path(wanted).expanduser().absolute()
        if path.exists():
            return path, path.name if path.parent.name == "snapshots" else ""
        own = self._home.models / wanted
        if own.exists():
            return own, ""
        cached = hugging_face_cache() / f"models--{str(wanted).replace('/', '--')}"
        snapshot = _newest_snapshot(cached)
        if snapshot is not None:
            return snapshot, snapshot.name
        raise NotFound(
            f"no model {str(wanted)!r}: it is no path, not in {self._home.models} and not in the Hugging Face cache "
            f"({cached}); `hf download {wanted}` fetches it"
        )

    def _endings(self, path: Path) -> tuple[str, ...]:
        """Of which ending the files of tensors are that are kept: one format is enough."""
        files = [p.name for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path.name]
        for endings in (PREFERRED, OTHERS):
            if any(name.endswith(endings) for name in files):
                return endings
        raise UsageError(f"{path} holds no tensors ({', '.join(PREFERRED + OTHERS)}); it cannot be a base model")

    def _records(self) -> Iterator[tuple[Model, Entry]]:
        for digest, record in self._store.records(KIND):
            meta = record.meta
            yield Model(
                record.owner, str(meta.get("source", "")), record.name, record.root.files, record.root.size_bytes,
                int(meta.get("stored_bytes", 0)), record.created_ns, digest,
            ), record.root  # fmt: skip

    def _alike(self, root: Entry, tensors: Mapping[tuple[str, tuple[int, ...]], int]) -> float:
        """How much of a checkpoint's tensors, in bytes, a model has too."""
        found: set[tuple[str, tuple[int, ...]]] = set()
        try:
            for _, entry in self._store.reader.walk(root):
                if entry.manifest is not None:
                    manifest: Manifest = self._store.reader.manifest(entry)
                    found.update(key for tensor in manifest.tensors for key in _keys(tensor.name, tensor.shape))
        except GpuTrainError:  # damaged: it may help with less
            pass
        alike = sum(size for (name, shape), size in tensors.items() if found.intersection(_keys(name, shape)))
        return alike / sum(tensors.values())


def _all_but(root: Path, endings: tuple[str, ...]) -> Callable[[bytes, bool], bool]:
    def excluded(path: bytes, is_folder: bool) -> bool:
        name = os.fsdecode(path)
        if is_folder or name.endswith(endings):
            return False
        return not (name.endswith(SMALL_FILES) and (root / name).stat().st_size <= SMALL_LIMIT_BYTES)

    return excluded


def _newest_snapshot(cached: Path) -> Path | None:
    """The snapshot that `main` is, else the newest one of a model in the Hugging Face cache."""
    try:
        main = cached / "snapshots" / (cached / "refs" / "main").read_text().strip()
        if main.is_dir():
            return main
    except OSError:
        pass
    try:
        found = [p for p in (cached / "snapshots").iterdir() if p.is_dir()]
    except OSError:
        return None
    return max(found, key=lambda p: p.stat().st_mtime_ns, default=None)


def _said_in(folder: Path) -> Iterator[str]:
    """The names by which a checkpoint's own files call the model it was made from."""
    for name, key in SAID_IN.items():
        try:
            file = folder / name
            if file.stat().st_size <= CONFIG_LIMIT_BYTES:
                value = json.loads(file.read_bytes()).get(key)
                if isinstance(value, str) and value:
                    yield value
                    yield value.rstrip("/").rpartition("/")[2]
        except (OSError, ValueError, AttributeError, RecursionError):
            continue


def _tensors_in(folder: Path) -> dict[tuple[str, tuple[int, ...]], int]:
    """The tensors of the plain files in a folder by name and shape, with their bytes."""
    found: dict[tuple[str, tuple[int, ...]], int] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.endswith(PREFERRED + OTHERS) and path.is_file():
            try:
                with path.open("rb") as file:
                    shape = layout(FileSource(file.fileno()), path.name)
            except OSError:
                continue
            found.update({(t.name, t.shape): t.length for t in (shape.tensors if shape else ()) if t.length})
    return found


def _keys(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A tensor's names, whole and without its leading parts (as the engine pairs them), with its shape."""
    yield from ((one, shape) for one in shortened(name))
