"""Deleting plain files of what is stored, by command and by the agent."""

import json

import gpu_train

from .conftest import write_checkpoint

TRAIN = """
import gpu_train
for step in range(1, 5):
    with gpu_train.checkpoint(step=step) as path:
        (path / "w.bin").write_bytes(bytes([step]) * 100_000)
"""


def test_reclaim_looks_before_it_acts(trained) -> None:
    program = trained.program
    home = gpu_train.Home(program.home)
    plain = home.checkpoints("demo-abcdef")
    for step in (200, 500, 1000):
        write_checkpoint(plain / f"checkpoint-{step}", step)
    (plain / "checkpoint-200" / "model.safetensors").write_bytes(b"another")

    told = json.loads(program("reclaim", "demo", "-n", "--keep-latest", "-o", "json").stdout)
    assert (told["dry_run"], told["deleted"], told["stays"]) == (True, 1, 2)
    assert {row["files"]: (row["fate"], row["why"]) for row in told["plain_files"]} == {
        "checkpoint-200": ("stay", ["model.safetensors is not what is stored"]),
        "checkpoint-500": ("stay", ["it is the newest"]),
        "checkpoint-1000": ("delete", []),
    }
    [row] = [row for row in told["plain_files"] if row["fate"] == "delete"]
    assert (row["checkpoint"], row["path"]) == ("demo-abcdef@checkpoint-1000", str(plain / "checkpoint-1000"))
    assert told["freed_bytes"] == row["disk_bytes"] >= 200_000
    assert len(list(plain.iterdir())) == 3

    assert "Delete the plain files of 2 checkpoints, 4" in program("reclaim", code=2).stderr
    program("checkpoints", "rm", "demo@checkpoint-1000", "-y")
    shown = program("reclaim", "-n")
    assert shown.stdout.splitlines()[0].split() == ["JOB", "FILES", "ON", "DISK", "FATE", "WHY"]
    assert "what is stored is in the trash" in shown.stdout
    assert "plain files of 2 checkpoints would be deleted, 4" in shown.stderr
    assert program("reclaim", "-y", "-q").stdout.split() == [str(plain / f"checkpoint-{n}") for n in (500, 1000)]
    assert [p.name for p in plain.iterdir()] == ["checkpoint-200"]
    assert "nothing to delete" in program("reclaim", "-y").stderr
    assert program("reclaim", "absent", code=3).stdout == ""
    program("checkpoints", "undo")
    program("checkpoints", "restore", "demo@step:1000", "--dest", "back")
    assert (program.cwd / "back" / "model.safetensors").read_bytes() == bytes([1000 % 251]) * 200_000


def test_what_cannot_be_read_back_stays(trained) -> None:
    program = trained.program
    plain = gpu_train.Home(program.home).checkpoints("demo-abcdef")
    write_checkpoint(plain / "checkpoint-500", 500)
    for pack in (program.home / "store" / "packs").rglob("*"):
        if pack.is_file():
            pack.chmod(0o644)
            data = bytearray(pack.read_bytes())
            data[len(data) // 4 : 3 * len(data) // 4] = bytes(len(data) // 2)
            pack.write_bytes(data)
    [row] = json.loads(program("reclaim", "-y", "-o", "json").stdout)["plain_files"]
    assert row["fate"] == "stay" and row["why"][0].startswith("what is stored is damaged: ")
    assert (plain / "checkpoint-500").exists()


def test_the_agent_leaves_what_it_is_told_to(program) -> None:
    (program.cwd / "train.py").write_text(TRAIN)
    for setting, left in (("none", []), ("latest", ["checkpoint-4"])):
        (program.cwd / "gpu-train.toml").write_text(f"[defaults]\nplain_checkpoints = '{setting}'\n")
        program.spawned("run", "--name", setting, "--", "python", "train.py")
        job = json.loads(program("jobs", "show", setting, "-o", "json").stdout)["job_id"]
        assert [p.name for p in gpu_train.Home(program.home).checkpoints(job).iterdir()] == left
        assert len(program("checkpoints", "list", setting, "-q").stdout.split()) == 4
    program("verify")
