"""The README does what it says: two set-up commands, and every command and program on it runs as written."""

from __future__ import annotations

import re
import shutil
from typing import NamedTuple

import pytest

import gpu_train_fuse


class Block(NamedTuple):
    """A fenced block: what follows the fence, and what is in it."""

    kind: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


@pytest.fixture
def readme(project) -> str:
    return (project / "README.md").read_text()


def can_mount() -> bool:
    try:
        gpu_train_fuse.check()
    except gpu_train_fuse.MountUnavailable:
        return False
    return True


def test_there_are_exactly_two_set_up_commands(readme):
    set_up = readme.partition("## Set up")[2].partition("\n## ")[0]
    commands = [line.split("#")[0].strip() for block in blocks(set_up) for line in block.text.splitlines()]
    assert commands == ["make demo", "make test"]


def words(text: str) -> list[str]:
    """The words of some output, without what differs from run to run and from machine to machine."""
    plain = re.sub(r"demo-[a-z2-7]{6}|\b[0-9a-f]{16}\b|\d[\d.e:-]*", "#", text)
    return re.sub(r"# (KiB|MiB)|#(m #)?s\b", "#", plain).split()


def test_the_first_screen_is_what_one_sees(readme, shell, project, monkeypatch):
    monkeypatch.setenv("HOME", str(shell.folder.parent))
    monkeypatch.delenv("GPU_TRAIN_HOME")
    shutil.copy(project / "demo" / "train.py", shell.folder)
    [screen] = [block.text for block in blocks(readme) if block.kind == "console"]
    for step in screen.removeprefix("$ ").split("\n$ "):
        command, _, shown = step.partition("\n")
        said = iter(words(shell(f"{command} 2>&1")))
        for word in words(shown.replace("...\n", "")):
            assert word in said, f"`{command}` does not say {word!r} there"  # and whatever comes later, comes later


def test_usage_runs_as_written(readme, shell):
    usage = readme.partition("## Usage")[2].partition("\n## ")[0]
    found = blocks(usage)
    assert {block.kind for block in found} == {"sh", "sh mount", "python"}
    for block in found:
        match block.kind:
            case "python" if block.text.startswith("# train.py\n"):
                (shell.folder / "train.py").write_text(block.text)
            case "python":
                (shell.folder / "snippet.py").write_text(block.text)
                shell("python snippet.py")
            case "sh mount" if not can_mount():
                continue
            case _:
                shell(block.text)
    weights = bytes([200 % 251]) * 1_000_000
    assert (shell.folder / "weights.bin").read_bytes() == weights
    assert (shell.folder / "restored" / "weights.bin").read_bytes() == bytes([100]) * 1_000_000
    assert (shell.folder / "code-as-it-ran" / "train.py").read_text() == (shell.folder / "train.py").read_text()
    if can_mount():
        assert (shell.folder / "best.bin").read_bytes() == bytes([300 % 251]) * 1_000_000


def test_every_file_and_heading_that_it_links_to_is_there(readme, project):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in link]
    assert links
    for link in links:
        assert (project / link.partition("#")[0]).exists(), link
