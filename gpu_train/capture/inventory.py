"""What a checkpoint's own files say that it consists of, and which of that is missing.

Index files name others, `x-00001-of-00004` speaks of four, a number between those of other ranks was some rank's to
write, and `.metadata` of torch.distributed.checkpoint names all shards (looked for without unpickling).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

from gpu_train.capture.finder import Member
from gpu_train.capture.pattern import FOLDER, STEM, Parts, occurrences, pattern
from gpu_train.capture.rules import WEAK
from gpu_train.rule import Rule
from gpu_train_cas.formats import METADATA

INDEX_LIMIT_BYTES = 64 << 20
MAX_SHARDS = 100_000
WORLD = "world"
_SHARD = re.compile(r"(.*?)(\d+)-of-(\d+)((?:\.[^/]*)?)", re.DOTALL)
_DISTCP = re.compile(rb"__[0-9]+_[0-9]+\.distcp")
_TABLE_END = bytes.fromhex("57fb808b247547db")
"""Of a table of LevelDB, which a checkpoint's index in TensorFlow is (table/format.h, kTableMagicNumber)."""

_ORBAX = "_CHECKPOINT_METADATA"
_NO_NUMBERS = (FOLDER, STEM, WORLD)


class Absent(NamedTuple):
    """A file that should be there, and what says so."""

    path: str
    reason: str


def told(absent: Iterable[Absent]) -> str:
    """What is missing, in words; empty when nothing is."""
    found = list(absent)
    if not found:
        return ""
    return f"{found[0].path}, {found[0].reason}" + (f", and {len(found) - 1} more" if found[1:] else "")


def absent_files(files: Mapping[str, Member], rule: Rule | None, path_of: Callable[[str], str]) -> Iterator[Absent]:
    """The files that those which are there speak of; the first kind of witness that knows of some is enough."""
    for witness in (_of_indexes, _of_shards, _of_metadata, _of_orbax):
        found = list(witness(files, path_of))
        if found:
            yield from found
            return
    if rule is not None:
        yield from absent_ranks(files, rule)


def absent_ranks(files: Mapping[str, Member], rule: Rule) -> Iterator[Absent]:
    """The files of ranks whose numbers lie between those of others."""
    seen = {
        text: list(occurrences(pattern(text.removeprefix(WEAK)), files)) for text in rule.ranks
    }  # fmt: skip
    ranges = _ranges(parts for found in seen.values() for _, parts in found)
    for text, found in seen.items():
        if found and not text.startswith(WEAK):
            yield from _holes(text, found, ranges)


def ranks_written(files: Mapping[str, Member], rule: Rule) -> tuple[int, int]:
    """How many ranks wrote a file each, and how many there are by what the names say; zeros when nothing tells.

    The first is that of the pattern of which the fewest did, without patterns of which none did.
    """
    counts, world = [], 0
    for text in rule.ranks:
        found = [parts for _, parts in occurrences(pattern(text.removeprefix(WEAK)), files)]
        world = max([world, *(int(parts[WORLD]) for parts in found if WORLD in parts)])
        if found and not text.startswith(WEAK) and "rank" in pattern(text).names:
            counts.append(len({int(parts["rank"]) for parts in found}))
    return min(counts, default=0), world


def _ranges(found: Iterable[Parts]) -> dict[str, tuple[int, int]]:
    """The lowest and highest number that each named part stands for anywhere in the checkpoint."""
    ranges: dict[str, tuple[int, int]] = {}
    for parts in found:
        for name, text in parts.items():
            if name not in _NO_NUMBERS:
                low, high = ranges.get(name, (int(text), int(text)))
                ranges[name] = min(low, int(text)), max(high, int(text))
    return ranges


def _holes(text: str, found: list[tuple[str, Parts]], ranges: Mapping[str, tuple[int, int]]) -> Iterator[Absent]:
    """Of one pattern, the files that are not there, in each folder where one is."""
    names = [name for name in pattern(text).names if name not in _NO_NUMBERS]
    spans = [range(ranges[name][0], ranges[name][1] + 1) for name in names]
    places: dict[tuple[str, ...], list[Parts]] = {}
    for _, parts in found:
        places.setdefault(tuple(parts.get(name, "") for name in _NO_NUMBERS), []).append(parts)
    count = 1
    for span in spans:
        count *= len(span)
    if count > MAX_SHARDS:
        return
    for there in places.values():
        numbers = {tuple(int(parts[name]) for name in names) for parts in there}
        for wanted in product(*spans):
            if wanted not in numbers:
                filled = {n: str(w).zfill(len(there[0][n])) for n, w in zip(names, wanted, strict=True)}
                which = " and ".join(f"{n} {w}" for n, w in zip(names, wanted, strict=True))
                yield Absent(pattern(text).filled({**there[0], **filled}), f"of {which}")


def _of_shards(files: Mapping[str, Member], path_of: Callable[[str], str]) -> Iterator[Absent]:
    """Shards of a set that says how many it has; counted from 1, or from 0 when there is a number 0."""
    sets: dict[tuple[str, str, str, int], set[int]] = {}
    for rel in files:
        shard = _SHARD.fullmatch(rel)
        if shard is not None and int(shard[3]) <= MAX_SHARDS:
            sets.setdefault((shard[1], shard[3], shard[4], len(shard[2])), set()).add(int(shard[2]))
    for (before, total, after, width), there in sorted(sets.items()):
        first = 0 if 0 in there else 1
        for number in range(first, int(total) + first) if len(there) < int(total) else ():
            if number not in there:
                yield Absent(f"{before}{number:0{width}d}-of-{total}{after}", "a shard")


def _of_indexes(files: Mapping[str, Member], path_of: Callable[[str], str]) -> Iterator[Absent]:
    """Files and folders that the indexes of Hugging Face libraries name."""
    folders = {rel.rpartition("/")[0] for rel in files}
    folders |= {folder[:at] for folder in folders for at, letter in enumerate(folder) if letter == "/"}
    for rel in sorted(files):
        read = _INDEXES.get("*.index.json" if rel.endswith(".index.json") else rel.rpartition("/")[2])
        if read is None:
            continue
        folder = rel.rpartition("/")[0]
        for name in sorted(_safely(read, path_of(rel))):
            path = f"{folder}/{name}" if folder else name
            if path not in files and path not in folders:
                yield Absent(path, f"which {rel} names")


def _of_metadata(files: Mapping[str, Member], path_of: Callable[[str], str]) -> Iterator[Absent]:
    """Shards that a `.metadata` of torch.distributed.checkpoint names."""
    for rel in sorted(files):
        folder, _, name = rel.rpartition("/")
        if name == METADATA or (name.startswith("__") and name.endswith(METADATA)):
            for shard in sorted(_shards_named(path_of(rel))):
                path = f"{folder}/{shard}" if folder else shard
                if path not in files:
                    yield Absent(path, f"which {rel} lists")


def is_torn(rel: str, path: str) -> bool:
    """Whether a file that is a sign was not written to its end, as far as its kind can tell.

    Other files may be called .json and hold no JSON; one by which a framework says that it is done is never half of it.
    """
    name = rel.rpartition("/")[2]
    try:
        with open(path, "rb") as file:
            if name.endswith(".index"):
                file.seek(-min(len(_TABLE_END), file.seek(0, 2)), 2)
                return file.read() != _TABLE_END
            if name.endswith(".json") or name == _ORBAX:
                json.loads(file.read(INDEX_LIMIT_BYTES))
    except (ValueError, RecursionError):
        return True
    except OSError:
        return False
    return False


def _of_orbax(files: Mapping[str, Member], path_of: Callable[[str], str]) -> Iterator[Absent]:
    """The commit of an Orbax checkpoint that bears its final name from the beginning, as on object stores."""
    if _ORBAX in files and "no" in _safely(_commit_time, path_of(_ORBAX)):
        yield Absent("its commit", f"of which {_ORBAX} has no time yet")


def _commit_time(metadata: Mapping[str, Any]) -> set[str]:
    return {"no"} if "commit_timestamp_nsecs" in metadata and not metadata["commit_timestamp_nsecs"] else set()


def _shards_named(path: str) -> set[str]:
    """The shards whose names stand in a file; such names are no others', so the pickle need not be understood.

    Reading it as `gpu_train_cas.formats.read_items` does takes seconds for a large model.
    """
    try:
        with open(path, "rb") as file:
            return {name.decode() for name in _DISTCP.findall(file.read(INDEX_LIMIT_BYTES))}
    except OSError:
        return set()


def _safely(read: Callable[[Any], set[str]], path: str) -> set[str]:
    """The names that an index gives; none when it cannot be read."""
    try:
        with open(path, "rb") as file:
            names = read(json.loads(file.read(INDEX_LIMIT_BYTES)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()
    return {name for name in names if isinstance(name, str) and name and not name.startswith(("/", ".."))}


def _components(pipeline: Mapping[str, Any]) -> set[str]:
    """A diffusers pipeline names each component's library and class; what has none is left out."""
    return {
        name for name, kind in pipeline.items()
        if isinstance(kind, list) and len(kind) == 2 and all(kind) and not name.startswith("_")
    }  # fmt: skip


_INDEXES: Mapping[str, Callable[[Any], set[str]]] = {
    "*.index.json": lambda index: set(index["weight_map"].values()),
    "model_index.json": _components,
    "modules.json": lambda modules: {module["path"] for module in modules},
}
