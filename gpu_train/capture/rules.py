"""When is a checkpoint whole? The frameworks' own signs, as data.

A rule applies to a checkpoint whose name matches one of `names` and that holds a file for each pattern of `having`.
While it applies, the checkpoint is whole only once a file for each pattern of `complete` is there; until then
it is being written, however quiet it is. Patterns are those of `fnmatch`, on paths below the checkpoint.
Without a rule that applies, files must prove themselves or come to rest (`judge`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase, translate
from functools import cache
from typing import NamedTuple


class Rule(NamedTuple):
    """One framework's way to finish a checkpoint.

    Attributes:
        name: what the record calls this proof.
        names: patterns of the checkpoint's own name (its last component).
        having: patterns that must each match some file, so that the rule applies.
        complete: patterns that must each match some file, so that the checkpoint is whole.
    """

    name: str
    names: tuple[str, ...] = ("*",)
    having: tuple[str, ...] = ()
    complete: tuple[str, ...] = ()

    def applies(self, name: str, files: Collection[str]) -> bool:
        """Whether a checkpoint of that name with those files is this framework's."""
        return any(fnmatchcase(name, p) for p in self.names) and all(_some(p, files) for p in self.having)

    def missing(self, files: Collection[str]) -> list[str]:
        """The patterns of `complete` that no file matches yet."""
        return [p for p in self.complete if not _some(p, files)]


RULES: tuple[Rule, ...] = (
    Rule("hf-trainer", ("checkpoint-[0-9]*",), ("training_args.bin",), ("trainer_state.json",)),
    Rule("hf-trainer", ("checkpoint-[0-9]*",), ("trainer_state.json",), ("trainer_state.json",)),
    Rule("torch-dcp", having=("*.distcp",), complete=(".metadata",)),
    Rule("torch-dcp", having=("*/*.distcp",), complete=("*/.metadata",)),
    Rule("megatron", ("iter_[0-9]*",), ("common.pt",), ("metadata.json",)),
)
"""In order; the first that applies decides."""

IN_PROGRESS = ("checkpoint-is-incomplete.txt", "*.tmp", "*.tmp.*", "*.partial", "*.part", "*.incomplete",
               "*.orbax-checkpoint-tmp*")  # fmt: skip
"""Files whose presence inside a checkpoint says that it is being written. They are never stored."""

NEVER_INSIDE = (*IN_PROGRESS, ".nfs*", "*.lock")
"""Files inside a checkpoint that are no part of it."""

NEVER_A_CHECKPOINT = (".*", "tmp-*", "tmp_*", "*.tmp", "*.tmp-*", "*.tmp.*", "*.partial", "*.part", "*.incomplete",
                      "*.orbax-checkpoint-tmp*", "*-unfinished", "*.lock", "__pycache__")  # fmt: skip
"""Names in the checkpoint folder that are not looked into: temporary and hidden ones."""

UNFINISHED_BESIDE = ("{name}-unfinished", "{stem}-unfinished")
"""Names beside a checkpoint that say that it is being written (NeMo)."""


def rule_for(name: str, files: Collection[str], rules: Sequence[Rule] = RULES) -> Rule | None:
    """The rule that applies to a checkpoint, if any."""
    return next((r for r in rules if r.applies(name, files)), None)


def matcher(patterns: Iterable[str]) -> re.Pattern[str]:
    """One expression that matches what any of the patterns does."""
    return _matcher(tuple(patterns))


@cache
def _matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(p) for p in patterns))


def _some(pattern: str, files: Collection[str]) -> bool:
    return pattern in files or any(fnmatchcase(f, pattern) for f in files)
