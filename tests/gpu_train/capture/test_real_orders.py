"""The orders of tests/kit/orders.toml are those of the libraries that are installed here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

KIT = Path(__file__).parents[2] / "kit"


def told(lines: list[str]) -> list[str]:
    """The steps, with one name for all temporary files and without texts; a file may be closed where it is renamed."""
    plain = [re.sub(r"\.tmp\w+", ".tmp", line.partition(" = ")[0]) for line in lines]
    return [line for line in plain if line and not (line.startswith("close ") and ".tmp" in line)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What real libraries did, step by step, by the folder of each."""
    root = tmp_path_factory.mktemp("real")
    command = [sys.executable, KIT / "record_order.py", root, sys.executable, KIT / "trainers" / "real.py", root]
    environment = {**os.environ, "HF_HOME": str(root / "hf"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    steps: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        step = re.match(r"(open|close|mkdir|rename|unlink|rmdir) (\w+)/(.*)", line)
        if step is not None:
            verb, library, rest = step.groups()
            steps.setdefault(library, []).append(f"{verb} {rest.replace(f' {library}/', ' ')}")
    return steps


@pytest.mark.parametrize(
    ("library", "order"),
    [
        ("transformers", "transformers 5.24 Trainer"),
        ("accelerate", "accelerate 1.15, automatic names"),
        ("peft", "peft 0.21"),
    ],
)
def test_files_come_in_the_order_that_is_tested(recorded: dict[str, list[str]], library: str, order: str) -> None:
    orders = tomllib.loads((KIT / "orders.toml").read_text())["order"]
    (steps,) = [o["steps"].split("\n") for o in orders if o["name"] == order]
    expected = told([step for step in steps if not step.startswith("whole ")])
    # A folder's files may be removed in any order.
    assert [s for s in told(recorded[library]) if not s.startswith("unlink ")] == [
        s for s in expected if not s.startswith("unlink ")
    ]


def test_a_distributed_checkpoint_keeps_its_old_metadata_until_the_end(recorded: dict[str, list[str]]) -> None:
    save = ["open step-5/__0_0.distcp", "close step-5/__0_0.distcp", "open step-5/.metadata.tmp"]
    assert told(recorded["torch"]) == [
        "mkdir step-5", *told(save), "rename step-5/.metadata.tmp step-5/.metadata",
        *told(save), "unlink step-5/.metadata", "rename step-5/.metadata.tmp step-5/.metadata",
    ]  # fmt: skip
