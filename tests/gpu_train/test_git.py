from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_train.git import GitFacts, git_facts

Git = Callable[..., str]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "user"
    home.mkdir()
    return {
        "PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
    }  # fmt: skip


@pytest.fixture
def repo(tmp_path: Path, env: dict[str, str]) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, env, "init", "-q", "-b", "main")
    (folder / "train.py").write_text("print(1)\n")
    git(folder, env, "add", ".")
    git(folder, env, "commit", "-q", "-m", "one")
    return folder


def git(folder: Path, env: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def without_git(tmp_path: Path, env: dict[str, str]) -> dict[str, str]:
    empty = tmp_path / "empty"
    empty.mkdir()
    return env | {"PATH": str(empty)}


def test_a_clean_tree(repo: Path, env: dict[str, str]) -> None:
    assert git_facts(repo, environ=env) == GitFacts(git(repo, env, "rev-parse", "HEAD"), "main", False)


def test_a_changed_file_and_an_untracked_one_are_dirty(repo: Path, env: dict[str, str]) -> None:
    (repo / "new.py").write_text("")
    facts = git_facts(repo, environ=env)
    assert facts is not None and facts.dirty is True
    (repo / "new.py").unlink()
    (repo / "train.py").write_text("print(2)\n")
    facts = git_facts(repo, environ=env)
    assert facts is not None and facts.dirty is True


def test_an_ignored_file_is_not_dirty(repo: Path, env: dict[str, str]) -> None:
    (repo / ".gitignore").write_text("*.log\n")
    git(repo, env, "add", ".")
    git(repo, env, "commit", "-q", "-m", "ignore")
    (repo / "x.log").write_text("x")
    facts = git_facts(repo, environ=env)
    assert facts is not None and facts.dirty is False


def test_only_the_folder_asked_about_counts(repo: Path, env: dict[str, str]) -> None:
    (repo / "sub").mkdir()
    (repo / "sub" / "a.py").write_text("a")
    git(repo, env, "add", ".")
    git(repo, env, "commit", "-q", "-m", "sub")
    (repo / "train.py").write_text("changed")
    facts = git_facts(repo / "sub", environ=env)
    assert facts is not None and facts.dirty is False and facts.branch == "main"


def test_before_the_first_commit_and_on_a_detached_head(tmp_path: Path, repo: Path, env: dict[str, str]) -> None:
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    git(fresh, env, "init", "-q", "-b", "trunk")
    assert git_facts(fresh, environ=env) == GitFacts(None, "trunk", False)
    git(repo, env, "checkout", "-q", "--detach")
    facts = git_facts(repo, environ=env)
    assert facts is not None and facts.branch is None and facts.commit is not None


def test_no_repository_is_none(tmp_path: Path, env: dict[str, str]) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    assert git_facts(plain, environ=env) is None


def test_without_git_commit_and_branch_are_read_from_the_files(tmp_path: Path, repo: Path, env: dict[str, str]) -> None:
    commit = git(repo, env, "rev-parse", "HEAD")
    bare = without_git(tmp_path, env)
    assert git_facts(repo, environ=bare) == GitFacts(commit, "main", None)
    git(repo, env, "pack-refs", "--all")
    assert not (repo / ".git" / "refs" / "heads" / "main").exists()
    assert git_facts(repo, environ=bare) == GitFacts(commit, "main", None)
    git(repo, env, "checkout", "-q", "--detach")
    assert git_facts(repo, environ=bare) == GitFacts(commit, None, None)


def test_a_linked_worktree_without_git(tmp_path: Path, repo: Path, env: dict[str, str]) -> None:
    git(repo, env, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    commit = git(repo, env, "rev-parse", "HEAD")
    assert git_facts(tmp_path / "side", environ=env) == GitFacts(commit, "side", False)
    assert git_facts(tmp_path / "side", environ=without_git(tmp_path, env)) == GitFacts(commit, "side", None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_another_owner_is_read_by_hand(repo: Path, env: dict[str, str]) -> None:
    commit = git(repo, env, "rev-parse", "HEAD")
    for path in (repo, repo / ".git"):
        os.chown(path, 12345, 12345)
    assert git_facts(repo, environ=env) == GitFacts(commit, "main", None)


def test_a_git_that_hangs_is_given_up(tmp_path: Path, repo: Path, env: dict[str, str]) -> None:
    commit = git(repo, env, "rev-parse", "HEAD")
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "git").write_text("#!/bin/sh\nexec sleep 600\n")
    (fake / "git").chmod(0o755)
    hanging = env | {"PATH": f"{fake}:{env['PATH']}"}
    assert git_facts(repo, environ=hanging, timeout_s=0.2) == GitFacts(commit, "main", None)


def test_variables_of_a_calling_git_do_not_redirect(tmp_path: Path, repo: Path, env: dict[str, str]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, env, "init", "-q", "-b", "elsewhere")
    facts = git_facts(repo, environ=env | {"GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other)})
    assert facts is not None and facts.branch == "main"


def test_a_hostile_configuration_runs_nothing(tmp_path: Path, repo: Path, env: dict[str, str]) -> None:
    witness = tmp_path / "witness"
    script = tmp_path / "evil.sh"
    script.write_text(f'#!/bin/sh\necho "$0 $@" >> {witness}\ncat\n')
    script.chmod(0o755)
    (repo / ".gitattributes").write_text("*.py filter=evil\n*.bin filter=odd.name\n")
    (repo / "a.bin").write_text("x")
    git(repo, env, "add", ".")
    git(repo, env, "commit", "-q", "-m", "two")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("post-index-change", "pre-auto-gc", "fsmonitor-watchman"):
        (hooks / hook).write_text(script.read_text())
        (hooks / hook).chmod(0o755)
    included = tmp_path / "included"
    included.write_text(f'[filter "odd.name"]\n\tclean = {script}\n\tprocess = {script}\n\trequired = true\n')
    for key, value in {
        "core.fsmonitor": str(script), "core.hooksPath": str(hooks), "filter.evil.clean": str(script),
        "filter.evil.smudge": str(script), "core.sshCommand": str(script), "core.pager": str(script),
        "include.path": str(included), "status.submoduleSummary": "true",
    }.items():  # fmt: skip
        git(repo, env, "config", key, value)
    # Same size and another time: git must read the file, through the filters, to know.
    for name, text in (("train.py", "print(3)\n"), ("a.bin", "y")):
        (repo / name).write_text(text)
    plain = subprocess.run(["git", "status", "--porcelain"], cwd=repo, env=env, capture_output=True, check=False)
    assert witness.exists(), f"the trap must work on a plain git: {plain.stderr!r}"
    witness.unlink()
    facts = git_facts(repo, environ=env)
    assert facts is not None and facts.dirty is True
    assert not witness.exists()


def test_a_filter_whose_name_cannot_be_switched_off_keeps_git_away(
    tmp_path: Path, repo: Path, env: dict[str, str]
) -> None:
    witness = tmp_path / "witness"
    with (repo / ".git" / "config").open("a") as config:
        config.write(f'[filter "a=b"]\n\tclean = "touch {witness}; cat"\n')
    (repo / ".gitattributes").write_text("*.py filter=a=b\n")
    (repo / "train.py").write_text("print(4)\n")
    facts = git_facts(repo, environ=env)
    assert facts == GitFacts(git(repo, env, "rev-parse", "HEAD"), "main", None)
    assert not witness.exists()


def test_a_fifo_in_place_of_head_does_not_hang(tmp_path: Path, env: dict[str, str]) -> None:
    folder = tmp_path / "odd"
    (folder / ".git").mkdir(parents=True)
    os.mkfifo(folder / ".git" / "HEAD")
    assert git_facts(folder, environ=env) is None


def test_facts_survive_a_row() -> None:
    facts = GitFacts("a" * 40, "main", None)
    assert GitFacts.from_row(facts.to_row()) == facts
    assert GitFacts.from_row(None) is None
