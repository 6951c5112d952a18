"""What git says about a folder: commit, branch, and whether the files differ from the commit.

The folder may belong to anybody, and a repository's own configuration can name programs that git then
runs (core.fsmonitor, hooks, content filters, transports of a partial clone). None of them is run: each
is switched off on the command line, which wins over the repository. The filters have free names, so
they are listed first, which runs nothing.

Where git is missing, refuses the folder ("dubious ownership") or takes too long, the commit and the
branch are read from the files in .git and `dirty` is unknown. Nothing here raises.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gpu_train import environment

TIMEOUT_S = 10.0
_SMALL_BYTES = 64 << 10
_PACKED_REFS_BYTES = 64 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SAFE: tuple[str, ...] = (
    "-c", "core.fsmonitor=",
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.sshCommand=false",
    "-c", "core.askPass=",
    "-c", "protocol.allow=never",
    "-c", "credential.helper=",
)  # fmt: skip
_FILTER_OFF = ("clean=", "smudge=", "process=", "required=false")
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
_REDIRECTING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX",
                "GIT_OBJECT_DIRECTORY", "GIT_EXTERNAL_DIFF", "GIT_TRACE")  # fmt: skip
"""Variables by which a calling git (a hook, an alias) would point us at another repository."""


@dataclass(frozen=True, slots=True)
class GitFacts:
    """The state of a working tree.

    Attributes:
        commit: the full hex name of HEAD's commit; None before the first one.
        branch: the branch's short name; None on a detached HEAD.
        dirty: whether files below the folder differ from the commit, untracked and not ignored ones
            included; None when git could not be asked. Changes inside submodules are not looked for.
    """

    commit: str | None
    branch: str | None
    dirty: bool | None

    def to_row(self) -> dict[str, Any]:
        """The facts as msgpack and JSON types."""
        return {"commit": self.commit, "branch": self.branch, "dirty": self.dirty}

    @classmethod
    def from_row(cls, row: Mapping[str, Any] | None) -> Self | None:
        """Read a row back; None stays None."""
        return None if row is None else cls(row.get("commit"), row.get("branch"), row.get("dirty"))


def git_facts(path: Path, *, timeout_s: float = TIMEOUT_S, environ: Mapping[str, str] | None = None) -> GitFacts | None:
    """The facts about the folder `path`, or None when it is in no git working tree.

    Waits for git at most about `timeout_s` seconds. `environ` is what git starts from, by default this
    process's environment; what would point git at another repository is taken out of it.
    """
    found = _git_dir(path)
    if found is None:
        return None
    try:
        return _ask_git(path, timeout_s, environment.current() if environ is None else environ)
    except (OSError, subprocess.SubprocessError, ValueError):
        return _read_by_hand(found)


def _ask_git(path: Path, timeout_s: float, environ: Mapping[str, str]) -> GitFacts:
    """Facts from `git status`; raises OSError, SubprocessError or ValueError when that cannot be had."""
    env = {k: v for k, v in environ.items() if k not in _REDIRECTING} | _ENVIRONMENT
    options = [*_SAFE, *_filters_off(path, timeout_s, env)]
    out = _run(
        path, timeout_s, env,
        [*options, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal",
         "--ignore-submodules=dirty", "--no-renames", "--", "."],
    )  # fmt: skip
    lines = [line for line in out.split(b"\0") if line]
    heads = dict(line[2:].decode("utf-8", "surrogateescape").split(" ", 1) for line in lines if line.startswith(b"# "))
    commit, branch = heads.get("branch.oid", ""), heads.get("branch.head", "")
    return GitFacts(
        commit if _COMMIT.fullmatch(commit) else None,
        None if branch in ("", "(detached)") else branch,
        any(not line.startswith(b"# ") for line in lines),
    )


def _filters_off(path: Path, timeout_s: float, env: Mapping[str, str]) -> list[str]:
    """Options that switch off every content filter that the repository's own configuration names."""
    out = _run(path, timeout_s, env, [*_SAFE, "config", "--list", "--show-scope", "--name-only", "-z"])
    fields = out.split(b"\0")
    names = set()
    for scope, key in zip(fields[::2], fields[1::2], strict=False):
        if scope in (b"local", b"worktree") and key.startswith(b"filter."):
            names.add(key.rpartition(b".")[0].decode("utf-8", "surrogateescape"))
    if any("=" in name for name in names):
        raise ValueError("a filter's name that -c cannot spell, so it cannot be switched off")
    settings = [f"{name}.{off}" for name in sorted(names) for off in _FILTER_OFF]
    return [part for setting in settings for part in ("-c", setting)]


def _run(path: Path, timeout_s: float, env: Mapping[str, str], arguments: Sequence[str]) -> bytes:
    """Standard output of one git command that succeeded."""
    done = subprocess.run(
        ["git", *arguments], cwd=path, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, timeout=timeout_s, check=True,
    )  # fmt: skip
    return done.stdout


def _git_dir(path: Path) -> Path | None:
    """The repository folder that governs `path`, found upward; a `.git` file is followed."""
    here = Path(os.path.realpath(path))
    for folder in (here, *here.parents):
        dot = folder / ".git"
        if (dot / "HEAD").is_file():
            return dot
        if dot.is_file():
            text = _text(dot)
            if text.startswith("gitdir: "):
                return folder / text[len("gitdir: ") :].rstrip("\n")
    return None


def _read_by_hand(git_dir: Path) -> GitFacts:
    """Commit and branch from HEAD, loose refs and packed-refs; None for what cannot be read."""
    head = _text(git_dir / "HEAD").strip()
    if not head.startswith("ref: "):
        return GitFacts(head if _COMMIT.fullmatch(head) else None, None, None)
    ref = head[len("ref: ") :]
    common = _text(git_dir / "commondir").strip()
    folders = [git_dir, git_dir / common] if common else [git_dir]
    commit = None if ".." in ref.split("/") or ref.startswith("/") else _look_up(folders, ref)
    return GitFacts(commit, ref.removeprefix("refs/heads/"), None)


def _look_up(folders: Sequence[Path], ref: str) -> str | None:
    """The commit that a ref names, loose or packed."""
    for folder in folders:
        loose = _text(folder / ref).strip()
        if _COMMIT.fullmatch(loose):
            return loose
        for line in _text(folder / "packed-refs", _PACKED_REFS_BYTES).splitlines():
            commit, _, name = line.partition(" ")
            if name == ref and _COMMIT.fullmatch(commit):
                return commit
    return None


def _text(path: Path, limit_bytes: int = _SMALL_BYTES) -> str:
    """The start of a regular file as text; empty when it cannot be read."""
    try:
        # A FIFO planted as .git/HEAD must not hold us up.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        try:
            return file.read(limit_bytes).decode("utf-8", "surrogateescape")
        except OSError:
            return ""
