"""Taking checkpoints away and back: prune, rm, undo, keep."""

import json
import os
import pty
import subprocess

import numpy as np
import pytest

import gpu_train
from gpu_train.errors import Protected
from gpu_train.retention.trash import Trash


def names(program, *arguments: str) -> list[str]:
    return program("checkpoints", "list", *arguments, "-q").stdout.split()


def test_prune_looks_before_it_acts(trained) -> None:
    program = trained.program
    looked = program("checkpoints", "prune", "demo", "--dry-run", "--keep-latest", "1", "-o", "json")
    told = json.loads(looked.stdout)
    assert (told["dry_run"], told["removed"], told["stays"]) == (True, 2, 1)
    assert {row["checkpoint_id"]: (row["fate"], row["why"]) for row in told["checkpoints"]} == {
        "checkpoint-200": ("remove", ["no policy preserves it"]),
        "checkpoint-1000": ("remove", ["no policy preserves it"]),
        "checkpoint-500": ("stay", ["among the latest 1", "it is the newest whole one"]),
    }
    assert told["freed_bytes"] > 0
    assert len(names(program)) == 3
    shown = program("checkpoints", "prune", "-n", "--keep-latest", "1")
    assert shown.stdout.splitlines()[0].split() == ["JOB", "CHECKPOINT", "STEP", "SIZE", "FATE", "WHY"]
    assert "2 checkpoints, 391 KiB, would be moved to the trash\n" in shown.stderr
    assert "`gpu-train gc` frees at most" in shown.stderr and "7 days from now" in shown.stderr
    refused = program("checkpoints", "prune", "demo", "--keep-latest", "1", code=2)
    assert "Move 2 checkpoints, 391 KiB, to the trash? There is no terminal to ask at: give --yes" in refused.stderr
    assert len(names(program)) == 3
    done = program("checkpoints", "prune", "demo", "--keep-latest", "1", "--yes", "-q")
    assert done.stdout.split() == ["demo-abcdef@checkpoint-1000", "demo-abcdef@checkpoint-200"]
    assert names(program) == ["demo-abcdef@checkpoint-500"]
    back = json.loads(program("checkpoints", "undo", "-o", "json").stdout)
    assert (len(back["checkpoints"]), back["lost"]) == (2, [])
    assert len(names(program)) == 3
    program("verify")


def test_prune_by_what_is_set(trained) -> None:
    program = trained.program
    assert "no policy is set: give options such as --keep-latest 3" in program("checkpoints", "prune").stderr
    (program.cwd / "gpu-train.toml").write_text("[retention]\nbest = {metric = 'loss'}\nevery_steps = 500\n")
    told = json.loads(program("checkpoints", "prune", "-n", "-o", "json").stdout)
    assert [row["checkpoint_id"] for row in told["checkpoints"] if row["fate"] == "remove"] == ["checkpoint-200"]
    program("checkpoints", "prune", "-y")
    nothing = program("checkpoints", "prune", "-y")
    assert "nothing to remove: all checkpoints are preserved" in nothing.stderr
    assert program("checkpoints", "prune", "absent", "-y", code=3).stdout == ""


@pytest.mark.parametrize(
    "arguments", [["--keep-latest", "0"], ["--keep-best", ":2"], ["--keep-every-seconds", "soon"]], ids=" ".join
)
def test_policies_that_make_no_sense(trained, arguments: list[str]) -> None:
    assert trained.program("checkpoints", "prune", *arguments, code=2).stdout == ""


def test_rm_trash_and_undo(trained) -> None:
    program = trained.program
    would = program("checkpoints", "rm", "demo@step:200", "-n")
    assert "1 checkpoint would be moved to the trash; `gpu-train gc` frees at most" in would.stderr
    assert "give --yes" in program("checkpoints", "rm", "demo@step:200", code=2).stderr
    program("checkpoints", "rm", "demo@step:200", "demo@best", "--yes")
    assert names(program) == ["demo-abcdef@checkpoint-500"]
    trash = json.loads(program("checkpoints", "list", "--trash", "-o", "json").stdout)
    assert trash["total_checkpoints"] == 2
    assert {row["removed_by"] for row in trash["checkpoints"]} == {"checkpoints rm"}
    assert all(row["leaves_trash_at"] > row["removed_at"] for row in trash["checkpoints"])
    heading = program("checkpoints", "list", "demo", "--trash").stdout.splitlines()[0]
    assert heading.split() == ["CHECKPOINT", "STEP", "STATE", "SIZE", "STORED", "REMOVED", "BY", "TRASHED", "UNTIL"]
    assert (
        "checkpoints undo demo-abcdef@checkpoint-200~1"
        in program("checkpoints", "show", "demo@step:200", code=3).stderr
    )
    assert "1 checkpoint came back" in program("checkpoints", "undo", "demo@checkpoint-200").stderr
    program("checkpoints", "undo")
    assert len(names(program)) == 3
    assert "nothing was removed" in program("checkpoints", "undo", code=3).stderr
    assert program("checkpoints", "list", "--trash").stderr == "the trash is empty\n"


def test_keep_and_unkeep(trained) -> None:
    program = trained.program
    assert program("checkpoints", "keep", "demo@step:200").stderr == "1 checkpoint kept\n"
    assert "1 had that mark before" in program("checkpoints", "keep", "demo@step:200", "demo@best").stderr
    shown = json.loads(program("checkpoints", "show", "demo@step:200", "-o", "json").stdout)
    assert shown["kept"] is True
    assert "kept                yes\n" in program("checkpoints", "show", "demo@step:200").stdout
    assert "KEPT" in program("checkpoints").stdout
    refused = program("checkpoints", "rm", "demo@step:200", "-y", code=Protected.exit_code).stderr
    assert "cannot be removed: it is kept (`gpu-train checkpoints unkeep`)" in refused
    told = json.loads(program("checkpoints", "prune", "-n", "--keep-latest", "1", "-o", "json").stdout)
    assert told["removed"] == 0
    assert program("checkpoints", "unkeep", "demo@step:200").stderr == "1 checkpoint not kept any more\n"
    program("checkpoints", "rm", "demo@step:200", "-y")


def test_tags(trained) -> None:
    program = trained.program
    done = program("checkpoints", "tag", "demo@step:200", "deployed=eu", "note=a=b, c")
    assert done.stderr == "demo-abcdef@checkpoint-200: deployed=eu, note=a=b, c\n"
    refused = program("checkpoints", "rm", "demo@step:200", "-y", code=Protected.exit_code).stderr
    assert "cannot be removed: it is tagged as deployed" in refused
    taken = program("checkpoints", "tag", "demo@step:200", "deployed=", "other=", "-o", "json").stdout
    assert json.loads(taken)["checkpoints"][0]["tags"] == {"note": "a=b, c"}
    assert program("checkpoints", "tag", "demo@step:200", "note=a=b, c", "-q").stdout == "", "as it was"
    assert "'deployed' is no tag; write NAME=VALUE" in program("checkpoints", "tag", "demo", "deployed", code=2).stderr
    assert "'=x' is no tag" in program("checkpoints", "tag", "demo", "=x", code=2).stderr
    program("checkpoints", "rm", "demo@step:200", "-y")


def test_what_gc_has_taken_is_told(trained) -> None:
    program = trained.program
    program("checkpoints", "rm", "demo@step:200", "-y")
    with gpu_train.Workspace.open(program.home) as workspace:
        workspace.store.gc(trash_days=0)
        assert Trash(workspace).list() == []
    lost = program("checkpoints", "undo", "demo@step:200", code=1)
    assert "demo-abcdef@checkpoint-200~1 cannot come back: gc has taken its bytes" in lost.stderr


def answered(program, answer: bytes, *arguments: str) -> tuple[int, str]:
    """Run at a terminal where somebody answers; exit code and what was said."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [program.script, *arguments], env=program.environment(TERM="dumb"), cwd=program.cwd, stdin=theirs,
        stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        os.write(ours, answer)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # EIO: the other end is closed
                break
            if not part:
                break
            said += part
    os.close(ours)
    return process.returncode, said.decode()


def test_a_person_is_asked(trained) -> None:
    program = trained.program
    code, said = answered(program, b"n\n", "checkpoints", "rm", "demo@step:200")
    assert code == 130 and "Move 1 checkpoint, 195 KiB, to the trash? [y/N]" in said
    assert len(names(program)) == 3
    code, said = answered(program, b"y\n", "checkpoints", "rm", "demo@step:200")
    assert code == 0 and len(names(program)) == 2


def test_a_run_keeps_what_it_is_told_to(program) -> None:
    (program.cwd / "train.py").write_text(
        "import gpu_train\n"
        "for step in range(1, 5):\n"
        "    with gpu_train.checkpoint(step=step) as path:\n"
        "        (path / 'w.bin').write_bytes(bytes([step]) * 1000)\n"
    )
    (program.cwd / "gpu-train.toml").write_text("[retention]\nlatest = 3\n")
    for name, options, left in (("set", [], 3), ("told", ["--keep-latest", "1"], 1), ("all", ["--keep-all"], 4)):
        program.spawned("run", "--name", name, *options, "--", "python", "train.py")
        assert len(names(program, name)) == left
    assert "exclude each other" in program("run", "--keep-all", "--keep-latest", "1", "--", "true", code=2).stderr


def test_jobs_rm_projects_rm_and_gc(trained) -> None:
    program = trained.program
    program("checkpoints", "keep", "demo@step:200")
    told = json.loads(program("jobs", "rm", "demo", "-n", "-o", "json").stdout)
    assert (told["removed_jobs"], told["staying_jobs"], told["dry_run"]) == ([], ["demo-abcdef"], True)
    assert {row["checkpoint_id"]: row["fate"] for row in told["checkpoints"]} == {
        "checkpoint-200": "stay", "checkpoint-500": "remove", "checkpoint-1000": "remove",
    }  # fmt: skip
    assert "give --yes" in program("jobs", "rm", "demo", code=2).stderr
    said = program("jobs", "rm", "demo", "--yes")
    assert "checkpoint-200  stay  it is kept (`gpu-train checkpoints unkeep`)" in said.stdout
    assert "0 jobs and 2 checkpoints moved to the trash\njob demo-abcdef stays, with the checkpoints" in said.stderr
    program("checkpoints", "unkeep", "demo@step:200")
    assert "1 job and 1 checkpoint moved to the trash" in program("projects", "rm", "default", "-y").stderr
    assert program("jobs", "-q").stdout == program("projects", "-q").stdout == ""
    assert "job demo-abcdef was removed" in program("jobs", "show", "demo", code=3).stderr
    assert "job demo-abcdef came back\n1 checkpoint came back\n" in program("checkpoints", "undo").stderr
    program("jobs", "rm", "demo", "-y")
    assert json.loads(program("gc", "-o", "json").stdout)["jobs"] == []
    would = json.loads(program("gc", "-n", "--empty-trash", "-o", "json").stdout)
    assert (would["jobs"], len(would["records"])) == (["demo-abcdef"], 3)
    assert "give --yes" in program("gc", "--empty-trash", code=2).stderr
    assert "jobs removed" in program("gc", "--empty-trash", "--yes").stdout
    assert "no job 'demo'" in program("jobs", "show", "demo", code=3).stderr
    assert program("jobs", "rm", "demo", "-y", code=3).stdout == program("projects", "rm", "x", "-y", code=3).stdout


def test_a_running_job_is_not_removed(trained) -> None:
    with gpu_train.Workspace.open(trained.program.home) as workspace:
        workspace.jobs.update("demo-abcdef", status="running")
    assert "demo-abcdef is running and cannot be removed" in trained.program("jobs", "rm", "demo", "-y", code=6).stderr


def test_thin_through_the_program(program, safetensors) -> None:
    for step in (1, 2, 3):
        folder = program.cwd / "run" / f"checkpoint-{step}"
        model = {"w": np.full(50_000, step, np.float32)}
        safetensors(folder / "model.safetensors", model)
        safetensors(folder / "optimizer.safetensors", {"w.exp_avg": model["w"], "w.exp_avg_sq": model["w"] ** 2})
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    program("checkpoints", "import", program.cwd / "run", "--job", "r")
    assert "'r' is a job: say which of its checkpoints" in program("checkpoints", "thin", "r", code=2).stderr
    would = json.loads(program("checkpoints", "thin", "r", "--keep-latest", "1", "-n", "-o", "json").stdout)
    assert (would["thinned"], would["dry_run"]) == (2, True) and would["freed_bytes"] > 0
    assert [row["dropped"] for row in would["checkpoints"]] == [["optimizer.safetensors"]] * 2
    assert "give --yes" in program("checkpoints", "thin", "r", "--keep-latest", "1", code=2).stderr
    done = program("checkpoints", "thin", "r", "--keep-latest", "1", "--yes")
    assert "782 KiB of optimizer state of 2 checkpoints went to the trash" in done.stderr
    again = program("checkpoints", "thin", "r@step:1", "-y")
    assert "it is thin already" in again.stdout
    shown = json.loads(program("checkpoints", "show", "r@step:1", "-o", "json").stdout)
    assert shown["type"] == "optimizer-free" and shown["thinned_at"] and shown["files"] == 2
    assert ": it can serve, not resume\n" in program("checkpoints", "show", "r@step:1").stdout
    assert "2 thinned checkpoints whole again\n" in program("checkpoints", "undo").stderr
    assert json.loads(program("checkpoints", "show", "r@step:1", "-o", "json").stdout)["thinned_at"] is None
    assert "no checkpoint is so old" in program("checkpoints", "thin", "r", "--older-than", "1d", "-y").stderr
