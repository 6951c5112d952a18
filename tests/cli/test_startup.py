"""What the common commands load: each call is a process of its own, so what it imports is what it costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

NEVER = {
    "asyncio", "boto3", "botocore", "email", "fastapi", "http", "huggingface_hub", "importlib.metadata", "jinja2",
    "keyring", "mfusepy", "multiprocessing", "numpy", "pydoc", "rich", "safetensors", "setuptools", "sqlite3", "ssl",
    "textual", "torch", "unittest", "urllib.request", "xml",
}  # fmt: skip
"""What no common command loads; a name stands for all below it."""

RARE = {
    "csv", "difflib", "pathspec", "pyfastcdc", "secrets", "subprocess", "tarfile", "tempfile", "tomllib",
    "gpu_train.code", "gpu_train.data_version", "gpu_train.launch", "gpu_train.provider",
    "gpu_train.tensors", "gpu_train_cas.check", "gpu_train_cas.compaction", "gpu_train_cas.gc", "gpu_train_cas.mark",
    "gpu_train_cas.repair", "gpu_train_cas.stats", "gpu_train_fuse",
}  # fmt: skip
"""What importing, listing and reading checkpoints do without."""

STORE = {"gpu_train.workspace", "gpu_train_cas.registry", "lmdb", "msgpack"}
WRITING = {"gpu_train.capture", "gpu_train.importer", "gpu_train_cas.ingest"}

TELL = """
import atexit, os, sys

@atexit.register
def tell():
    with open(f"{os.environ['LOADED']}/{os.getpid()}", "w") as file:
        print(" ".join(sys.orig_argv), *sys.modules, sep="\\n", file=file)
"""
Loaded = Callable[..., dict[str, set[str]]]


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """Runs a command; gives the modules that each Python process had loaded when it ended, by its command line."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(TELL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")

    def run(program, *words: str | Path, **environment: str) -> dict[str, set[str]]:
        notes = tmp_path / "loaded"
        notes.mkdir()
        program.spawned(*words, LOADED=str(notes), **environment)
        told = [note.read_text().splitlines() for note in notes.iterdir()]
        assert told, "no process told what it had loaded"
        return {line: set(names) for line, *names in told}

    return run


def only(processes: dict[str, set[str]]) -> set[str]:
    """The modules of the one process that there was, and the packages above them."""
    [modules] = processes.values()
    return modules


@pytest.mark.parametrize("words", ["--help", "checkpoints --help", "checkpoints import --help", "run --help"])
def test_help_loads_no_store(program, loaded: Loaded, words: str) -> None:
    found = only(loaded(program, *words.split()))
    assert "click" in found
    assert sorted(found & (NEVER | RARE | WRITING | STORE | {"logging"})) == []


def test_completion_loads_no_store(program, loaded: Loaded) -> None:
    asked = {"_GPU_TRAIN_COMPLETE": "bash_complete", "COMP_WORDS": "gpu-train checkpoints im", "COMP_CWORD": "2"}
    found = only(loaded(program, **asked))
    assert "click.shell_completion" in found
    assert sorted(found & (NEVER | RARE | WRITING | STORE | {"logging"})) == []


def test_showing_looks_at_the_trainers_files_and_loads_no_writer(trained, loaded: Loaded) -> None:
    found = only(loaded(trained.program, "checkpoints", "show", "demo"))
    assert found >= STORE | {"gpu_train.capture.finder", "gpu_train.training_state"}
    writing = {"gpu_train.capture.storing", "gpu_train.capture.tracker", "gpu_train_cas.ingest"}
    assert sorted(found & (NEVER | RARE | writing | {"gpu_train_cas.restore"})) == []


def test_listing_tensors_reads_no_number(trained, loaded: Loaded) -> None:
    found = only(loaded(trained.program, "checkpoints", "tensors", "demo/sub"))
    assert "gpu_train.tensor_table" in found
    assert sorted(found & (NEVER | WRITING | {"gpu_train_cas.restore"})) == []


@pytest.mark.parametrize("words", ["checkpoints list demo", "jobs"])
def test_listing_loads_no_reader_and_no_writer(trained, loaded: Loaded, words: str) -> None:
    found = only(loaded(trained.program, *words.split()))
    assert found >= STORE
    assert sorted(found & (NEVER | RARE | WRITING | {"gpu_train_cas.restore", "gpu_train_cas.reader"})) == []


@pytest.mark.parametrize("words", ["checkpoints cat demo/trainer_state.json", "checkpoints restore demo --dest here"])
def test_reading_loads_no_writer(trained, loaded: Loaded, words: str) -> None:
    found = only(loaded(trained.program, *words.split()))
    assert found >= STORE | {"gpu_train_cas.reader"}
    assert sorted(found & (NEVER | RARE | WRITING)) == []


def test_importing_loads_what_storing_that_checkpoint_needs(program, safetensors, loaded: Loaded) -> None:
    source = program.cwd / "checkpoint-1"
    safetensors(source / "model.safetensors", {"w": np.arange(100_000, dtype=np.float32)})
    (source / "trainer_state.json").write_text('{"global_step": 1}')
    found = only(loaded(program, "checkpoints", "import", source, "--job", "new"))
    assert found >= STORE | WRITING | {"gpu_train_cas.formats.safetensors"}
    others = {f"gpu_train_cas.formats.{name}" for name in ("archive", "dcp", "gguf", "npy", "pickle", "torchzip")}
    assert sorted(found & (NEVER | RARE | others | {"gpu_train_cas.restore"})) == []


def test_a_run_and_its_agent(program, loaded: Loaded) -> None:
    (program.cwd / "train.sh").write_text("echo trained\n")
    processes = loaded(program, "run", "--name", "light", "--", "sh", "train.sh")
    [runner] = [modules for line, modules in processes.items() if "gpu_train.capture" not in line]
    [agent] = [modules for line, modules in processes.items() if "gpu_train.capture " in line]
    [sentry] = [modules for line, modules in processes.items() if "gpu_train.capture.watch " in line]
    assert "gpu_train.provider.local" in runner
    assert sorted(runner & (NEVER | {"gpu_train_cas.check", "gpu_train_cas.gc", "gpu_train_fuse", "tarfile"})) == []
    assert "gpu_train.capture.agent" in agent
    assert sorted(agent & (NEVER | {"click", "gpu_train_cas.check", "gpu_train_cas.gc", "gpu_train_cas.restore"})) == []
    assert "gpu_train.capture.watch.sentry" in sentry
    assert sorted(sentry & (NEVER | STORE | {"click", "gpu_train_cas.ingest", "gpu_train.capture.agent"})) == []
