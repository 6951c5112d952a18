"""Whether a checkpoint is whole, and by which proof. The strongest proof wins (the package docstring of rules)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpu_train.capture.finder import FILE, Member
from gpu_train.capture.rules import rule_for
from gpu_train.capture.shape import is_weights, may_have_companions
from gpu_train_cas.formats import FileSource, self_proof

EXPLICIT = "explicit"
FILES = "files"
QUIET = "quiet"
ENDED = "ended"

MARKER_REST_S = 0.3
"""Rest after a framework's marker: files of other ranks may still follow."""

INDEX_LIMIT_BYTES = 64 << 20
_SHARD = re.compile(r"(.*-)(\d+)-of-(\d+)(\..*)")


class Verdict(NamedTuple):
    """`proof` when it is whole, else `missing` in words; `sure` says that waiting cannot help."""

    proof: str = ""
    missing: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it is whole."""
        return bool(self.proof)


class Moment(NamedTuple):
    """What is known beside the files when one is judged.

    Attributes:
        rest_s: how long nothing about it has changed.
        settle_s: how long that must be without another proof.
        deleted: whether the trainer has deleted it; only links of ours are left, nobody writes any more.
        ended: whether the job is over.
        clean_end: whether it ended with exit code 0.
        busy: whether files in it or beside it say that it is being written.
        is_written: asks whether a process has one of its files open for writing.
    """

    rest_s: float
    settle_s: float
    deleted: bool = False
    ended: bool = False
    clean_end: bool = False
    busy: bool = False
    is_written: Callable[[], bool] = lambda: False


class Judge:
    """Judges checkpoints; remembers what it found out about files that have not changed since."""

    def __init__(self) -> None:
        self._proofs: dict[Member, bool | None] = {}

    def verdict(
        self, name: str, shape: str, members: Mapping[str, Member], path_of: Callable[[str], str], moment: Moment
    ) -> Verdict:
        """Judge a checkpoint by its members; `path_of` says where a member's bytes can be read."""
        files = {rel: m for rel, m in members.items() if m.is_file}
        still = moment.deleted or moment.ended
        if not files:
            return Verdict(missing="it has no files yet")
        if moment.busy and not moment.deleted:
            return Verdict(missing="a temporary file in it or a marker beside it says that it is being written")
        rule = rule_for(name.rpartition("/")[2], files)
        if rule is not None and rule.missing(files):
            return Verdict(missing=f"{', '.join(rule.missing(files))} ({rule.name})")
        rest = MARKER_REST_S if rule is not None else moment.settle_s
        quick = shape == FILE and not may_have_companions(next(iter(files)))
        if not still and not quick and moment.rest_s < rest:
            return Verdict(missing="it still changes")
        lacking = self._lacking(files, path_of)
        if lacking:
            return Verdict(missing=lacking)
        if not still and moment.is_written():
            return Verdict(missing="a process has it open for writing")
        if rule is not None:
            return Verdict(rule.name)
        return self._without_rule(files, moment, quick)

    def _without_rule(self, files: Mapping[str, Member], moment: Moment, quick: bool) -> Verdict:
        proven = any(self._proofs.get(m) for m in files.values())
        rested = moment.rest_s >= moment.settle_s
        if proven and (quick or rested or moment.deleted or moment.clean_end):
            return Verdict(FILES)
        if rested and not moment.deleted:
            return Verdict(QUIET)
        if moment.clean_end:
            return Verdict(ENDED)
        if moment.ended:
            return Verdict(missing="proof that it was finished: the job ended while it was being written")
        return Verdict(missing="proof that it was finished")

    def _lacking(self, files: Mapping[str, Member], path_of: Callable[[str], str]) -> str:
        """What is wrong with the files themselves, in words; empty when nothing is."""
        for rel, member in sorted(files.items()):
            if self._proof(rel, member, path_of(rel)) is False:
                return f"the rest of {rel} (it is cut short)"
        for rel in sorted(files):
            if rel.endswith(".index.json"):
                absent = sorted(_named_by_index(path_of(rel), rel.rpartition("/")[0]) - files.keys())
                if absent:
                    return f"{absent[0]}, which {rel} names" + (f" and {len(absent) - 1} more" if absent[1:] else "")
            shard = _SHARD.fullmatch(rel)
            if shard is not None:
                absent = sorted(_shards(shard) - files.keys())
                if absent:
                    return f"{absent[0]}, a shard" + (f", and {len(absent) - 1} more" if absent[1:] else "")
        return ""

    def _proof(self, rel: str, member: Member, path: str) -> bool | None:
        if member not in self._proofs:
            if len(self._proofs) > 100_000:
                self._proofs.clear()
            self._proofs[member] = _ask(rel, member, path)
        return self._proofs[member]


def _ask(rel: str, member: Member, path: str) -> bool | None:
    """What a file says of itself; a weights file without a byte is not complete."""
    if member.size_bytes == 0:
        name = rel.rpartition("/")[2]
        # Any file may be called .bin; one that holds a model is never empty.
        return False if is_weights(name) and (may_have_companions(name) or not name.endswith(".bin")) else None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return self_proof(FileSource(fd), rel)
    finally:
        os.close(fd)


def _named_by_index(path: str, folder: str) -> set[str]:
    """The files that a Hugging Face index names, as paths below the checkpoint; none when it cannot be read."""
    try:
        with open(path, "rb") as file:
            names = set(json.loads(file.read(INDEX_LIMIT_BYTES))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()
    return {f"{folder}/{n}" if folder else n for n in names if isinstance(n, str)}


def _shards(match: re.Match[str]) -> set[str]:
    """All shards of the set that one belongs to; counted from 1, or from 0 when it is number 0."""
    before, number, total, after = match.groups()
    if int(total) > 100_000:
        return set()
    width, first = len(number), 0 if int(number) == 0 else 1
    return {f"{before}{i:0{width}d}-of-{total}{after}" for i in range(first, int(total) + first)}
