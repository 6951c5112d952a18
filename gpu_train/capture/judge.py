"""Whether a checkpoint is whole, and by which proof. The strongest proof wins (the package docstring of rules).

What is asked, in this order: does something say that it is being written; does its framework's sign stand (`rules`);
has it rested for as long as that takes; are the files whole by their own account, and all there of which they
speak (`inventory`); does nobody have one open for writing. Where it has less than all before it had (`family`), or
fewer ranks have written than there are, it is given more time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpu_train.capture import rules
from gpu_train.capture.family import Families
from gpu_train.capture.finder import FILE, Beside, Member, text_in
from gpu_train.capture.frameworks import KNOWN, PAUSE_S
from gpu_train.capture.inventory import absent_files, is_torn, ranks_written, told
from gpu_train.capture.rules import BESIDE, Rulebook, names_it
from gpu_train.capture.shape import is_weights, may_have_companions
from gpu_train.rule import Rule
from gpu_train_cas.formats import FileSource, self_proof

EXPLICIT = "explicit"
FILES = "files"
QUIET = "quiet"
ENDED = "ended"

MARKER_REST_S = 0.3
"""Rest after a framework's marker: files of other ranks may still follow."""

JSON_EDGE_BYTES = 256
"""How much of a JSON file's two ends is looked at."""

_REMEMBERED = 100_000


class Verdict(NamedTuple):
    """`proof` when it is whole, else `missing` in words."""

    proof: str = ""
    missing: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it is whole."""
        return bool(self.proof)


class Moment(NamedTuple):
    """What is known beside the files when one is judged.

    Attributes:
        rest_s: how long nothing about it had changed when it was last looked at.
        settle_s: how long that must be without another proof.
        deleted: whether the trainer has deleted it; only links of ours are left, nobody writes any more.
        ended: whether the job is over.
        clean_end: whether it ended with exit code 0.
        busy: what says that it is being written, in it, beside it or in its name; empty when nothing does.
        beside: what lies next to it.
        written_over_after: asks which files were written over when a file already had its present content.
        is_overtaken: asks whether another one of its kind appeared since it changed last.
        is_written: asks whether a process has one of its files open for writing.
        was_written: whether one had when that was asked for the last time, and nothing has changed since.
        world_size: asks how many ranks the job has; 0 when nobody knows.
        is_copy: whether it may have been taken out of its place, away from what lay beside it.
        version: equal for the same files; what was found out by their names need not be found out again.
    """

    rest_s: float
    settle_s: float
    deleted: bool = False
    ended: bool = False
    clean_end: bool = False
    busy: str = ""
    beside: Beside = Beside()
    written_over_after: Callable[[str], Collection[str]] = lambda rel: ()
    is_overtaken: Callable[[], bool] = lambda: False
    is_written: Callable[[], bool] = lambda: False
    world_size: Callable[[], int] = lambda: 0
    was_written: bool = False
    is_copy: bool = False
    version: object = None

    @property
    def is_still(self) -> bool:
        """Whether nobody writes it any more."""
        return self.deleted or self.ended


@dataclass(slots=True)
class _Case:
    """One checkpoint before the judge: its files, and what follows from their names."""

    name: str
    shape: str
    files: Mapping[str, Member]
    path_of: Callable[[str], str]
    rule: Rule | None
    lacking: str
    version: object
    absent: str | None = None

    @property
    def own_name(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def is_quick(self) -> bool:
        """Whether it is a single file of which nothing else is a part."""
        return self.shape == FILE and not may_have_companions(next(iter(self.files)))


class Judge:
    """Judges checkpoints by the rules in force; remembers what it found out about files that have not changed since.

    Attributes:
        families: what the job's checkpoints of one kind have in common; the judge adds each that is whole.
    """

    def __init__(self, rulebook: Rulebook = KNOWN) -> None:
        self.families = Families()
        self._rulebook = rulebook
        self._proofs: dict[Member, bool | None] = {}
        self._cases: dict[str, _Case] = {}

    def verdict(
        self, name: str, shape: str, members: Mapping[str, Member], path_of: Callable[[str], str], moment: Moment
    ) -> Verdict:
        """Judge a checkpoint by its members; `path_of` says where a member's bytes can be read."""
        if moment.busy and not moment.deleted:
            return Verdict(missing=f"its end: {moment.busy} says that it is being written")
        if not moment.is_still and moment.rest_s < MARKER_REST_S and shape != FILE:
            return Verdict(missing="it still changes")
        case = self._case(name, shape, members, path_of, moment)
        if not case.files:
            return Verdict(missing="it has no files yet")
        missing = self._sign(case, moment)
        if missing:
            return Verdict(missing=missing)
        if not moment.is_still and not case.is_quick and moment.rest_s < self._rest_s(case, moment):
            return Verdict(missing=case.lacking or "it still changes")
        if case.absent is None:
            case.absent = self._cut_short(case) or told(absent_files(case.files, case.rule, path_of))
        if case.absent:
            return Verdict(missing=case.absent)
        if not moment.is_still and moment.is_written():
            return Verdict(missing="a process has it open for writing")
        verdict = Verdict(case.rule.name) if case.rule and case.rule.is_marked else self._without_sign(case, moment)
        if verdict.is_whole:
            self.families.learn(name, case.files.keys())
        if verdict.is_whole or moment.is_still:
            self._cases.pop(name, None)
        return verdict

    def is_cut_short(self, member: Member) -> bool:
        """Whether a file was found not to be whole by its own account."""
        return self._proofs.get(member) is False

    def _case(
        self, name: str, shape: str, members: Mapping[str, Member], path_of: Callable[[str], str], moment: Moment
    ) -> _Case:
        known = self._cases.get(name)
        if known is not None and moment.version is not None and known.version == moment.version:
            return known
        files = {rel: m for rel, m in members.items() if m.is_file}
        rule = self._rulebook.rule_for(name.rpartition("/")[2], files.keys()) if files else None
        case = _Case(name, shape, files, path_of, rule, self._lacking(name, files, rule, moment), moment.version)
        if moment.version is not None:
            if len(self._cases) > _REMEMBERED:
                self._cases.clear()
            self._cases[name] = case
        return case

    def _lacking(self, name: str, files: Mapping[str, Member], rule: Rule | None, moment: Moment) -> str:
        """What it probably should have and does not, in words: more time will tell."""
        if self.families.knows(name) or rule is None:
            return self.families.lacking(name, files.keys())
        written, announced = ranks_written(files, rule)
        ranks = (announced or moment.world_size()) if written else 0
        return f"the files of {ranks - written} of {ranks} ranks" if written < ranks else ""

    def _sign(self, case: _Case, moment: Moment) -> str:
        """What the framework's own sign still wants, in words; empty when it stands, or when there is none."""
        if case.rule is None:
            return ""
        missing = rules.missing(case.rule, case.files.keys())
        if not missing:
            again = rules.missing(case.rule, case.files.keys(), lambda sign: not _is_stale(sign, case, moment))
            missing = [f"{wanted} of what was written last" for wanted in again]
        if missing:
            return f"{', '.join(missing)} ({case.rule.name})"
        for path, tag in rules.tags(case.rule, case.own_name, case.files.keys()):
            beside = path.startswith(BESIDE)
            if beside:
                text = moment.beside.texts.get(path.removeprefix(BESIDE))
            else:
                text = text_in(case.path_of(path)) if path in case.files else None
            if not (names_it(text, tag) if text is not None else beside and moment.is_copy):
                return f"the name {tag} in {path.removeprefix(BESIDE)} ({case.rule.name})"
        return ""

    def _rest_s(self, case: _Case, moment: Moment) -> float:
        """How long it must have rested before it counts as finished."""
        if case.rule is not None and case.rule.is_marked:
            return max(MARKER_REST_S, case.rule.rest_s, moment.settle_s if case.lacking else 0)
        pause = max(case.rule.rest_s if case.rule else 0, PAUSE_S if case.lacking else 0)
        return max(moment.settle_s, 0 if moment.is_overtaken() else pause)

    def _without_sign(self, case: _Case, moment: Moment) -> Verdict:
        proven = any(self._proofs.get(m) for m in case.files.values())
        rested = moment.rest_s >= (moment.settle_s if case.is_quick else self._rest_s(case, moment))
        if moment.ended and moment.was_written and not moment.clean_end and not proven:
            return Verdict(missing="its end: a process had it open for writing when the job ended")
        if moment.clean_end:
            return Verdict(FILES if proven else QUIET if rested and not moment.deleted else ENDED)
        if case.lacking and moment.is_still and not rested and not moment.is_overtaken():
            return Verdict(missing=case.lacking)
        if proven and (case.is_quick or rested or moment.deleted):
            return Verdict(FILES)
        if rested and not moment.deleted:
            return Verdict(QUIET)
        if moment.ended:
            return Verdict(missing="proof that it was finished: the job ended while it was being written")
        return Verdict(missing="proof that it was finished")

    def _cut_short(self, case: _Case) -> str:
        """A file that is not whole by its own account, in words; empty when there is none."""
        for rel, member in sorted(case.files.items()):
            path = case.path_of(rel)
            is_sign = case.rule is not None and rules.is_sign(case.rule, rel)
            if self._proof(rel, member, path) is False or (is_sign and is_torn(rel, path)):
                return f"the rest of {rel} (it is cut short)"
        return ""

    def _proof(self, rel: str, member: Member, path: str) -> bool | None:
        if member not in self._proofs:
            if len(self._proofs) > _REMEMBERED:
                self._proofs.clear()
            proof = _ask(rel, member, path)
            if not _is_still(member, path):
                return proof  # of what is being written over it; of this content it says nothing
            self._proofs[member] = proof
        return self._proofs[member]


def _is_stale(rel: str, case: _Case, moment: Moment) -> bool:
    """Whether a sign stands from an earlier content, of which something has been written over since.

    The files of ranks may come after the sign, anew as well. Where it was no weights, it may as well have been
    edited: then time tells.
    """
    rule = case.rule
    again = [w for w in moment.written_over_after(rel) if rule is None or not rules.is_of_rank(rule, w)]
    if any(is_weights(other) or (rule is not None and rules.is_had(rule, other)) for other in again):
        return True
    return bool(again) and not (moment.clean_end or moment.rest_s >= PAUSE_S or moment.is_overtaken())


def _ask(rel: str, member: Member, path: str) -> bool | None:
    """What a file says of itself; a weights file, a sign or JSON without a byte is not complete."""
    name = rel.rpartition("/")[2]
    if member.size_bytes == 0 and (name.endswith(".json") or name == ".metadata"):
        return False  # it is just being written, or the machine went down before it reached the disk
    if member.size_bytes == 0:
        # Any file may be called .bin; one that holds a model is never empty.
        return False if is_weights(name) and (may_have_companions(name) or not name.endswith(".bin")) else None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return (
            False if name.endswith(".json") and _is_cut_json(fd, member.size_bytes) else self_proof(FileSource(fd), rel)
        )
    finally:
        os.close(fd)


def _is_still(member: Member, path: str) -> bool:
    """Whether a file that was asked is as it was when it was looked at; a copy of it always is."""
    try:
        now = Member.of(os.stat(path, follow_symlinks=False))
    except OSError:
        return False
    return now == member or (now.dev, now.ino) != (member.dev, member.ino)


def _is_cut_json(fd: int, size_bytes: int) -> bool:
    """Whether a file begins like JSON's maps and lists and does not end like them."""
    first = os.pread(fd, JSON_EDGE_BYTES, 0).lstrip()[:1]
    last = os.pread(fd, JSON_EDGE_BYTES, max(0, size_bytes - JSON_EDGE_BYTES)).rstrip()[-1:]
    return {b"{": b"}", b"[": b"]"}.get(first, last) != last
