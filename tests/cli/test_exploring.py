"""`checkpoints tensors` and `checkpoints diff` as a person and a program see them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from gpu_train_cas.pack import PackReader


@pytest.fixture
def run(program, safetensors):
    """A job of two checkpoints; one tensor's name would turn a terminal red."""
    rng = np.random.default_rng(1)
    arrays = {
        "model.embed.weight": rng.standard_normal((300, 200), dtype=np.float32),
        "model.norm": np.ones(8, np.uint16),
    }
    arrays |= {"evil\x1b[31m\n\u202e": np.zeros(3, np.int64)}
    for step in (1, 2):
        folder = program.cwd / "run" / f"checkpoint-{step}"
        safetensors(folder / "model.safetensors", arrays)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        arrays["model.embed.weight"] = arrays["model.embed.weight"] + np.float32(0.5)
    program("checkpoints", "import", program.cwd / "run", "--job", "job")
    return program


def test_tensors(run) -> None:
    done = run("checkpoints", "tensors", "job")
    assert done.stdout.splitlines()[0].split() == ["NAME", "DTYPE", "SHAPE", "SIZE", "FILE"]
    assert "model.embed.weight" in done.stdout
    assert "300x200" in done.stdout
    assert "3 tensors, 60,008 parameters, 234 KiB" in done.stderr
    assert "it can serve, not resume: it has no optimizer state" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert r"evil\x1b[31m\n\u202e" in done.stdout
    read = json.loads(run("checkpoints", "tensors", "job@latest/model.safetensors", "-o", "json").stdout)
    assert (read["total_tensors"], read["parameters"], read["dtypes"]["BF16"]["size_bytes"]) == (3, 60_008, 16)
    assert read["tensors"][0]["parts"][0]["path"] == "model.safetensors"
    table = list(csv.DictReader(io.StringIO(run("checkpoints", "tensors", "job", "-o", "csv").stdout)))
    assert [row["shape"] for row in table] == ["[300, 200]", "[8]", "[3]"]


def test_names_patterns_and_figures(run) -> None:
    def names(*words: str) -> list[str]:
        return run("checkpoints", "tensors", "job", *words, "-q").stdout.splitlines()

    assert names("model.norm") == ["model.norm"]
    assert names("--filter", "embed") == ["model.embed.weight"]
    assert names("--filter", "model.*") == ["model.embed.weight", "model.norm"]
    assert "no tensor 'absent'" in run("checkpoints", "tensors", "job", "absent", code=3).stderr
    assert run("checkpoints", "tensors", "job/trainer_state.json").stdout == ""
    [row] = map(
        json.loads, run("checkpoints", "tensors", "job", "model.norm", "--stats", "-o", "jsonl").stdout.splitlines()
    )
    assert (row["zeros"], row["nans"], row["damage"]) == (0, 0, None)
    assert row["norm"] == pytest.approx(8**0.5 * 2.0**-133, rel=1e-3)  # 1 as the bits of a BF16 is a tiny number
    shown = run("checkpoints", "tensors", "job", "--stats").stdout.splitlines()[0]
    assert shown.split() == ["NAME", "DTYPE", "SHAPE", "MIN", "MAX", "MEAN", "STD", "NORM", "ZEROS", "NAN", "INF"]


def test_diff(run) -> None:
    done = run("checkpoints", "diff", "job@step:1", "job@step:2")
    lines = done.stdout.splitlines()
    assert lines[:3] == ["M  model.safetensors", "M  trainer_state.json", ""]
    assert lines[3].split() == ["STATE", "RELATIVE", "LARGEST", "CHANGED", "DTYPE", "SHAPE", "NAME"]
    state, relative, *_ = lines[4].split()
    assert state == "changed"
    assert float(relative) == pytest.approx(0.5 / 1.25**0.5, rel=0.02)  # 0.5 on numbers with a deviation of 1
    assert len(lines) == 5
    assert done.stderr.startswith("1 changed, 2 identical")
    read = json.loads(run("checkpoints", "diff", "job@step:1", "job@step:2", "--all", "-o", "json").stdout)
    assert read["files"] == {"added": [], "removed": [], "changed": ["model.safetensors", "trainer_state.json"]}
    assert [row["state"] for row in read["tensors"]] == ["changed", "identical", "identical"]
    assert read["tensors"][0]["largest_change"] == pytest.approx(0.5, abs=1e-6)
    same = run("checkpoints", "diff", "job@step:1", "job@step:1")
    assert (same.stdout, same.stderr) == ("", "no tensor differs\n3 identical\n")
    limited = run("checkpoints", "diff", "job@step:1", "job@step:2", "--all", "--weights-only", "--limit", "1")
    assert "1 more tensor not shown" in limited.stderr


def test_damage_is_told_for_its_tensor_and_the_rest_goes_on(run) -> None:
    for path in run.home.rglob("*.pack"):
        with PackReader(path) as reader:
            largest = max(reader.index(), key=lambda entry: entry.header.stored_bytes)
        with path.open("r+b") as pack:
            pack.seek(largest.end - 1)
            last = pack.read(1)
            pack.seek(largest.end - 1)
            pack.write(bytes([last[0] ^ 1]))
    done = run("checkpoints", "tensors", "job@step:1", "--stats", code=4)
    assert "warning: tensor model.embed.weight: " in done.stderr
    assert "model.norm" in done.stdout
    done = run("checkpoints", "diff", "job@step:1", "job@step:2", code=4)
    assert "damaged" in done.stdout
    assert "warning: tensor model.embed.weight: " in done.stderr


def test_a_hostile_header_is_damage_in_a_moment(program, safetensors) -> None:
    folder: Path = program.cwd / "checkpoint-1"
    safetensors(folder / "good.safetensors", {"w": np.ones(9, np.float32)})
    (folder / "evil\x1b]0;x\x07.safetensors").write_bytes((80_000).to_bytes(8, "little") + b'{"a":' + b"[" * 80_000)
    program("checkpoints", "import", folder, "--job", "job")
    done = program("checkpoints", "tensors", "job@checkpoint-1", code=4)
    assert "\x1b" not in done.stdout + done.stderr
    assert r"warning: evil\x1b]0;x\x07.safetensors: " in done.stderr
    assert "w  " in done.stdout


def test_show_says_what_a_checkpoint_is_good_for(run) -> None:
    assert (
        "can                 serve, not resume: it has no optimizer state\n" in run("checkpoints", "show", "job").stdout
    )
    read = json.loads(run("checkpoints", "show", "job", "-o", "json").stdout)
    assert read["use"] == "serve"
    assert read["holds"] == {"weights": True, "optimizer": False, "scheduler": False, "rng": False}
