"""The training script's side, in this process: inside a made-up job and outside of any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import gpu_train
from gpu_train.active import append_line
from gpu_train.capture.answer import Answers
from gpu_train.home import Home


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been complained about yet in this process."""
    monkeypatch.setattr("gpu_train.complaint._said", set())


@pytest.fixture
def job(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job that this process seems to run in."""
    folder = Home(home).artifacts("job-aaaaaa")
    monkeypatch.setenv("GPU_TRAIN_JOB_ID", "job-aaaaaa")
    monkeypatch.setenv("GPU_TRAIN_CHECKPOINT_DIR", str(folder / "checkpoints"))
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_folders(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_train.checkpoint_dir() == job / "checkpoints"
    assert (job / "checkpoints").is_dir()
    assert gpu_train.load_dir() is None
    monkeypatch.setenv("GPU_TRAIN_LOAD_CHECKPOINT_DIR", "/somewhere")
    assert gpu_train.load_dir() == Path("/somewhere")


def test_outside_of_a_job_everything_still_works(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert gpu_train.checkpoint_dir() == tmp_path / "checkpoints"
    gpu_train.log({"loss": 1.0}, step=1)
    gpu_train.event("nothing")
    with gpu_train.checkpoint(step=3) as path:
        (path / "w.bin").write_bytes(b"w")
    assert (tmp_path / "checkpoints" / "checkpoint-3" / "w.bin").read_bytes() == b"w"
    gpu_train.commit(tmp_path / "checkpoints" / "checkpoint-3")
    assert gpu_train.flush()
    assert not home.exists()


def test_log_and_event_append_lines(job: Path) -> None:
    gpu_train.log({"loss": 0.5, "n": 3}, step=7)
    gpu_train.log({"loss": 0.25})
    gpu_train.event("text \udcff", lr=0.1)
    first, second = lines(job / "logs" / "metrics.jsonl")
    assert (first["step"], first["values"], second["step"]) == (7, {"loss": 0.5, "n": 3}, None)
    (event,) = lines(job / "logs" / "events.jsonl")
    assert (event["text"], event["kind"], event["source"], event["fields"]) == (
        "text \udcff",
        "note",
        "job",
        {"lr": 0.1},
    )


def test_values_like_tensors_are_numbers(job: Path) -> None:
    class Tensor:
        def __float__(self) -> float:
            return 0.5

        def __int__(self) -> int:
            return 4

    gpu_train.log({"loss": Tensor()}, step=Tensor())  # type: ignore[dict-item, arg-type]
    (line,) = lines(job / "logs" / "metrics.jsonl")
    assert (line["values"], line["step"]) == ({"loss": 0.5}, 4)
    with pytest.raises(ValueError, match="metric 'loss' is no number: 'low'"):
        gpu_train.log({"loss": "low"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="step 'one' is no number"):
        gpu_train.log({"loss": 1}, step="one")  # type: ignore[arg-type]


def test_threads_write_whole_lines(job: Path) -> None:
    def work(number: int) -> None:
        for step in range(200):
            gpu_train.log({"value" * 20: number}, step=step)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(job / "logs" / "metrics.jsonl")) == 1600


def test_commit_pins_before_it_returns(job: Path) -> None:
    folder = gpu_train.checkpoint_dir() / "checkpoint-1"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "sub" / "w.bin").write_bytes(b"weights")
    (folder / "link").symlink_to("sub/w.bin")
    gpu_train.commit(folder, step=1, metrics={"loss": 1}, tags={"a": 1})  # type: ignore[dict-item]
    (line,) = lines(job / "control" / "commits.jsonl")
    assert (line["path"], line["step"], line["metrics"], line["tags"]) == (str(folder), 1, {"loss": 1}, {"a": "1"})
    pinned = Path(line["pin"]) / "checkpoint-1"
    assert (pinned / "sub" / "w.bin").samefile(folder / "sub" / "w.bin")
    assert (pinned / "sub" / "empty").is_dir()
    assert os.readlink(pinned / "link") == "sub/w.bin"


def test_commit_of_nothing(job: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist; commit it after it was written"):
        gpu_train.commit("nowhere")


def test_a_checkpoint_appears_whole_or_not_at_all(job: Path) -> None:
    out = job / "checkpoints"
    with gpu_train.checkpoint(step=5, metrics={"loss": 2.0}, tags={"k": "v"}) as path:
        assert path == out / "tmp-checkpoint-5"
        (path / "w.bin").write_bytes(b"new")
        assert not (out / "checkpoint-5").exists()
    assert [p.name for p in out.iterdir()] == ["checkpoint-5"]
    with pytest.raises(ZeroDivisionError), gpu_train.checkpoint(step=6) as path:
        (path / "w.bin").write_bytes(b"half")
        raise ZeroDivisionError
    assert [p.name for p in out.iterdir()] == ["checkpoint-5"]
    assert [(c["step"], c["tags"]) for c in lines(job / "control" / "commits.jsonl")] == [(5, {"k": "v"})]


def test_a_checkpoint_replaces_one_of_its_name(job: Path) -> None:
    for text in (b"old", b"new"):
        with gpu_train.checkpoint(name="mine") as path:
            (path / "w.bin").write_bytes(text)
    assert [p.name for p in (job / "checkpoints").iterdir()] == ["mine"]
    assert (job / "checkpoints" / "mine" / "w.bin").read_bytes() == b"new"


def test_trouble_on_our_side_is_said_once_and_stops_no_training(job: Path, caplog: pytest.LogCaptureFixture) -> None:
    (job / "checkpoints").mkdir(parents=True)
    (job / "logs").touch()  # no folder: nothing can be written below it
    (job / "control").touch()
    (job / "pins").touch()
    for step in (1, 2):
        gpu_train.log({"loss": 1.0}, step=step)
        gpu_train.event("x")
        with gpu_train.checkpoint(step=step) as path:
            (path / "w.bin").write_bytes(b"w")
    assert sorted(p.name for p in (job / "checkpoints").iterdir()) == ["checkpoint-1", "checkpoint-2"]
    assert [(r.name, r.levelname) for r in caplog.records] == [("gpu_train", "WARNING")] * 3
    assert "metrics.jsonl cannot be written" in caplog.text


def test_flush_knows_what_is_stored_waiting_and_lost(job: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = gpu_train.checkpoint_dir()
    for name in ("one.pt", "two.pt", "three.pt"):
        (out / name).write_bytes(b"w")
        gpu_train.commit(out / name)
    one, two, three = (line["id"] for line in lines(job / "control" / "commits.jsonl"))
    answers = job / "control" / "answers.jsonl"
    append_line(answers, {"commit": one, "stored": True})
    append_line(answers, {"commit": two, "stored": False, "why": "it changed"})
    assert not gpu_train.flush(0)
    assert f"{out}/two.pt was committed but is not stored: it changed" in caplog.text
    assert f"not stored after 0 s: {out}/three.pt;" in caplog.text
    thread = threading.Thread(target=append_line, args=(answers, {"commit": three, "stored": True}))
    thread.start()
    assert gpu_train.flush()  # the loss has been told
    thread.join()


def test_an_answer_that_is_read_before_its_commit_counts(job: Path) -> None:
    answers = Answers(job / "control")
    append_line(job / "control" / "answers.jsonl", {"commit": "c1", "stored": True})
    assert answers.wait(0).is_all_stored
    append_line(job / "control" / "commits.jsonl", {"id": "c1", "path": "/x"})
    append_line(job / "control" / "commits.jsonl", {"path": "/of-an-earlier-version"})
    assert answers.wait(0).is_all_stored


@pytest.mark.parametrize("arguments", [{}, {"name": "a/b"}, {"name": ".."}, {"name": ""}])
def test_names_that_a_checkpoint_cannot_have(job: Path, arguments: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="checkpoint"), gpu_train.checkpoint(**arguments):  # type: ignore[arg-type]
        pytest.fail("the block must not run")


def test_only_the_first_rank_speaks(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    gpu_train.log({"loss": 1})
    gpu_train.event("x")
    with gpu_train.checkpoint(step=1) as path:
        (path / "rank1.bin").write_bytes(b"1")
    gpu_train.commit(path)
    assert gpu_train.flush(0)
    assert path == job / "checkpoints" / "tmp-checkpoint-1"
    assert path.is_dir()
    monkeypatch.setenv("RANK", "0")
    with gpu_train.checkpoint(step=1) as same:
        assert same == path
        (path / "rank0.bin").write_bytes(b"0")
    assert sorted(p.name for p in (job / "checkpoints" / "checkpoint-1").iterdir()) == ["rank0.bin", "rank1.bin"]
    assert len(lines(job / "control" / "commits.jsonl")) == 1
    assert not (job / "logs").exists()


def test_importing_and_logging_load_nothing_heavy(job: Path) -> None:
    code = """
import sys, gpu_train
gpu_train.log({"loss": 1}, step=1)
gpu_train.event("x")
with gpu_train.checkpoint(step=1) as path:
    (path / "w").write_bytes(b"w")
gpu_train.flush(0)
heavy = {"numpy", "lmdb", "zstandard", "msgpack", "blake3", "subprocess", "asyncio"}
heavy |= {"torch", "transformers", "lightning", "pytorch_lightning", "accelerate", "fsspec"}
engine = {name for name in sys.modules if name.startswith("gpu_train_cas.")}
print(sorted(heavy & sys.modules.keys()), sorted(engine - {"gpu_train_cas.errors", "gpu_train_cas.lazy"}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[] []\n"
