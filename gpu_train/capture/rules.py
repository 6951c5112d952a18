"""What rules mean for the files of a checkpoint.

A `Rule` is one framework's way; `frameworks` has those that are known, `[[capture.rules]]` in gpu-train.toml adds
others. A rule applies to a checkpoint whose name matches one of `names` and that holds a file for each pattern of
`having`; of several the first decides. While it applies, the checkpoint is whole only once `complete` and `named_in`
are satisfied; until then it is being written, however quiet it is. A rule without both knows no such sign: its files
must prove themselves or come to rest (`judge`). `Rulebook` is all the rules in force.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from math import inf

from gpu_train.capture.pattern import NAME, STEM, any_of, key_of, occurrences, pattern
from gpu_train.rule import Rule

BESIDE = "../"
RESERVED = ("explicit", "files", "quiet", "ended", "imported")
"""Proofs that no rule gives; a rule must not be called like one."""

WEAK = "~"
"""Before a pattern of `ranks` or `parts`: it tells less."""

_RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NUMBERS = re.compile(r"[0-9]+")
_SAYS = ("complete", "writing", "temporary", "named_in", "ranks", "parts", "together", "rest_s")


def check(rule: Rule) -> Rule:
    """The rule, when there is nothing wrong with it.

    Raises:
        ValueError: naming the field and what is wrong with it.
    """
    if not _RULE_NAME.fullmatch(rule.name):
        raise ValueError(f"name {rule.name!r} must be of letters, digits, '.', '_' and '-'")
    if rule.name in RESERVED:
        raise ValueError(f"name {rule.name!r} is what another proof is called; choose another one")
    if not 0 <= rule.rest_s < inf:
        raise ValueError(f"rest_s {rule.rest_s} is no number of seconds")
    if not rule.names:
        raise ValueError('names is empty, so that it applies to nothing; leave it out or write ["*"]')
    if not any(getattr(rule, field) for field in _SAYS):
        raise ValueError(f"it says nothing about when a checkpoint is whole; give one of {', '.join(_SAYS)}")
    for field in ("having", "complete", "writing", "temporary", "named_in", "ranks", "parts", "together"):
        for text in getattr(rule, field):
            _check(field, text, rule)
    return rule


def applies(rule: Rule, name: str, files: Collection[str]) -> bool:
    """Whether a checkpoint of that name with those files is this framework's."""
    if not any(fnmatchcase(name, p) for p in rule.names):
        return False
    return all(any(pattern(p).matches(file) for file in files) for p in rule.having)


def missing(rule: Rule, files: Collection[str], standing: Callable[[str], bool] = lambda sign: True) -> list[str]:
    """What `complete` still wants, as patterns or paths; of the signs only those that are standing count."""
    return list(dict.fromkeys(t for wanted in rule.complete for t in _missing(rule, wanted, files, standing)))


def _missing(rule: Rule, wanted: str, files: Collection[str], standing: Callable[[str], bool]) -> Iterable[str]:
    choices = [pattern(choice) for choice in _choices(wanted)]
    names = sorted({name for choice in choices for name in choice.names})
    there = [
        {key_of(parts, choice.names) for sign, parts in occurrences(choice, files) if standing(sign)}
        for choice in choices
    ]
    for parts in _bindings(rule, names, files):
        if not any(key_of(parts, c.names) in found for c, found in zip(choices, there, strict=True)):
            yield choices[0].filled(parts)


def _bindings(rule: Rule, names: Sequence[str], files: Collection[str]) -> list[Mapping[str, str]]:
    """All that the named parts stand for in the files of `having`; once nothing when there are none."""
    if not names:
        return [{}]
    found: dict[tuple[str, ...], Mapping[str, str]] = {}
    for having in map(pattern, rule.having):
        if set(names) <= set(having.names):
            for _, parts in occurrences(having, files):
                found.setdefault(key_of(parts, names), parts)
    return [found[key] for key in sorted(found)]


def is_sign(rule: Rule, file: str) -> bool:
    """Whether a file is one of `complete`."""
    return any(pattern(choice).matches(file) for wanted in rule.complete for choice in _choices(wanted))


def is_had(rule: Rule, file: str) -> bool:
    """Whether a file is one of `having`."""
    return any(pattern(having).matches(file) for having in rule.having)


def is_of_rank(rule: Rule, file: str) -> bool:
    """Whether a file is one of those of `ranks` that each rank writes."""
    return any(pattern(text).matches(file) for text in rule.ranks if not text.startswith(WEAK))


def tags(rule: Rule, own_name: str, files: Collection[str]) -> Iterable[tuple[str, str]]:
    """For each place where it must be named: the text file, below the checkpoint or with `../`, and its tag there.

    The tag is the name of the folder that `{folder}` stands for, else the checkpoint's own.
    """
    for wanted in rule.named_in:
        for parts in _bindings(rule, pattern(wanted).names, files):
            folder = parts.get("folder", "").rstrip("/")
            yield _normal(pattern(wanted).filled(parts)), folder.rpartition("/")[2] or own_name


def names_it(text: str, tag: str) -> bool:
    """Whether a text names a tag, or one of the same kind with a higher number, which was written later."""
    named = text.strip()
    if named == tag:
        return True
    said, own = _NUMBERS.findall(named), _NUMBERS.findall(tag)
    alike = named.isdecimal() or _NUMBERS.sub("#", named) == _NUMBERS.sub("#", tag)
    return bool(said and own) and alike and int(own[-1]) <= int(said[-1])


class Rulebook:
    """The rules in force, in their order, and what follows from all of them together.

    Attributes:
        rules: those of the user before the built-in ones.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)

    def rule_for(self, name: str, files: Collection[str]) -> Rule | None:
        """The rule that decides about a checkpoint, if any."""
        return next((r for r in self.rules if r.decides and applies(r, name, files)), None)

    @cached_property
    def writing_inside(self) -> re.Pattern[str]:
        """Names of files inside a checkpoint that say that it is being written."""
        return any_of(w for r in self.rules for w in r.writing if not w.startswith(BESIDE))

    @cached_property
    def rank_files(self) -> re.Pattern[str]:
        """Files of which each rank writes one: a number in their names is no step."""
        return any_of(text for rule in self.rules for text in rule.ranks if not text.startswith(WEAK))

    def parts(self, folders: Collection[str], files: Collection[str]) -> set[str]:
        """Those of the folders in a folder that are a part of it, beside its files."""
        return {folder for rule in self.rules if rule.parts for folder in _parts(rule, folders, files)}

    @cached_property
    def text_files(self) -> frozenset[str]:
        """Names of the text files beside checkpoints that name whole ones."""
        return frozenset(
            path.removeprefix(BESIDE)
            for rule in self.rules
            for text in rule.named_in
            for path in [_normal(pattern(text).filled({"folder": ""}))]
            if path.startswith(BESIDE)
        )

    def writing_beside(self, name: str, names: Collection[str]) -> str:
        """Which of the names beside a checkpoint says that it is being written; empty when none does."""
        if not names:
            return ""
        own = {NAME: name, STEM: name.rpartition(".")[0] or name}
        found = (pattern(text).among(own, names) for text in self._writing_beside)
        return next(filter(None, found), "")

    def signs_beside(self, names: Iterable[str]) -> set[str]:
        """Those of the names in a folder that say of something beside them that it is being written."""
        return {name for name in names if self._any_writing_beside.fullmatch(name)}

    @cached_property
    def _any_writing_beside(self) -> re.Pattern[str]:
        return any_of(self._writing_beside)

    @cached_property
    def _writing_beside(self) -> tuple[str, ...]:
        beside = (w.removeprefix(BESIDE) for r in self.rules for w in r.writing if w.startswith(BESIDE))
        return tuple(dict.fromkeys(beside))

    def final_name(self, name: str) -> str | None:
        """The name that something gets once it is whole, if it has a temporary one now."""
        for rule in self.rules:
            for text in rule.temporary:
                parts = pattern(text).match(name)
                if parts is not None and any(fnmatchcase(parts[NAME], p) for p in rule.names):
                    return parts[NAME]
        return None

    def groups(self, names: Collection[str]) -> dict[str, set[str]]:
        """The files in a folder that belong together, by the name of the checkpoint that they are."""
        found: dict[str, set[str]] = {}
        grouped = [name for name in names if self._together.fullmatch(name)]
        for text in dict.fromkeys(text for rule in self.rules for text in rule.together) if grouped else ():
            for name, parts in occurrences(pattern(text), grouped):
                found.setdefault(parts[STEM], set()).add(name)
        return found

    @cached_property
    def _together(self) -> re.Pattern[str]:
        return any_of(text for rule in self.rules for text in rule.together)


def _parts(rule: Rule, folders: Collection[str], files: Collection[str]) -> set[str]:
    sure = any_of(p for p in rule.parts if not p.startswith(WEAK))
    weak = any_of(p.removeprefix(WEAK) for p in rule.parts if p.startswith(WEAK))
    found = {f for f in folders if sure.fullmatch(f)}
    perhaps = {f for f in folders if weak.fullmatch(f)}
    if len(found | perhaps) > 1 or (perhaps and rule.complete and not missing(rule, files)):
        found |= perhaps
    return found


def _choices(text: str) -> list[str]:
    return [choice.strip() for choice in text.split("|")]


def _normal(path: str) -> str:
    """A path without `x/..` in it."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _check(field: str, text: str, rule: Rule) -> None:
    weak = text.removeprefix(WEAK) if field in ("ranks", "parts") else text
    for choice in _choices(text) if field == "complete" else [weak]:
        try:
            names = set(pattern(choice).names)
        except ValueError as e:
            raise ValueError(f"{field} {e}") from None
        if choice.startswith("/"):
            raise ValueError(f"{field} {text!r} must be a path below the checkpoint, not an absolute one")
        _check_names(field, text, names, rule)


def _check_names(field: str, text: str, names: set[str], rule: Rule) -> None:
    known = {name for having in rule.having for name in pattern(having).names}
    if field in ("complete", "named_in") and not any(names <= set(pattern(h).names) for h in rule.having if names):
        unknown = sorted(names - known) or sorted(names)
        if unknown:
            raise ValueError(f"{field} {text!r} has {{{unknown[0]}}} in it, which must come from a pattern of `having`")
    if field == "temporary" and text.count(f"{{{NAME}}}") != 1:
        raise ValueError(f"temporary {text!r} must have {{name}} in it once, for the later name")
    if field == "together" and STEM not in names:
        raise ValueError(f"together {text!r} must have {{stem}} in it, which is what the checkpoint is called")
    if field == "ranks" and not names - {"folder", STEM}:
        raise ValueError(f"ranks {text!r} must have a number in it, such as {{rank}}")
