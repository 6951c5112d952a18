"""Replicating from the command line, and getting back what was."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import gpu_train

NAMES = ["checkpoint-200", "checkpoint-1000", "checkpoint-500"]


@pytest.fixture(params=["files", "packs"])
def nas(request: pytest.FixtureRequest, trained, tmp_path: Path) -> Path:
    """A sink that is set for the program, in one layout."""
    nas = tmp_path / "nas"
    (trained.program.cwd / "gpu-train.toml").write_text(
        f'[[sinks.checkpoints]]\ntype = "local"\nname = "nas"\ndest = "{nas}"\nlayout = "{request.param}"\n'
    )
    return nas


def rows(done, name: str) -> list[dict]:
    return json.loads(done.stdout)[name]


def test_what_is_pushed_and_what_waits(trained, nas: Path) -> None:
    program = trained.program
    [one] = rows(program("sinks", "list", "-o", "json"), "sinks")
    assert (one["name"], one["address"], one["for"]) == ("nas", str(nas), ["checkpoints"])
    done = program("sinks", "push", "demo", "-o", "json")
    assert [(r["checkpoint_id"], r["pushed"]) for r in rows(done, "pushes")] == [(name, True) for name in NAMES]
    assert [c["sinks"] for c in rows(program("checkpoints", "list", "-o", "json"), "checkpoints")] == [[str(nas)]] * 3
    again = program("sinks", "push", "demo")
    assert "all of it is there already" in again.stderr
    [one] = rows(program("sinks", "status", "-o", "json"), "sinks")
    assert (one["held"], one["behind"], one["error"]) == (3, 0, None)


def test_one_checkpoint_to_a_place_that_is_set_nowhere(trained, tmp_path: Path) -> None:
    program = trained.program
    done = program("checkpoints", "push", "demo@step:500", "--sink", str(tmp_path / "disk"), "-o", "json")
    assert [r["checkpoint_id"] for r in rows(done, "pushes")] == ["checkpoint-500"]
    kept = tmp_path / "disk" / trained.job_id / "checkpoints"
    assert [path.name for path in kept.iterdir()] == ["checkpoint-500"]
    for name, data in trained.files.items():
        if name.startswith("checkpoint-500/"):
            assert (kept / name).read_bytes() == data


def test_a_sink_that_fails(trained, tmp_path: Path) -> None:
    program = trained.program
    missing = tmp_path / "not" / "mounted"
    done = program("sinks", "push", "demo", "--sink", str(missing), "-o", "json", code=5)
    assert all("is the disk mounted?" in r["error"] for r in rows(done, "pushes"))
    status = program("sinks", "status", "-o", "json", code=5)
    [one] = rows(status, "sinks")
    assert (one["behind"], one["held"]) == (3, 0)
    assert "is the disk mounted?" in one["error"]
    assert "no sink is set for checkpoints" in program("sinks", "push", "demo", code=2).stderr
    assert "no sink is called 'nowhere'" in program("sinks", "push", "demo", "--sink", "nowhere", code=3).stderr


def test_pulling_into_another_home(trained, nas: Path, tmp_path: Path, monkeypatch) -> None:
    program = trained.program
    program("sinks", "push", "demo")
    program.home = tmp_path / "elsewhere"
    listed = rows(program("pull", "nas", "demo", "-n", "-o", "json"), "checkpoints")
    assert [r["checkpoint_id"] for r in listed] == NAMES
    done = program("pull", "nas", "demo@step:1000", "demo@checkpoint-200", "-o", "json")
    assert [r["checkpoint_id"] for r in rows(done, "checkpoints")] == NAMES[:2]
    program("checkpoints", "restore", f"{trained.job_id}@step:1000", "--dest", "back")
    for name, data in trained.files.items():
        folder, _, path = name.partition("/")
        if folder == "checkpoint-1000":
            assert (program.cwd / "back" / path).read_bytes() == data
    assert "it has checkpoint-500" in program("pull", "nas", "demo@checkpoint-50", code=3).stderr
    assert "holds no job 'other'" in program("pull", "nas", "other", code=3).stderr
    program("verify")


def test_a_clone_is_a_home(trained, nas: Path, tmp_path: Path) -> None:
    program = trained.program
    program("sinks", "push", "demo")
    said = program("clone", "nas", tmp_path / "clone").stderr
    assert "3 checkpoints of 1 job" in said
    assert "is not empty" in program("clone", "nas", tmp_path / "clone", code=2).stderr
    program.home = tmp_path / "clone"
    listed = rows(program("checkpoints", "list", "-o", "json"), "checkpoints")
    assert sorted(r["checkpoint_id"] for r in listed) == sorted(NAMES)
    assert all(r["state"] == "verified" for r in listed)
    program("verify")


def damage(home: Path) -> None:
    """Zeros in the middle of every pack."""
    for path in gpu_train.Home(home).packs.rglob("*.pack"):
        path.chmod(0o644)
        with path.open("r+b") as pack:
            size = os.fstat(pack.fileno()).st_size
            pack.seek(size // 3)
            pack.write(bytes(size // 3))


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_a_damaged_home_is_mended(trained, nas: Path, how: str, tmp_path: Path) -> None:
    program = trained.program
    program("sinks", "push", "demo")
    if how == "damaged":
        damage(program.home)
    else:
        shutil.rmtree(program.home / "store" / "packs")
        (program.home / "store" / "packs").mkdir()
    program("verify", code=4)
    done = program("verify", "--repair-from", "nas")
    assert "fetched from nas" in done.stderr
    program("verify")
    program("checkpoints", "restore", "demo@step:500", "--dest", "back")
    model = (program.cwd / "back" / "model.safetensors").read_bytes()
    assert model == trained.files["checkpoint-500/model.safetensors"]


def test_a_sink_that_was_emptied(trained, nas: Path) -> None:
    program = trained.program
    program("sinks", "push", "demo@step:200")
    shutil.rmtree(nas)
    done = program("sinks", "push", "demo", "-o", "json", code=5)
    assert "sinks reset" in rows(done, "pushes")[0]["error"]
    program("sinks", "reset", "nas", "-y")
    done = program("sinks", "push", "demo", "-o", "json")
    assert [r["checkpoint_id"] for r in rows(done, "pushes")] == NAMES


def test_a_home_without_its_packs_reads_from_the_sink(trained, nas: Path, tmp_path: Path) -> None:
    program = trained.program
    program("sinks", "push", "demo")
    shutil.rmtree(program.home / "store" / "packs")
    for step in (200, 500, 1000):
        program("checkpoints", "restore", f"demo@step:{step}", "--dest", f"back/checkpoint-{step}")
    for name, data in trained.files.items():
        assert (program.cwd / "back" / name).read_bytes() == data
    shutil.rmtree(program.home / "cache")
    shutil.rmtree(nas)
    said = program("checkpoints", "restore", "demo@step:200", "--dest", "again", code=4).stderr
    assert "nas: there is no" in said
    assert not (program.cwd / "again").exists()


def test_room_in_a_sink(trained, nas: Path) -> None:
    program = trained.program
    program("sinks", "push", "demo")
    assert (
        "2 checkpoints taken out of nas" in program("sinks", "rm", "nas", "demo@step:200", "demo@step:500", "-y").stderr
    )
    assert "no such checkpoint" in program("sinks", "rm", "nas", "demo@step:200", "-y", code=3).stderr
    listed = rows(program("checkpoints", "list", "-o", "json"), "checkpoints")
    assert {r["step"]: bool(r["sinks"]) for r in listed} == {200: False, 500: False, 1000: True}
    first = json.loads(program("sinks", "gc", "nas", "-o", "json").stdout)
    assert first["deleted"] == 0
    json.loads(program("sinks", "gc", "nas", "-n", "-o", "json").stdout)
    program("sinks", "gc", "nas", "--grace", "0")
    program.home = program.cwd / "clone"
    program("pull", "nas", "--home", str(program.home))
    assert [r["step"] for r in rows(program("checkpoints", "list", "-o", "json"), "checkpoints")] == [1000]


def test_a_lazy_clone_leaves_the_bytes_where_they_are(trained, nas: Path, tmp_path: Path) -> None:
    program = trained.program
    program("sinks", "push", "demo")
    program("clone", "nas", tmp_path / "lazy", "--lazy")
    program.home = tmp_path / "lazy"
    stored = sum(path.stat().st_size for path in (program.home / "store" / "packs").rglob("*.pack"))
    assert stored < 30_000
    report = json.loads(program("verify", "-o", "json").stdout)
    assert report["ok"]
    assert report["elsewhere"] > 0
    assert "only in sinks" in program("verify").stderr
    for words in (["stats"], ["gc"], ["checkpoints", "list"], ["checkpoints", "files", "demo"]):
        program(*words)
    program("checkpoints", "restore", "demo@step:500", "--dest", "back")
    model = (program.cwd / "back" / "model.safetensors").read_bytes()
    assert model == trained.files["checkpoint-500/model.safetensors"]
    program("verify")
    done = program("checkpoints", "push", "demo@step:200", "--sink", str(tmp_path / "another"), "-o", "json")
    assert [r["pushed"] for r in rows(done, "pushes")] == [True]
