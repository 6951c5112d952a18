"""What programs read of each listing: the names and types of all fields, the same from release to release."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

import gpu_train

TEXT, INT, NUMBER, FLAG, TIME, OBJECT, TEXTS = "text", "int", "number", "flag", "time", "object", ["text"]
TYPES = {TEXT: str, INT: int, NUMBER: (int, float), FLAG: bool, OBJECT: dict}


def optional(kind: object) -> tuple[object]:
    return (kind,)


def numbers(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(v, int | float) for v in value.values())


def texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


CHECKPOINT = {
    "job_id": TEXT, "checkpoint_id": TEXT, "step": optional(INT), "state": {"verified", "incomplete", "gone"},
    "proof": TEXT, "type": optional({"full", "lora", "optimizer-free", "dcp"}), "base_model": optional(TEXT),
    "size_bytes": INT, "stored_bytes": INT, "created_at": TIME, "metrics": numbers, "tags": texts, "sinks": TEXTS,
    "kept": FLAG,
}  # fmt: skip
JOB = {
    "job_id": TEXT, "name": TEXT, "project": TEXT, "status": TEXT, "exit_code": optional(INT), "reason": TEXT,
    "checkpoints": INT, "command": TEXTS, "provider": TEXT, "code": optional(TEXT), "data": TEXTS, "created_at": TIME,
    "started_at": optional(TIME), "ended_at": optional(TIME), "duration_s": optional(NUMBER),
}  # fmt: skip
CODE = {
    "code": TEXT, "files": INT, "size_bytes": INT, "commit": optional(TEXT), "branch": optional(TEXT),
    "dirty": optional(FLAG), "created_at": TIME, "path": TEXT,
}  # fmt: skip
DATA = {
    "name": TEXT, "version": TEXT, "num_files": INT, "size_bytes": INT, "path": TEXT, "created_at": TIME,
    "registered_at": TIME,
}  # fmt: skip
CHANGE = {"path": TEXT, "change": {"added", "changed", "removed"}}
SINK = {
    "name": optional(TEXT), "address": TEXT, "type": TEXT, "layout": optional(TEXT), "for": TEXTS,
    "limit_bytes_s": optional(NUMBER),
}  # fmt: skip
SCHEMAS: dict[str, tuple[dict[str, object], str, dict[str, object]]] = {
    "jobs list": ({"total_jobs": INT}, "jobs", JOB),
    "projects list": (
        {}, "projects", {"project": TEXT, "jobs": INT, "running": INT, "last_job": TEXT, "last_created_at": TIME}
    ),
    "checkpoints list": ({"job_id": optional(TEXT), "total_checkpoints": INT}, "checkpoints", CHECKPOINT),
    "checkpoints list demo": ({"job_id": TEXT, "total_checkpoints": INT}, "checkpoints", CHECKPOINT),
    "checkpoints list --trash": (
        {"job_id": optional(TEXT), "total_checkpoints": INT}, "checkpoints",
        {**CHECKPOINT, "removed_at": TIME, "removed_by": TEXT, "why": TEXT, "leaves_trash_at": TIME},
    ),
    "code list": ({}, "code", CODE),
    "code diff OLD NEW": ({"old": TEXT, "new": TEXT}, "changes", CHANGE),
    "data list": ({}, "data", DATA),
    "data show set --files": (
        {"name": TEXT, "version": TEXT}, "files", {"path": TEXT, "size_bytes": INT, "sha256": TEXT}
    ),
    "data diff FIRST set": ({"old": TEXT, "new": TEXT}, "changes", CHANGE),
    "jobs diff demo other": (
        {"old": TEXT, "new": TEXT, "total_differences": INT}, "differences",
        {
            "section": {"code", "data", "arguments", "environment", "packages", "settings", "last metrics",
                        "best metrics"},
            "name": TEXT, "old": lambda value: True, "new": lambda value: True,
        },
    ),
    "sinks list": ({}, "sinks", SINK),
    "metrics other": (
        {"job_id": TEXT, "total_reports": INT, "last": numbers, "best": numbers}, "metrics",
        {"step": optional(INT), "time": TIME, "source": {"log", "trainer_state"}, "values": numbers},
    ),
    "sinks status": (
        {}, "sinks",
        {
            "name": optional(TEXT), "address": TEXT, "held": INT, "behind": INT, "behind_bytes": INT,
            "behind_since": optional(TIME), "logs_behind": INT, "attempts": INT, "error": optional(TEXT),
            "failed_at": optional(TIME), "next_at": optional(TIME),
        },
    ),
    "checkpoints files demo": (
        {"job_id": TEXT, "checkpoint_id": TEXT}, "files",
        {
            "path": TEXT, "kind": {"file", "directory", "symlink"}, "size_bytes": INT, "mode": TEXT,
            "modified_at": TIME, "blake3": TEXT, "target": optional(TEXT),
        },
    ),
    "models list": (
        {}, "models",
        {"name": TEXT, "revision": optional(TEXT), "source": TEXT, "files": INT, "size_bytes": INT,
         "stored_bytes": INT, "registered_at": TIME},
    ),
    "config show": ({"home": TEXT}, "settings", {"setting": TEXT, "value": lambda value: True, "origin": TEXT}),
}  # fmt: skip


def check(value: Any, schema: object, where: str) -> None:
    """Raises AssertionError where a value is not what the schema says."""
    match schema:
        case tuple():
            if value is not None:
                check(value, schema[0], where)
        case list():
            assert isinstance(value, list), where
            for one in value:
                check(one, schema[0], where)
        case set():
            assert value in schema, f"{where}: {value!r}"
        case "time":
            assert value.endswith("Z") and datetime.fromisoformat(value), where
        case str():
            assert isinstance(value, TYPES[schema]), f"{where}: {value!r} is no {schema}"
            assert schema == FLAG or not isinstance(value, bool), f"{where}: {value!r} is a flag"
        case _:
            assert callable(schema) and schema(value), f"{where}: {value!r}"


@pytest.fixture
def full(trained):
    """A home with one of everything; the words that stand for names that are made up in it."""
    program = trained.program
    (program.cwd / "data").mkdir()
    (program.cwd / "data" / "a").write_text("1")
    first = json.loads(program("data", "register", "data", "--name", "set", "-o", "json").stdout)["version"]
    (program.cwd / "data" / "b").write_text("2")
    program("data", "register", "data", "--name", "set")
    (program.cwd / "base").mkdir()
    (program.cwd / "base" / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    program("models", "add", "base")
    sink = f'[[sinks.checkpoints]]\ntype = "local"\nname = "nas"\ndest = "{program.cwd}/nas"\n'
    (program.cwd / "gpu-train.toml").write_text(sink)
    with gpu_train.Workspace.open(program.home) as workspace:
        codes = []
        for text in "12":
            (program.cwd / "train.py").write_text(text)
            codes.append(workspace.code.snapshot(program.cwd).id)
        workspace.jobs.put(gpu_train.Job("other-aaaaaa", "other", code=codes[0], gpus="1", created_ns=1))
        workspace.metrics.add("other-aaaaaa", [gpu_train.Metric(1, 1, {"loss": 1.0})])
    program("checkpoints", "tag", "demo@step:200", "k=v")
    program("checkpoints", "rm", "demo@step:1000", "--yes")
    return program, {"OLD": codes[0], "NEW": codes[1], "FIRST": f"set@{first}"}


@pytest.mark.parametrize("command", SCHEMAS)
def test_every_field_of_every_listing(full, command: str) -> None:
    program, words = full
    head, name, row = SCHEMAS[command]
    arguments = [words.get(word, word) for word in command.split()]
    read = json.loads(program(*arguments, "-o", "json").stdout)
    assert read.pop("schema_version") == 1
    found = read.pop(name)
    assert read.keys() == head.keys()
    for key, schema in head.items():
        check(read[key], schema, key)
    assert found, "nothing to check"
    for one in found:
        assert one.keys() == row.keys()
        for key, schema in row.items():
            check(one[key], schema, f"{name}.{key}")
    lines = [json.loads(line) for line in program(*arguments, "-o", "jsonl").stdout.splitlines()]
    assert lines == [{"schema_version": 1, **one} for one in found]
    assert len(program(*arguments, "-q").stdout.splitlines()) == len(found)


@pytest.mark.parametrize(
    ("value", "schema"),
    [(None, TEXT), (True, INT), (1.5, INT), ("x", {"y"}), ([1], TEXTS), ({"a": "b"}, numbers), ("2026-01-01", TIME)],
)
def test_the_check_itself(value: object, schema: object) -> None:
    with pytest.raises(AssertionError):
        check(value, schema, "here")
