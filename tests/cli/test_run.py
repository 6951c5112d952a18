"""`run` and what one does with a running job, through the console script."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import gpu_train

PYTHON = sys.executable
DEADLINE_S = 60.0
TRAIN = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["GPU_TRAIN_CHECKPOINT_DIR"])
stopped = []
signal.signal(signal.SIGINT, lambda *_: stopped.append("SIGINT"))
signal.signal(signal.SIGTERM, lambda *_: stopped.append("SIGTERM"))

def save(step):
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    (path / "model.bin").write_bytes(bytes([step]) * 50_000)
    state = {"global_step": step, "log_history": [{"step": step, "loss": 1 / step}]}
    (path / "trainer_state.json").write_text(json.dumps(state))

save(1)
print("saved 1", flush=True)
until = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
if not until:
    print("on stderr", file=sys.stderr, flush=True)
while until and not until.exists() and not stopped:
    time.sleep(0.02)
save(2)
print("saved 2", *stopped, flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def train(program) -> Path:
    path = program.cwd / "train.py"
    path.write_text(TRAIN)
    return path


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.02)


def jobs(program) -> list[dict]:
    return json.loads(program("jobs", "-o", "json").stdout)["jobs"]


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize("code", [0, 7])
def test_run_passes_output_and_exit_code_through_and_speaks_on_stderr(program, code: int) -> None:
    done = program.spawned("run", "--name", "My Run", "--", PYTHON, "train.py", str(code), code=code)
    assert done.stdout == "saved 1\nsaved 2\n"
    job = jobs(program)[0]
    assert job["status"] == ("finished" if code == 0 else "failed")
    assert job["exit_code"] == code
    said = done.stderr.splitlines()
    assert said[0].startswith(f"gpu-train: job {job['job_id']}, code {job['code']} (1 file, ")
    assert said[1] == "on stderr"
    assert said[2].startswith(f"gpu-train: job {job['job_id']} {job['status']} (exit code {code}) after ")
    assert said[3].startswith("gpu-train: 2 checkpoints captured, ")
    assert len(said) == 4
    listed = json.loads(program("checkpoints", "list", "My Run", "-o", "json").stdout)["checkpoints"]
    assert [row["checkpoint_id"] for row in listed] == ["checkpoint-2", "checkpoint-1"]
    assert listed[1]["metrics"] == {"loss": 1.0}
    logged = program("logs", job["job_id"]).stdout.splitlines()
    assert [line for line in logged if line != "on stderr"] == ["saved 1", "saved 2"]
    assert len(logged) == 3  # two pipes have no order between them


def test_run_hands_down_what_was_asked_for(program) -> None:
    code = "import os; print(*(os.environ.get(k) for k in ('A', 'B', 'CUDA_VISIBLE_DEVICES', 'GPU_TRAIN_JOB_NAME')))"
    done = program.spawned(
        "run", "--name", "n", "--project", "p", "--gpus", "cpu", "--env", "A=1=2", "--env", "B", PYTHON, "-c", code,
        B="from here",
    )  # fmt: skip
    assert done.stdout == "1=2 from here  n\n"
    assert "no checkpoints: the command wrote none" in done.stderr
    assert jobs(program)[0]["project"] == "p"
    assert "'C' is not set here" in program("run", "--env", "C", "--", "true", code=2).stderr


def test_what_cannot_run_makes_no_job(program) -> None:
    assert "'no-such-program' is not on PATH" in program("run", "--", "no-such-program", code=2).stderr
    assert "Missing argument 'COMMAND...'" in program("run", code=2).stderr
    assert "provider 'mars' is not known" in program("run", "--provider", "mars", "--", "true", code=2).stderr
    assert "no job 'absent'" in program("run", "--resume-from", "absent@latest", "--", "true", code=3).stderr
    assert jobs(program) == []


@pytest.mark.usefixtures("train")
def test_interrupting_lets_the_command_save_and_captures_it(program, tmp_path: Path) -> None:
    with program.started("run", "--", PYTHON, "train.py", "9", tmp_path / "never") as process:
        assert process.stdout.readline() == b"saved 1\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert out == b"saved 2 SIGINT\n"
    assert process.returncode == 9
    assert b"interrupted and may save" in err
    assert b"Traceback" not in err
    assert jobs(program)[0]["status"] == "stopped"
    assert jobs(program)[0]["checkpoints"] == 2


@pytest.mark.usefixtures("train")
def test_a_detached_job_can_be_followed_to_its_end(program, tmp_path: Path) -> None:
    go = tmp_path / "go"
    job_id = program.spawned("run", "--detach", "--", PYTHON, "train.py", "0", go).stdout.strip()
    assert job_id.startswith("train-")
    with program.started("logs", "-f", job_id) as process:
        assert process.stdout.readline() == b"saved 1\n"
        assert process.poll() is None
        go.touch()
        assert process.stdout.read() == b"saved 2\n"
        assert process.wait(DEADLINE_S) == 0
    wait_for(lambda: jobs(program)[0]["status"] == "finished")
    assert jobs(program)[0]["checkpoints"] == 2


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(
    ("words", "status", "saved"),
    [(["stop"], "stopped", 2), (["kill"], "killed", 1), (["kill", "--all"], "killed", 1)],
    ids=["stop", "kill", "kill all"],
)
def test_ending_a_job(program, tmp_path: Path, words: list[str], status: str, saved: int) -> None:
    job_id = program.spawned("run", "-d", "--", PYTHON, "train.py", "0", tmp_path / "never").stdout.strip()
    wait_for(lambda: "saved 1" in program("logs", job_id).stdout)
    said = program.spawned(*words, *([] if "--all" in words else [job_id])).stderr
    assert said.startswith(f"job {job_id} is {status} (exit code ")
    assert jobs(program)[0]["checkpoints"] == saved
    assert "name jobs, or give --all" in program("kill", code=2).stderr
    assert program("kill", "--all").stderr == "no job is running\n"
    assert program("stop", "absent", code=3).stdout == ""


@pytest.mark.usefixtures("train")
def test_reconcile_finishes_what_a_dead_runner_left(program, tmp_path: Path) -> None:
    with program.started("run", "--", PYTHON, "train.py", "0", tmp_path / "never") as process:
        assert process.stdout.readline() == b"saved 1\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
    changed = json.loads(program.spawned("reconcile", "-o", "json").stdout)["jobs"]
    assert len(changed) <= 1  # the agent may have been faster
    wait_for(lambda: jobs(program)[0]["status"] == "lost")
    assert jobs(program)[0]["checkpoints"] >= 1
    assert program("reconcile").stderr.startswith("nothing to put right")
    assert b"".join([program("logs", "train", "-f").stdout.encode()]).startswith(b"saved 1\n")


def test_resuming_from_a_checkpoint(trained) -> None:
    code = "import os; p = os.environ['GPU_TRAIN_RESUME_FROM']; print(open(p + '/trainer_state.json').read())"
    done = trained.program.spawned("run", "--name", "more", "--resume-from", "demo@step:1000", "--", PYTHON, "-c", code)
    assert done.stdout == '{"global_step": 1000}\n'
    shown = json.loads(trained.program("jobs", "show", "more", "-o", "json").stdout)
    assert shown["parent"].startswith("demo-abcdef@checkpoint-1000")


def test_import_a_run_and_one_checkpoint_and_again(program, tmp_path: Path) -> None:
    run = tmp_path / "outputs"
    for step in (1000, 200):
        (run / f"checkpoint-{step}").mkdir(parents=True)
        (run / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        (run / f"checkpoint-{step}" / "model.bin").write_bytes(b"m" * step)
    done = program("checkpoints", "import", run, "--job", "old")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["checkpoint-200", "checkpoint-1000"]
    assert "there already" not in done.stderr
    again = program("checkpoints", "import", run, "--job", "old")
    assert "2 checkpoints were there already with the same content; nothing was changed" in again.stderr
    read = json.loads(program("checkpoints", "list", "old", "-o", "json").stdout)
    assert read["total_checkpoints"] == 2
    one = json.loads(
        program("checkpoints", "import", run / "checkpoint-200", "--job", "old", "--name", "start", "-o", "json").stdout
    )
    assert [(row["checkpoint_id"], row["is_new"]) for row in one["checkpoints"]] == [("start", True)]
    (program.cwd / "ckpt.pt").write_bytes(b"weights")
    program("checkpoints", "import", program.cwd / "ckpt.pt", "--job", "one-file")
    assert program("checkpoints", "cat", "one-file").stdout == "weights"
    (program.cwd / "ckpt.pt").unlink()
    assert "holds nothing" in program("checkpoints", "import", program.cwd, "--job", "x", code=3).stderr
    assert gpu_train.Home(program.home).root.is_dir()
