"""Curves, bars and pictures of what a job reported."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

import gpu_train
from gpu_train import Metric
from gpu_train_cli.chart import POINTS, bars, curves_of, drawn

BRAILLE = range(0x2800, 0x2900)
NAN = float("nan")


def dots(text: str) -> int:
    return sum(ord(c) in BRAILLE and ord(c) != 0x2800 for c in text)


@pytest.fixture
def reported(trained):
    """A job that reported a loss and an accuracy, and a $ and an escape in names."""
    reports = [Metric(i, i, {"zeta": 1.0 * i, "accuracy": i / 50, "loss": 2 / (i + 1)}) for i in range(50)]
    reports += [Metric(60, None, {"odd\x1b[31m $x$": 1.0}), Metric(61, 50, {"loss": NAN})]
    with gpu_train.Workspace.open(trained.program.home) as workspace:
        workspace.metrics.add(trained.job_id, reports)
    return trained.program


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_curves_fit_and_have_neither_colour_nor_escapes(reported, columns: int) -> None:
    out = reported.spawned("metrics", "demo", COLUMNS=str(columns), TERM="xterm-256color").stdout
    assert "\x1b" not in out
    blocks = out.split("\n\n")
    assert blocks[0].startswith("loss: last 0.04, best 0.04 at step 49, 50 values\n")
    assert blocks[2].startswith("accuracy: last 0.98, best 0.98 at step 49, 50 values\n") or "accuracy" in out
    assert max(len(line) for block in blocks for line in block.splitlines()[1:]) <= columns
    assert "loss by step" in blocks[0] and dots(blocks[0]) > columns // 2
    assert "odd\\x1b[31m $x$: last 1, best 1 at report 1, 1 value\n" in out


def test_a_pipe_is_80_columns_wide_and_names_choose(reported) -> None:
    out = reported("metrics", "demo", "zeta").stdout
    assert max(map(len, out.splitlines())) <= 80
    assert "zeta by step" in out and "loss" not in out
    assert "no metric 'losss'; did you" not in out
    assert "has no metric 'losss'; there are loss" in reported("metrics", "demo", "losss", code=3).stderr
    assert "no job" in reported("metrics", "nothing", code=3).stderr


def test_where_nothing_was_reported(trained, tmp_path: Path) -> None:
    done = trained.program("metrics", "demo")
    assert (done.stdout, done.stderr.split(";")[0]) == ("", "demo-abcdef reported no metrics")
    assert "nothing to draw" in trained.program("metrics", "demo", "--png", tmp_path / "a.png", code=3).stderr


def test_rows_for_programs(reported) -> None:
    read = json.loads(reported("metrics", "demo", "-o", "json").stdout)
    assert read["total_reports"] == 52
    assert (read["last"]["loss"], read["best"]["accuracy"]) == (0.04, 0.98)
    assert read["metrics"][1] == {
        "step": 1, "time": "1970-01-01T00:00:00Z", "source": "log",
        "values": {"zeta": 1.0, "accuracy": 0.02, "loss": 1.0},
    }  # fmt: skip
    assert read["metrics"][-1]["values"] == {"loss": "nan"}
    some = json.loads(reported("metrics", "demo", "zeta", "-o", "json").stdout)
    assert some["total_reports"] == 50 and list(some["last"]) == ["zeta"]
    table = list(csv.DictReader(io.StringIO(reported("metrics", "demo", "loss", "accuracy", "-o", "csv").stdout)))
    assert list(table[0]) == ["step", "time", "source", "loss", "accuracy"]
    assert (table[3]["loss"], table[-1]["accuracy"]) == ("0.5", "")
    lines = reported("metrics", "demo", "-o", "jsonl").stdout.splitlines()
    assert json.loads(lines[2])["values"]["zeta"] == 2.0
    assert reported("metrics", "demo", "-q").stdout.splitlines()[:3] == ["zeta", "accuracy", "loss"]


def test_png(reported, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "curves.png"
    said = reported("metrics", "demo", "--png", target)
    assert (said.stdout, said.stderr) == ("", f"drew 4 metrics of demo-abcdef into {target}\n")
    data = target.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 5_000
    reported("metrics", "demo", "loss", "--png", target)
    assert target.read_bytes() != data
    assert [path.name for path in tmp_path.glob("*.tmp")] == []
    failed = reported("metrics", "demo", "--png", tmp_path / "no" / "such.png", code=1)
    assert "No such file or directory" in failed.stderr


def test_without_matplotlib_it_says_what_to_install(reported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as an import that fails
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    done = reported("metrics", "demo", "--png", tmp_path / "a.png", code=2)
    assert "a PNG needs matplotlib: pip install 'gpu-train[plot]'" in done.stderr
    assert not (tmp_path / "a.png").exists()


def test_jobs_show_draws_the_loss(reported) -> None:
    shown = reported("jobs", "show", "demo").stdout
    assert shown.count("by step") == 1 and "loss by step" in shown and dots(shown) > 40
    assert json.loads(reported("jobs", "show", "demo", "-o", "json").stdout)["job_id"] == "demo-abcdef"


def test_stats_draws_where_the_bytes_went(trained) -> None:
    shown = trained.program("stats").stdout
    bar = {line[:24].strip(): line.count("█") for line in shown.split("\n\n")[1].splitlines()}
    assert set(bar) >= {"descriptions", "saved by encoding", "saved by deduplication"}
    assert max(bar.values()) == bar["saved by encoding"] > 30  # what it holds is one byte, many times
    assert max(map(len, shown.split("\n\n")[1].splitlines())) <= 80
    assert json.loads(trained.program("stats", "-o", "json").stdout)["records"] == 3


def test_an_output_without_such_characters(reported) -> None:
    out = reported.spawned("metrics", "demo", "loss", PYTHONIOENCODING="ascii").stdout
    assert out.splitlines()[1].startswith("(no curve: ")
    assert "#####" in reported.spawned("stats", PYTHONIOENCODING="ascii").stdout


def test_a_curve_of_many_points_keeps_its_spikes() -> None:
    number = 20 * POINTS
    reports = [Metric(i, i, {"loss": 100.0 if i == number // 3 else 1.0}) for i in range(number)]
    [curve] = curves_of(reports)
    assert "100.0" in drawn(curve).splitlines()[2]


def test_curves() -> None:
    reports = [
        Metric(1, 2, {"b": 2.0, "loss": 5.0}), Metric(2, 1, {"b": 1.0}), Metric(3, 2, {"b": 3.0, "c": NAN}),
        Metric(4, None, {"free": 1.0}), Metric(5, 9, {"free": 0.5}),
    ]  # fmt: skip
    loss, b, free = curves_of(reports)
    assert (b.name, b.axis, list(b.xs), list(b.ys)) == ("b", "step", [1, 2], [1.0, 3.0])
    assert (free.axis, list(free.xs), free.best) == ("report", [1, 2], (2, 0.5))
    assert loss.best == (2, 5.0)
    [rising] = curves_of([Metric(i, i, {"accuracy": a}) for i, a in enumerate((0.5, 0.9, 0.9, 0.1))])
    assert rising.best == (2, 0.9)


def test_bars_of_nothing() -> None:
    assert bars({}, {}) == ""
    assert bars({"a": 0}, {"a": "0 B"}) == "a  0 B"
