"""What kind of checkpoint it is, and which model it was made from, by the names of its files and its small configs.

Both are found when a checkpoint is stored and kept on its row, so that a listing of any length reads nothing else. A
row that has neither (nobody looked: it is older, or came from a sink without its row) stays without until its
content is stored again; `checkpoints show` looks into the store for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gpu_train_cas import Entry
    from gpu_train_cas.reader import Reader

FULL = "full"
LORA = "lora"
DCP = "dcp"
OPTIMIZER_FREE = "optimizer-free"
"""Its optimizer's state was dropped (`retention.thinning`): whatever it was before, it can serve, not resume."""

KINDS = (FULL, LORA, OPTIMIZER_FREE, DCP)
ADAPTER_CONFIG = "adapter_config.json"
SAID_IN = {ADAPTER_CONFIG: "base_model_name_or_path", "config.json": "_name_or_path"}
"""Files in which a checkpoint says which model it was made from, and the key."""

CONFIG_LIMIT_BYTES = 16 << 20
BASE_MODEL_LIMIT = 512
"""Characters of a base model's name that are kept."""

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_WHOLE_MODEL = frozenset((*_WEIGHTS, *(f"{name}.index.json" for name in _WEIGHTS)))

Read = Callable[[str], bytes | None]
"""A file of a checkpoint by its path in it: its bytes, None when it cannot be read or is no small one."""


class Kind(NamedTuple):
    """The kind of a checkpoint (`KINDS`) and the model that its own files name as its base, None where none does."""

    name: str = FULL
    base_model: str | None = None


def kind_of(paths: Iterable[str], read: Read) -> Kind:
    """The kind of the checkpoint that has these files.

    `lora` is an adapter of any sort (it has an adapter_config.json, and no whole model beside it), `dcp` what PyTorch's
    distributed checkpointing writes (.distcp files with their .metadata), `full` all others.
    """
    names = set(paths)
    configs = [_config(names, name, read) for name in SAID_IN]
    base_model = next((name for config, key in zip(configs, SAID_IN.values(), strict=True)
                       if (name := _text(config, key)) is not None), None)  # fmt: skip
    if _highest(names, ADAPTER_CONFIG) is not None and names.isdisjoint(_WHOLE_MODEL):
        return Kind(LORA, base_model)
    is_dcp = any(name.endswith(".distcp") for name in names) and _highest(names, ".metadata") is not None
    return Kind(DCP if is_dcp else FULL, base_model)


def stored_kind(reader: Reader, root: Entry) -> Kind:
    """`kind_of` for a checkpoint in the store: its tree and at most two small files are read.

    Raises:
        NotFound, Damaged: when what is stored cannot be read.
    """
    from gpu_train_cas import EntryKind  # noqa: PLC0415  what lists rows does without the engine

    files = {os.fsdecode(path): entry for path, entry in reader.walk(root) if entry.kind is EntryKind.FILE}

    def read(path: str) -> bytes | None:
        entry = files[path]
        if entry.size_bytes > CONFIG_LIMIT_BYTES:
            return None
        return reader.open(entry).pread(entry.size_bytes, 0)

    return kind_of(files, read)


def _highest(names: Iterable[str], wanted: str) -> str | None:
    """Of the files called `wanted`, the one nearest to the top, at most a folder down."""
    found = [name for name in names if name == wanted or (name.endswith(f"/{wanted}") and name.count("/") == 1)]
    return min(found, key=lambda name: (name.count("/"), name), default=None)


def _config(names: Iterable[str], wanted: str, read: Read) -> Mapping[str, object]:
    path = _highest(names, wanted)
    data = None if path is None else read(path)
    try:
        found = json.loads(data) if data is not None else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(config: Mapping[str, object], key: str) -> str | None:
    value = config.get(key)
    return value[:BASE_MODEL_LIMIT] if isinstance(value, str) and value.strip() else None
