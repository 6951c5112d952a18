"""What is left out of a project's folder, the same for code versions and for transfers.

Three layers, the later ones win:

1. the defaults below: version control, virtual environments, caches, checkpoints and run logs;
2. `.gitignore` files, only when asked for;
3. patterns from the settings (`defaults.code_exclude`) and `.gpu-trainignore` files, in gitignore's syntax.

Ignore files may lie in any folder and speak about what is below it; a deeper one wins over a higher one.
As in git, a `!pattern` takes a path back in (also one that the defaults leave out), but not from
inside a folder that is itself left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gpu_train_cas.errors import UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = b".gpu-trainignore"
GITIGNORE_FILE = b".gitignore"

DEFAULT_FOLDERS = frozenset({
    b".git", b".hg", b".svn", b".jj",
    b".venv", b"venv", b"node_modules", b".eggs", b".tox", b".nox",
    b"__pycache__", b".cache", b".mypy_cache", b".ruff_cache", b".pytest_cache", b".hypothesis",
    b".ipynb_checkpoints", b".idea", b".gpu-train",
    b"wandb", b"mlruns", b"lightning_logs",
})  # fmt: skip
"""Folders left out by name, wherever they are."""

DEFAULT_CHECKPOINT_FOLDERS = re.compile(
    rb"(tmp-)?checkpoint[-_]\d+|global_step\d+|iter_\d{7}|.*\.orbax-checkpoint-tmp.*"
)
"""Folders that a trainer writes its checkpoints to, by name."""

DEFAULT_FILES = frozenset({b".git", b".DS_Store", b"Thumbs.db", b".coverage"})
"""Files left out by name; `.git` is a file in submodules and linked worktrees."""

DEFAULT_SUFFIXES = (b".pyc", b".pyo", b".swp")
DEFAULT_PREFIXES = (b"events.out.tfevents.",)

_CACHE_TAG = b"CACHEDIR.TAG"
_CACHE_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"  # https://bford.info/cachedir/
_IGNORE_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Patterns:
    """One ignore file.

    Attributes:
        spec: its patterns.
        prefix_bytes: how much of a path leads to its folder, when that lies in the root.
        above: the way from its folder down to the root, with a slash, when that lies above the root.
        from_git: whether it is git's own, weaker than all others.
    """

    spec: GitIgnoreSpec
    prefix_bytes: int
    above: bytes = b""
    from_git: bool = False

    def verdict(self, path: bytes) -> bool | None:
        """True: leave out; False: keep; None: it says nothing."""
        return self.spec.check_file(os.fsdecode(self.above + path[self.prefix_bytes :])).include


@dataclass(frozen=True, slots=True)
class Excludes:
    """The rules that hold inside one folder; `enter` gives those of a folder below it.

    Attributes:
        gitignore: whether `.gitignore` files count.
        always: paths (relative to the root) left out whatever the ignore files say.
        patterns: the ignore files that speak about this folder, strongest first.
    """

    gitignore: bool = False
    always: frozenset[bytes] = frozenset()
    patterns: tuple[_Patterns, ...] = ()

    @classmethod
    def for_root(
        cls, root: Path, *, gitignore: bool = False, lines: Sequence[str] = (), always: Iterable[Path] = ()
    ) -> Self:
        """The rules to begin a walk of `root` with.

        Args:
            root: the project's folder.
            gitignore: whether `.gitignore` files count.
            lines: patterns from the settings; weaker than a `.gpu-trainignore`, stronger than git's.
            always: folders or files to leave out whatever else is said, such as the home and the job's
                checkpoints; those that do not lie below `root` are ignored.

        Raises:
            UsageError: for a pattern in `lines` that git would not accept.
        """
        real = os.path.realpath(os.fsencode(root))
        inside = (os.path.relpath(os.path.realpath(os.fsencode(p)), real) for p in always)
        below = (p for p in inside if p not in {b".", b".."} and not p.startswith(b"../"))
        patterns = [_Patterns(_compile(lines, "defaults.code_exclude"), 0)] if lines else []
        return cls(gitignore, frozenset(below), (*patterns, *(_git_above(real) if gitignore else ())))

    def enter(self, folder: bytes, path: bytes, names: Collection[bytes]) -> Excludes:
        """The rules inside a folder of those `names`.

        Args:
            folder: where it is on disk.
            path: the same relative to the root, with a slash at its end; empty for the root.
            names: what it holds.

        Raises:
            UsageError: for a pattern that git would not accept in a `.gpu-trainignore`.
        """
        patterns = self.patterns
        if self.gitignore and GITIGNORE_FILE in names:
            spec = _read(os.path.join(folder, GITIGNORE_FILE), strict=False)
            ours = sum(not p.from_git for p in patterns)
            patterns = (*patterns[:ours], _Patterns(spec, len(path), from_git=True), *patterns[ours:])
        if IGNORE_FILE in names:
            spec = _read(os.path.join(folder, IGNORE_FILE), strict=True)
            patterns = (_Patterns(spec, len(path)), *patterns)
        return self if patterns is self.patterns else Excludes(self.gitignore, self.always, patterns)

    def leaves_out(self, path: bytes, name: bytes, *, is_folder: bool) -> bool | None:
        """Whether a path is left out: True, False by somebody's wish, or None when no name rule speaks.

        A folder with None is still left out when `looks_generated` says so.
        """
        if path in self.always:
            return True
        asked = path + b"/" if is_folder else path
        for patterns in self.patterns:
            verdict = patterns.verdict(asked)
            if verdict is not None:
                return verdict
        if is_folder:
            return True if name in DEFAULT_FOLDERS or DEFAULT_CHECKPOINT_FOLDERS.fullmatch(name) else None
        left = name in DEFAULT_FILES or name.endswith(DEFAULT_SUFFIXES) or name.startswith(DEFAULT_PREFIXES)
        return True if left else None


def looks_generated(folder: bytes, name: bytes, names: Collection[bytes]) -> bool:
    """Whether what a folder holds says that it can be made again, or holds checkpoints.

    True for a Python or conda environment, for a cache that is tagged as one, and for `checkpoints`
    unless it is a Python package.
    """
    if b"pyvenv.cfg" in names or b"conda-meta" in names:
        return True
    if name == b"checkpoints" and b"__init__.py" not in names:
        return True
    return _CACHE_TAG in names and _start(os.path.join(folder, _CACHE_TAG), 43) == _CACHE_SIGNATURE


def _git_above(root: bytes) -> Iterator[_Patterns]:
    """What a repository's ignore files above `root` say about it, deepest first; nothing outside of one."""
    found, folder, above = [], root, b""
    while not os.path.lexists(os.path.join(folder, b".git")):
        parent, name = os.path.split(folder)
        if parent == folder:
            return
        folder, above = parent, name + b"/" + above
        found.append(_Patterns(_read(os.path.join(folder, GITIGNORE_FILE), strict=False), 0, above, True))
    yield from found
    info = os.path.join(folder, b".git", b"info", b"exclude")
    yield _Patterns(_read(info, strict=False), 0, above, True)


def _read(file: bytes, *, strict: bool) -> GitIgnoreSpec:
    """The patterns of an ignore file; empty when it cannot be read."""
    text = _start(file, _IGNORE_FILE_BYTES).removeprefix(b"\xef\xbb\xbf")
    lines = [os.fsdecode(line.removesuffix(b"\r")) for line in text.split(b"\n")]
    return _compile(lines, os.fsdecode(file) if strict else None)


def _compile(lines: Sequence[str], source: str | None) -> GitIgnoreSpec:
    """The patterns as one; wrong ones are an error that names `source`, or passed over as git does."""
    from pathspec import GitIgnoreSpec  # noqa: PLC0415  # slow to import, and most trees need none

    good = []
    for number, line in enumerate(lines, 1):
        try:
            GitIgnoreSpec.from_lines([line], backend="simple")
        except ValueError as e:
            if source is not None:
                raise UsageError(f"{source}, line {number}: {line!r} is no pattern ({e}); correct or remove it") from e
        else:
            good.append(line)
    return GitIgnoreSpec.from_lines(good, backend="simple")


def _start(file: bytes, limit_bytes: int) -> bytes:
    """The first bytes of a regular file; empty when it cannot be read."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hold us up
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as opened:
        try:
            return opened.read(limit_bytes)
        except OSError:
            return b""
