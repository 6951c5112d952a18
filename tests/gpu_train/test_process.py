from __future__ import annotations

import os
import signal
import subprocess
import sys

from gpu_train.capture.openfiles import any_open_for_writing
from gpu_train.process import boot_id, end_job, is_alive, job_processes, processes_of, start_time


def test_a_process_is_known_by_more_than_its_number() -> None:
    began = start_time(os.getpid())
    assert began is not None
    assert is_alive(os.getpid(), began, boot_id())
    assert not is_alive(os.getpid(), began + 1, boot_id())
    assert not is_alive(os.getpid(), began, "another boot")
    assert not is_alive(None, began, boot_id())
    dead = subprocess.Popen(["true"])
    dead.wait()
    assert start_time(dead.pid) is None


TREE = """
import os, subprocess, sys
own = subprocess.Popen(["sleep", "600"], start_new_session=True, env={**os.environ, "GPU_TRAIN_JOB_ID": "t-aaaaaa"})
near = subprocess.Popen(["sleep", "600"])
print(own.pid, near.pid, flush=True)
if len(sys.argv) > 1: sys.exit()
near.wait()
"""


def tree(*arguments: str) -> tuple[subprocess.Popen[bytes], set[int]]:
    leader = subprocess.Popen([sys.executable, "-c", TREE, *arguments], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    return leader, {int(word) for word in leader.stdout.readline().split()}


def test_a_jobs_processes_and_their_end() -> None:
    leader, others = tree()
    with leader:
        assert processes_of(leader.pid) == {leader.pid, *others}
        end_job(leader.pid, "t-aaaaaa", 10)
        assert leader.wait() == -signal.SIGTERM
        assert all(start_time(pid) is None for pid in others)


def test_what_outlives_its_leader_is_found() -> None:
    leader, others = tree("leave")
    with leader:
        leader.wait()
        assert job_processes(leader.pid, "t-aaaaaa") == others
        end_job(leader.pid, "t-aaaaaa", 10)
        assert job_processes(leader.pid, "t-aaaaaa") == set()


def test_the_deaf_are_killed_and_the_stopped_too() -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as deaf:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        os.kill(deaf.pid, signal.SIGSTOP)
        end_job(deaf.pid, "t-aaaaaa", 0.1)
        assert deaf.wait() == -signal.SIGKILL


def test_who_writes_a_file(tmp_path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(b"w")
    found = path.stat()
    inode = [(found.st_dev, found.st_ino)]
    me = {os.getpid()}
    assert not any_open_for_writing(me, inode)
    with path.open("rb"):
        assert not any_open_for_writing(me, inode)
    with path.open("r+b"):
        assert any_open_for_writing(me, inode)
        path.unlink()
        assert any_open_for_writing(me, inode)
    assert not any_open_for_writing(me, inode)
    assert not any_open_for_writing({2**30}, inode)
