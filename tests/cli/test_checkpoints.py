"""Listing, showing and reading checkpoints."""

import csv
import io
import json
import os
import time

import pytest

import gpu_train


def rows(done) -> list[dict]:
    return json.loads(done.stdout)["checkpoints"]


def test_an_empty_home_says_what_to_do_next(program) -> None:
    done = program("checkpoints")
    assert done.stdout == ""
    assert "no checkpoints yet: `gpu-train run -- python train.py`" in done.stderr
    assert json.loads(program("checkpoints", "list", "-o", "json").stdout) == {
        "schema_version": 1, "job_id": None, "total_checkpoints": 0, "checkpoints": [],
    }  # fmt: skip


def test_the_machine_keys(trained) -> None:
    read = json.loads(trained.program("checkpoints", "list", trained.job_id, "-o", "json").stdout)
    assert read["job_id"] == trained.job_id
    assert read["total_checkpoints"] == 3
    first = read["checkpoints"][0]
    assert first == {
        "job_id": trained.job_id, "checkpoint_id": "checkpoint-500", "step": 500, "state": "verified",
        "proof": "trainer_state.json", "type": "full", "base_model": None, "size_bytes": first["size_bytes"],
        "stored_bytes": first["stored_bytes"], "created_at": "2023-11-14T22:13:32Z", "metrics": {"loss": 0.2},
        "tags": {}, "sinks": [], "kept": False,
    }  # fmt: skip
    assert first["size_bytes"] == 200_000 + len('{"global_step": 500}') + 10
    assert 0 < first["stored_bytes"] < first["size_bytes"]


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ([], [500, 1000, 200]),
        (["--sort", "step"], [1000, 500, 200]),
        (["--sort", "name"], [200, 500, 1000]),
        (["--sort", "metric:loss"], [1000, 500, 200]),
        (["--sort", "metric:loss:desc"], [200, 500, 1000]),
        (["--filter", "step>=500"], [500, 1000]),
        (["--filter", "step>=500", "--filter", "metric:loss<0.15"], [1000]),
        (["--search", "point-2"], [200]),
        (["--limit", "1"], [500]),
        (["--sort", "created:asc", "--limit", "2"], [200, 1000]),
        (["--filter", "size>100kB", "--filter", "state=verified"], [500, 1000, 200]),
        (["--filter", "size>1GB"], []),
        (["--filter", "created>2023-11-14T22:13:30.5Z"], [500, 1000]),
        (["--filter", "created>2026-11-01"], []),
        (["--filter", "type=lora"], []),
        (["--filter", "tag:x=y"], []),
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value[0], str) else None,
)
def test_sort_filter_search_limit(trained, arguments: list[str], steps: list[int]) -> None:
    done = trained.program("checkpoints", "list", "demo", *arguments, "-o", "json")
    assert [row["step"] for row in rows(done)] == steps


def test_columns_by_choice(trained) -> None:
    program = trained.program
    with gpu_train.Workspace.open(program.home) as workspace:
        first = workspace.checkpoints.list()[0]
        workspace.checkpoints.put(first._replace(kind="lora", base_model="gpt2", tags={"stage": "final"}))
    shown = program("checkpoints", "list", "demo", "--columns", "step,metric:loss,tag:stage,type,base_model").stdout
    assert [line.split() for line in shown.splitlines()] == [
        ["STEP", "METRIC:LOSS", "TAG:STAGE", "TYPE", "BASE_MODEL"], ["500", "0.2", "final", "lora", "gpt2"],
        ["1000", "0.1", "-", "full", "-"], ["200", "0.5", "-", "full", "-"],
    ]  # fmt: skip
    table = program("checkpoints", "list", "--columns", "name, size", "--limit", "1", "-o", "csv").stdout
    assert table == f"name,size\ncheckpoint-500,{first.size_bytes}\n"
    assert rows(program("checkpoints", "list", "--columns", "step", "-o", "json"))[0]["base_model"] == "gpt2"
    ids = program("checkpoints", "list", "--columns", "step", "--limit", "1", "-q").stdout
    assert ids == f"{first.job_id}@{first.name}\n"
    assert "no field 'nam'; there are step, name" in program("checkpoints", "list", "--columns", "nam", code=2).stderr
    found = program("checkpoints", "list", "--filter", "type=lora", "--filter", "tag:stage=final", "-q").stdout
    assert found == program("checkpoints", "list", "--search", "LORA gpt2", "-q").stdout != ""


def test_a_row_without_a_type_is_looked_up_by_show_alone(trained) -> None:
    with gpu_train.Workspace.open(trained.program.home) as workspace:
        for row in workspace.checkpoints.list():
            workspace.checkpoints.put(row._replace(kind=""))
    assert rows(trained.program("checkpoints", "list", "-o", "json"))[0]["type"] is None
    assert json.loads(trained.program("checkpoints", "show", "demo", "-o", "json").stdout)["type"] == "full"


def test_other_formats_and_aliases_say_the_same(trained) -> None:
    program = trained.program
    ids = ["demo-abcdef@checkpoint-500", "demo-abcdef@checkpoint-1000", "demo-abcdef@checkpoint-200"]
    assert program("ckpt", "-q").stdout.split() == ids
    assert program("checkpoint", "list", "--job-id", "demo", "-q").stdout.split() == ids
    lines = [json.loads(line) for line in program("checkpoints", "-o", "jsonl").stdout.splitlines()]
    assert [f"{line['job_id']}@{line['checkpoint_id']}" for line in lines] == ids
    table = list(csv.DictReader(io.StringIO(program("checkpoints", "-o", "csv").stdout)))
    assert [row["step"] for row in table] == ["500", "1000", "200"]
    shown = program("checkpoints").stdout.splitlines()
    assert shown[0].split() == ["JOB", "CHECKPOINT", "STEP", "STATE", "SIZE", "STORED", "METRICS", "CREATED"]
    assert shown[1].startswith("demo-abcdef  checkpoint-500    500  verified")


def test_what_is_not_there(trained) -> None:
    program = trained.program
    assert "no job 'demmo'; did you mean demo" in program("checkpoints", "list", "demmo", code=3).stderr
    assert "checkpoint-500" in program("checkpoints", "show", "demo@checkpoint-501", code=3).stderr
    assert "nearest are" in program("checkpoints", "show", "demo@step:501", code=3).stderr
    assert "no such file" in program("checkpoints", "cat", "demo@latest/model.bin", code=3).stderr
    assert "give one of them" in program("checkpoints", "list", "demo", "--job-id", "x", code=2).stderr
    none = program("checkpoints", "list", "--search", "absent")
    assert none.stdout == ""
    assert none.stderr == "none of 3 checkpoints is like that\n"


def test_show(trained) -> None:
    shown = trained.program("checkpoints", "show", "demo@best").stdout
    assert shown.startswith("checkpoint          checkpoint-1000\n")
    assert "is in               the store, verified, since " in shown
    assert "state               verified (proof: trainer_state.json)\n" in shown
    read = json.loads(trained.program("checkpoints", "show", "demo@step:200", "-o", "json").stdout)
    assert read["checkpoint_id"] == "checkpoint-200"
    assert read["files"] == 3
    assert len(read["record"]) == 64


def test_files_and_tree(trained) -> None:
    program = trained.program
    read = json.loads(program("checkpoints", "files", "demo@latest", "-o", "json").stdout)
    assert {row["path"]: row["size_bytes"] for row in read["files"] if row["kind"] == "file"} == {
        "model.safetensors": 200_000, "trainer_state.json": 20, "sub/rng.pth": 10,
    }  # fmt: skip
    assert [row["target"] for row in read["files"] if row["kind"] == "symlink"] == ["model.safetensors"]
    assert json.loads(program("checkpoints", "tree", "demo@latest", "-o", "json").stdout) == read
    assert program("checkpoints", "files", "demo@latest/sub", "-q").stdout == "sub/rng.pth\n"
    assert program("checkpoints", "tree", "demo@latest/sub/rng.pth").stdout.endswith("rng.pth  10 B in 1 file\n")
    assert program("checkpoints", "tree", "demo@checkpoint-500").stdout.splitlines() == [
        "checkpoint-500  195 KiB in 3 files",
        "├── empty/",
        "├── link -> model.safetensors",
        "├── model.safetensors  195 KiB",
        "├── sub/",
        "│   └── rng.pth  10 B",
        "└── trainer_state.json  20 B",
    ]


def test_cat_writes_the_bytes_and_nothing_else(trained) -> None:
    done = trained.program.spawned("checkpoints", "cat", "demo@step:1000/model.safetensors")
    assert os.fsencode(done.stdout) == trained.files["checkpoint-1000/model.safetensors"]
    assert done.stderr == ""
    assert "write REF/PATH" in trained.program("checkpoints", "cat", "demo@latest", code=2).stderr
    assert "sub is a directory" in trained.program("checkpoints", "cat", "demo@latest/sub", code=2).stderr


def test_restore_gives_the_same_files_and_never_overwrites_unasked(trained) -> None:
    program = trained.program
    said = program("checkpoints", "restore", "demo@step:1000")
    assert said.stdout == ""
    there = program.cwd / "checkpoint-1000"
    for name, data in trained.files.items():
        checkpoint, _, path = name.partition("/")
        if checkpoint == there.name:
            assert (there / path).read_bytes() == data
    assert os.readlink(there / "link") == "model.safetensors"
    assert (there / "empty").is_dir()
    (there / "trainer_state.json").write_text("mine")
    assert "checkpoint-1000" in program("checkpoints", "restore", "demo@step:1000", code=1).stderr
    assert (there / "trainer_state.json").read_text() == "mine"
    program("checkpoints", "restore", "demo@step:1000", "--dest", there, "--overwrite")
    assert (there / "trainer_state.json").read_bytes() == trained.files["checkpoint-1000/trainer_state.json"]


def test_hostile_names_are_shown_and_not_obeyed(trained) -> None:
    name = os.fsdecode(b"evil\x1b]0;pwned\x07\n\xff")
    with gpu_train.Workspace.open(trained.program.home) as workspace:
        known, _ = workspace.checkpoints.resolve("demo@latest")
        with workspace.store.transaction() as txn:
            workspace.checkpoints.add_in(
                txn, gpu_train.Checkpoint("demo-abcdef", name, committed_ns=time.time_ns(), record=known.record)
            )
    shown = trained.program("checkpoints").stdout
    assert "evil\\x1b]0;pwned\\x07\\n\\xff" in shown
    assert "\x1b" not in shown
    assert rows(trained.program("checkpoints", "-o", "json"))[0]["checkpoint_id"] == name
    assert trained.program("checkpoints", "-q").stdout.startswith(f"demo-abcdef@{name}\n")
    assert trained.program("checkpoints", "cat", f"demo@{name}/sub/rng.pth").stdout == "r" * 10
