"""Whole jobs on this machine, in real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_train
from gpu_train import Workspace
from gpu_train.process import is_alive, job_processes, start_time
from gpu_train_cas.errors import GpuTrainError


def log_of(home: Path, job_id: str) -> bytes:
    return (home / "artifacts" / job_id / "logs" / "stdout.log").read_bytes()


def job_of(home: Path, job_id: str) -> gpu_train.Job:
    with Workspace.open(home) as workspace:
        job = workspace.jobs.get(job_id)
        assert job is not None
        return job


def events_of(home: Path, job_id: str) -> list[tuple[str, str]]:
    with Workspace.open(home) as workspace:
        return [(e.kind, e.text) for e in workspace.events.list(job_id)]


@pytest.mark.parametrize(
    ("shell", "code", "status", "number"),
    [
        ("exit 0", 0, "finished", None),
        ("exit 7", 7, "failed", None),
        ("exit 255", 255, "failed", None),
        ("kill -TERM $$", 143, "failed", 15),
        ("kill -KILL $$", 137, "failed", 9),
        ("kill -SEGV $$", 139, "failed", 11),
    ],
)
def test_the_exit_code_is_the_jobs(launch, home, shell: str, code: int, status: str, number: int | None) -> None:
    run = launch("sh", "-c", shell)
    assert run.finish()[0] == code
    job = job_of(home, run.job_id)
    assert (job.status, job.exit_code, job.signal) == (status, code, number)
    assert job.ended_ns is not None and job.started_ns is not None and job.ended_ns >= job.started_ns
    assert job.command == ("sh", "-c", shell)


def test_output_is_passed_on_and_kept_byte_for_byte(launch, home) -> None:
    run = launch.script("""
        import os, random
        junk = random.Random(1).randbytes(300_000)
        view = memoryview(junk)
        while view:
            view = view[os.write(1, view):]
        os.write(2, b"\\xff\\x00 no text\\r\\n")
    """)
    code, out, err = run.finish()
    junk = random.Random(1).randbytes(300_000)
    assert (code, out, err) == (0, junk, b"\xff\x00 no text\r\n")
    log = log_of(home, run.job_id)
    assert len(log) == len(junk) + len(err)
    assert log.replace(err, b"", 1) == junk


def test_output_comes_while_the_job_runs(launch) -> None:
    run = launch.script(
        """
        from writing import wait_for_file
        print("first")
        wait_for_file("go-on")
        print("second")
    """
    )
    assert run.process.stdout.readline() == b"first\n"
    (launch.cwd / "go-on").touch()
    assert run.finish()[1] == b"second\n"


def test_the_environment_of_a_job(launch, home) -> None:
    run = launch.script(
        """
        import json, os
        print(json.dumps({k: v for k, v in os.environ.items() if k[:3] in ("GPU", "BT_", "PYT", "MY_")}))
        """,
        name="My Run!", env={"MY_VALUE": "1", "GPU_TRAIN_JOB_ID": "not mine"},
    )  # fmt: skip
    env = json.loads(run.finish()[1])
    job = job_of(home, run.job_id)
    folder = home / "artifacts" / job.id
    assert job.name == "My Run!"
    assert job.id.startswith("my-run-")
    assert env["GPU_TRAIN_HOME"] == str(home)
    assert env["GPU_TRAIN_JOB_ID"] == job.id
    assert env["GPU_TRAIN_JOB_NAME"] == "My Run!"
    assert env["GPU_TRAIN_ATTEMPT"] == "1"
    assert env["GPU_TRAIN_NODE_RANK"] == "0"
    assert env["GPU_TRAIN_CHECKPOINT_DIR"] == str(folder / "checkpoints")
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["MY_VALUE"] == "1"
    assert not {"GPU_TRAIN_LOAD_CHECKPOINT_DIR", "GPU_TRAIN_RESUME_FROM", "BT_CHECKPOINT_DIR"} & env.keys()


def test_aliases_on_request(launch) -> None:
    (launch.cwd / "gpu-train.toml").write_text("[defaults]\nbt_aliases = true\n")
    run = launch("sh", "-c", 'test "$BT_CHECKPOINT_DIR" = "$GPU_TRAIN_CHECKPOINT_DIR"')
    assert run.finish()[0] == 0


def test_host_code_and_packages_are_recorded(launch, home) -> None:
    run = launch.script("print('hello')")
    assert run.finish()[0] == 0
    job = job_of(home, run.job_id)
    assert job.host["hostname"] and job.host["memory_bytes"] > 0 and job.host["cpus"] >= 1
    assert job.environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "numpy" in job.environment["packages"]
    assert job.code is not None and len(job.code) == 16


def test_no_snapshot_when_it_is_turned_off(launch, home) -> None:
    (launch.cwd / "gpu-train.toml").write_text("[defaults]\nsnapshot_code = false\n")
    run = launch("true")
    assert run.finish()[0] == 0
    assert job_of(home, run.job_id).code is None


def test_a_job_that_writes_nothing(launch, home) -> None:
    run = launch("true")
    assert run.finish() == (0, b"", b"")
    with Workspace.open(home) as workspace:
        assert workspace.checkpoints.list(run.job_id) == []
    assert log_of(home, run.job_id) == b""


SAVES_ON_INTERRUPT = """
    import os, signal, sys, time
    from pathlib import Path
    out = Path(os.environ["GPU_TRAIN_CHECKPOINT_DIR"])
    def save(number, frame):
        (out / "interrupted.npy").write_bytes(b"\\x93NUMPY\\x01\\x00" + b"v\\x00" +
            b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\\n" + bytes(4))
        print("saved")
        sys.exit(5)
    signal.signal(signal.SIGINT, save)
    print("ready")
    while True:
        time.sleep(60)
"""


def test_the_first_interrupt_lets_the_job_save(launch, home) -> None:
    run = launch.script(SAVES_ON_INTERRUPT)
    assert run.process.stdout.readline() == b"ready\n"
    os.killpg(run.process.pid, signal.SIGINT)
    code, out, err = run.finish()
    assert (code, out) == (5, b"saved\n")
    assert b"NOTICE the job was interrupted and may save" in err
    job = job_of(home, run.job_id)
    assert job.status == "stopped"
    with Workspace.open(home) as workspace:
        assert [(c.name, c.state) for c in workspace.checkpoints.list(job.id)] == [("interrupted.npy", "verified")]


DEAF = """
    import signal, time
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: print("heard"))
    print("ready")
    while True:
        time.sleep(60)
"""


def test_a_second_interrupt_terminates_then_kills(launch, home) -> None:
    launch.env["GPU_TRAIN_RUN_INTERRUPT_GRACE_S"] = "0.3"
    run = launch.script(DEAF)
    assert run.process.stdout.readline() == b"ready\n"
    for _ in range(2):
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.process.stdout.readline() == b"heard\n"
    assert run.finish()[0] == 137
    assert job_of(home, run.job_id).status == "stopped"


def test_a_third_interrupt_kills_at_once(launch, home) -> None:
    launch.env["GPU_TRAIN_RUN_INTERRUPT_GRACE_S"] = "3600"
    run = launch.script(DEAF)
    assert run.process.stdout.readline() == b"ready\n"
    for _ in range(2):
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.process.stdout.readline() == b"heard\n"
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.finish()[0] == 137


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminating_the_runner_terminates_the_job(launch, home, number: int) -> None:
    run = launch("sh", "-c", "echo ready; exec sleep 600")
    assert run.process.stdout.readline() == b"ready\n"
    os.kill(run.process.pid, number)
    assert run.finish()[0] == 143
    assert job_of(home, run.job_id).status == "stopped"


def test_a_broken_pipe_does_not_stop_the_job(launch, home) -> None:
    run = launch("sh", "-c", "echo one; read x < go; echo two")
    os.mkfifo(launch.cwd / "go")
    assert run.process.stdout.readline() == b"one\n"
    run.process.stdout.close()
    (launch.cwd / "go").write_text("on\n")
    assert run.process.wait(60) == 0
    assert log_of(home, run.job_id) == b"one\ntwo\n"


def test_what_a_command_leaves_running_is_ended(launch, home) -> None:
    run = launch.script("""
        import subprocess, sys
        own = subprocess.Popen(["sleep", "600"], start_new_session=True)
        near = subprocess.Popen(["sleep", "600"])
        print(own.pid, near.pid)
    """)
    code, out, _ = run.finish()
    assert code == 0
    for pid in map(int, out.split()):
        assert start_time(pid) is None
    assert any("2 processes that it left" in text for _, text in events_of(home, run.job_id))


def test_two_jobs_at_once_in_one_home(launch, home) -> None:
    runs = [launch.trainer("hf", env={"STEPS": "2"}) for _ in range(2)]
    for run in runs:
        assert run.finish()[0] == 0
    with Workspace.open(home) as workspace:
        for run in runs:
            rows = workspace.checkpoints.list(run.job_id)
            assert [(c.name, c.state) for c in rows] == [("checkpoint-20", "verified"), ("checkpoint-10", "verified")]


def test_a_detached_job_goes_on_without_a_terminal(home, tmp_path: Path, eventually) -> None:
    script = "cat > /dev/null; test ! -t 0; echo done; exit 4"
    code = f"""
import gpu_train
job = gpu_train.run({{"command": ["sh", "-c", {script!r}]}}, detach=True)
print(job.id, job.status)
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True, timeout=60)
    job_id, status = out.stdout.decode().split()
    assert status == "queued"
    eventually(lambda: not job_of(home, job_id).is_live, "the end")
    job = job_of(home, job_id)
    assert (job.status, job.exit_code) == ("failed", 4)
    assert log_of(home, job_id) == b"done\n"
    assert (home / "artifacts" / job_id / "logs" / "runner.log").read_bytes() == b""
    eventually(lambda: not is_alive(job.runner_pid, job.runner_start, job.boot_id), "the runner's end")


def test_killing_the_runner_ends_the_job_and_captures(launch, home, eventually) -> None:
    run = launch.script(
        """
        import time
        from writing import OUT, safetensors
        (OUT / "model-0100.safetensors").write_bytes(safetensors(1))
        print("written")
        time.sleep(600)
    """
    )
    assert run.process.stdout.readline() == b"written\n"
    job = job_of(home, run.job_id)
    run.process.kill()
    eventually(lambda: job_of(home, job.id).status == "lost", "the mark")
    assert job_processes(job.pid, job.id) == set()
    with Workspace.open(home) as workspace:
        assert [(c.name, c.state) for c in workspace.checkpoints.list(job.id)] == [
            ("model-0100.safetensors", "verified")
        ]
    eventually(lambda: start_time(job.agent_pid) is None, "the agent's end")


def test_a_killed_agent_is_started_again(launch, home, eventually) -> None:
    run = launch.trainer("nanogpt", env={"VERSIONS": "2"})

    def names() -> list[str]:
        with Workspace.open(home) as workspace:
            return [c.name for c in workspace.checkpoints.list(run.job_id)]

    eventually(lambda: names() == ["ckpt.pt"], "the first capture")
    first = job_of(home, run.job_id)
    os.kill(first.agent_pid, signal.SIGKILL)
    eventually(lambda: job_of(home, run.job_id).agent_pid != first.agent_pid, "another agent")
    (launch.cwd / "captured-1").touch()
    eventually(lambda: names() == ["ckpt.pt~2", "ckpt.pt"], "the second capture")
    (launch.cwd / "captured-2").touch()
    assert run.finish()[0] == 0
    assert names() == ["ckpt.pt~2", "ckpt.pt"]
    assert any(kind == "agent" and "was started again" in text for kind, text in events_of(home, run.job_id))


def test_input_that_is_no_terminal_is_passed_on(home, tmp_path: Path) -> None:
    code = "import sys, gpu_train; sys.exit(gpu_train.run({'command': ['cat']}).exit_code)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, input=b"\x00words\xff", capture_output=True, timeout=60, check=True
    )
    assert done.stdout == b"\x00words\xff"


def test_a_program_that_the_kernel_refuses(home, tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_bytes(b"\x7fELF and nothing else")
    program.chmod(0o755)
    with pytest.raises(GpuTrainError, match="could not be started"):
        gpu_train.run({"command": [str(program)], "cwd": tmp_path})
    with Workspace.open(home) as workspace:
        (job,) = workspace.jobs.list()
    assert (job.status, job.exit_code) == ("failed", 127)
    assert "could not be started" in job.reason


def test_a_caller_that_fails_leaves_no_job_running(home, tmp_path: Path, eventually) -> None:
    seen: list[gpu_train.Job] = []

    def fail(job: gpu_train.Job) -> None:
        seen.append(job)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gpu_train.run({"command": ["sleep", "600"], "cwd": tmp_path}, on_start=fail)
    assert start_time(seen[0].pid) is None
    eventually(lambda: job_of(home, seen[0].id).status == "lost", "the mark")


def test_interrupting_the_last_capture_leaves_it_to_the_background(launch, home, eventually) -> None:
    """The agent is held still, so that the last capture is sure to be running when the signals come."""
    run = launch("sh", "-c", "echo ready; read x < go")
    os.mkfifo(launch.cwd / "go")
    assert run.process.stdout.readline() == b"ready\n"
    agent = job_of(home, run.job_id).agent_pid
    os.kill(agent, signal.SIGSTOP)
    try:
        (launch.cwd / "go").write_text("on\n")
        eventually(lambda: (home / "artifacts" / run.job_id / "control" / "end.json").exists(), "the end")
        os.kill(run.process.pid, signal.SIGINT)
        assert b"interrupt again to leave it" in run.process.stderr.readline()
        os.kill(run.process.pid, signal.SIGINT)
        assert run.finish()[0] == 0
        assert job_of(home, run.job_id).status == "running"
    finally:
        os.kill(agent, signal.SIGCONT)
    eventually(lambda: job_of(home, run.job_id).status == "finished", "the agent's word")


@pytest.mark.parametrize("detach", [False, True])
def test_the_projects_files_do_not_become_ours(home, tmp_path: Path, eventually, detach: bool) -> None:
    """The agent and the detached runner work in the project's folder, whose modules may be called anything."""
    for name in ("json", "select", "typing", "numpy", "lmdb", "gpu_train_cas"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    job = gpu_train.run(
        {"command": ["sh", "-c", "echo 1 > $GPU_TRAIN_CHECKPOINT_DIR/w.pkl"], "cwd": tmp_path}, detach=detach
    )
    eventually(lambda: not job_of(home, job.id).is_live, "the end")
    assert job_of(home, job.id).status == "finished"
    logs = home / "artifacts" / job.id / "logs"
    assert (logs / "agent.log").read_bytes() == b""
    with Workspace.open(home) as workspace:
        assert [c.proof for c in workspace.checkpoints.list(job.id)] == ["ended"]
