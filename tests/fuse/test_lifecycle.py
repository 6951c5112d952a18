"""Mounts come and go: background, foreground, crash, load, and the messages when they cannot."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gpu_train_fuse
from gpu_train import Workspace
from gpu_train_cas.errors import Busy, NotFound, UsageError
from gpu_train_fuse import MountUnavailable, State, lifecycle, mountpoint, table


@pytest.fixture
def job(lab):
    job = lab.job("run")
    lab.checkpoint(job, "checkpoint-1", lab.folder("c", {"model.bin": os.urandom(4_000_000)}), step=1)
    return job


def pid_of(path):
    return int(os.getxattr(path, "user.gpu_train.pid"))


def is_alive(pid):
    """A zombie that its parent has not reaped yet counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_stopped(pid):
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def only(lab, text):
    (found,) = gpu_train_fuse.find(text, lab.workspace.home.root)
    return found


def kill(path, until):
    pid = pid_of(path)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid))


# ---- coming --------------------------------------------------------------------------------------


def test_a_mount_answers_when_the_call_returns_and_is_served_by_another_process(lab, job, mount):
    path = mount("run")
    assert path == lab.workspace.home.mounts / job.id
    found = only(lab, job.id)
    assert (found.state, found.path, found.target) == (State.LIVE, path, job.id)
    assert found.home == lab.workspace.home.root
    assert found.pid is not None and found.pid != os.getpid()
    assert found in gpu_train_fuse.mounts()


def test_the_mount_outlives_the_workspace(tmp_path, lab, job, mount):
    path = mount("run")
    lab.workspace.close()
    assert (path / "latest" / "model.bin").stat().st_size == 4_000_000


def test_a_home_that_cannot_be_written(lab, job, mount, tmp_path):
    home = lab.workspace.home.root
    lab.workspace.close()
    done = subprocess.run(["mount", "--bind", home, home], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the right to mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", home], check=True)
        with Workspace.open(home, read_only=True) as workspace:
            path = gpu_train_fuse.mount(workspace, "run", tmp_path / "elsewhere").path
            assert (path / "latest" / "model.bin").stat().st_size == 4_000_000
            gpu_train_fuse.umount(only(lab, str(path)), home / "mnt")
    finally:
        subprocess.run(["umount", "-l", home], check=True)


def test_two_mounts_of_one_job(lab, job, mount, tmp_path):
    one, two = mount("run"), mount("run", tmp_path / "two")
    wanted = (lab.sources / "c" / "model.bin").read_bytes()
    assert (one / "latest" / "model.bin").read_bytes() == (two / "latest" / "model.bin").read_bytes() == wanted
    assert pid_of(one) != pid_of(two)
    gpu_train_fuse.umount(only(lab, str(one)), lab.workspace.home.mounts)
    assert (two / "latest" / "model.bin").stat().st_size == 4_000_000
    assert {m.path for m in gpu_train_fuse.find(job.id, lab.workspace.home.root)} == {two}


def test_a_second_mount_at_the_same_place_says_what_is_there(job, mount):
    path = mount("run")
    with pytest.raises(Busy, match=rf"already shows {job.id}.*gpu-train umount"):
        mount("run")
    with pytest.raises(Busy, match="already shows"):
        mount("all", path)


@pytest.mark.parametrize("default", [True, False])
def test_of_mounts_at_one_place_at_one_moment_one_is_made(lab, job, mount, tmp_path, default):
    path = None if default else tmp_path / "here"
    said = []

    def one():
        try:
            said.append(mount("run", path))
        except Busy as e:
            said.append(str(e))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    where = path or lab.workspace.home.mounts / job.id
    assert said.count(where) == 1
    assert sum("already shows" in str(word) for word in said) == 3
    assert [at for at, _ in table.paths()].count(where) == 1


def test_a_place_where_another_mount_is_on_its_way_is_waited_for(tmp_path):
    with mountpoint.alone(tmp_path / "a", 5):
        with pytest.raises(Busy, match="another mount in"), mountpoint.alone(tmp_path / "b", 0):
            pass
        with mountpoint.alone(tmp_path / "nowhere" / "c", 0):
            pass
    with mountpoint.alone(tmp_path / "b", 0):
        pass


def test_a_job_that_is_not_there_is_told_before_anything_is_made(lab, job, mount):
    with pytest.raises(NotFound, match="no job 'rum'; did you mean run"):
        mount("rum")
    assert not lab.workspace.home.mounts.exists()


def test_a_mount_in_the_home_is_refused(lab, job, mount):
    with pytest.raises(UsageError, match="lies in the home"):
        mount("run", lab.workspace.home.artifacts(job.id))


def test_a_folder_with_something_in_it_can_be_mounted_over_when_asked(job, mount, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    path = mount("run", tmp_path / "full", nonempty=True)
    assert "latest" in os.listdir(path)
    gpu_train_fuse.umount(table.look(path, job.id))
    assert (tmp_path / "full" / "file").read_text() == "kept"


def test_a_name_with_spaces_and_odd_bytes(job, mount, tmp_path, lab):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a b,c\\d \xff"))
    path = mount("run", odd)
    assert (path / "latest" / "model.bin").stat().st_size == 4_000_000
    assert only(lab, str(odd)).path == odd


def test_when_the_process_fails_the_reason_is_told_and_nothing_is_left(lab, job, mount, monkeypatch):
    monkeypatch.setenv("FUSE_LIBRARY_PATH", "/nowhere/libfuse3.so")  # which the process takes over
    with pytest.raises(MountUnavailable, match=r"mounting .* failed: .*libfuse3\.so.* \(log: .*\.log\)"):
        mount("run")
    assert lab.workspace.home.mounts / job.id not in dict(table.paths())


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("sys.stderr.write('fusermount3: no way\\n')", "failed: fusermount3: no way "),
        ("pass", "failed: its process ended without a word "),
        (
            "sys.stderr.write('fuse: bad option\\nTraceback\\n'); "
            'os.write(int(sys.argv[2]), b\'{"state": "failed", "message": "code 4"}\\n\')',
            "failed: code 4; fuse: bad option ",
        ),
    ],
)
def test_what_the_process_and_libfuse_said_last_is_told(tmp_path, program, told):
    command = [sys.executable, "-c", f"import os, sys; {program}"]
    with pytest.raises(MountUnavailable, match=told):
        lifecycle._start(command, tmp_path / "m", tmp_path / "x.log")


# ---- going ---------------------------------------------------------------------------------------


def test_umount_ends_the_process_and_removes_the_default_folder(lab, job, mount, until):
    path = mount("run")
    pid = pid_of(path)
    gpu_train_fuse.umount(only(lab, "run-aaaaaa"), lab.workspace.home.mounts)
    assert not path.exists()
    until(lambda: not is_alive(pid))
    with pytest.raises(NotFound, match="no mount of gpu-train here"):
        gpu_train_fuse.find("run-aaaaaa", lab.workspace.home.root)


def test_umount_keeps_a_folder_that_the_person_chose(lab, job, mount, tmp_path):
    path = mount("run", tmp_path / "mine")
    gpu_train_fuse.umount(only(lab, str(path)), lab.workspace.home.mounts)
    assert path.is_dir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts_cleanly(lab, job, mount, until, number):
    path = mount("run")
    pid = pid_of(path)
    os.kill(pid, number)
    until(lambda: not is_alive(pid))
    assert path not in [at for at, _ in table.paths()]
    log = gpu_train_fuse.log_file(lab.workspace.home, job.id).read_text()
    assert "no longer mounted" in log.splitlines()[-1]


def test_a_mount_in_use_says_by_whom_and_goes_lazily(lab, job, mount, until):
    path = mount("run")
    pid = pid_of(path)
    with (path / "latest" / "model.bin").open("rb") as file:
        with pytest.raises(Busy, match=rf"is in use by .*\(pid {os.getpid()}\).*--lazy"):
            gpu_train_fuse.umount(only(lab, job.id))
        gpu_train_fuse.umount(only(lab, job.id), lazy=True)
        assert not os.path.ismount(path)
        assert len(file.read()) == 4_000_000
        assert is_alive(pid)
    until(lambda: not is_alive(pid))


def test_unmount_under_load(lab, job, mount, until):
    path = mount("run")
    pid, stop, outcomes = pid_of(path), threading.Event(), set()

    def read():
        while not stop.is_set():
            try:
                fd = os.open(path / "latest" / "model.bin", os.O_RDONLY | os.O_DIRECT)
            except OSError as e:
                outcomes.add(e.errno)
                return
            try:
                with os.fdopen(fd, "rb", buffering=0) as file:
                    file.read()
                outcomes.add(0)
            except OSError as e:
                outcomes.add(e.errno)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: 0 in outcomes)
    gpu_train_fuse.umount(only(lab, job.id), lazy=True)
    for thread in threads:
        thread.join(30)
    stop.set()
    assert not any(thread.is_alive() for thread in threads)
    until(lambda: not is_alive(pid))
    assert path not in [at for at, _ in table.paths()]


# ---- crashing ------------------------------------------------------------------------------------


def test_a_killed_mount_is_stale_and_the_next_mount_repairs_it(lab, job, mount, until):
    path = mount("run")
    kill(path, until)
    assert only(lab, job.id).state is State.STALE
    with pytest.raises(OSError):
        os.listdir(path)
    assert mount("run") == path
    assert only(lab, job.id).state is State.LIVE
    assert (path / "latest" / "model.bin").stat().st_size == 4_000_000
    assert [at for at, _ in table.paths()].count(path) == 1


def test_a_mount_killed_while_read_fails_the_readers_at_once(lab, job, mount, until):
    path = mount("run")
    errors = []

    def read():
        try:
            while True:
                fd = os.open(path / "latest" / "model.bin", os.O_RDONLY | os.O_DIRECT)
                with os.fdopen(fd, "rb", buffering=0) as file:
                    file.read()
                started.set()
        except OSError as e:
            errors.append(e.errno)

    started = threading.Event()
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert started.wait(30)
    kill(path, until)
    for thread in threads:
        thread.join(30)
    assert len(errors) == 4
    mount("run")


def test_umount_stale_takes_dead_mounts_away_and_no_others(lab, job, mount, until, tmp_path):
    dead, alive, outside = mount("run"), mount("run", tmp_path / "alive"), mount("run", tmp_path / "x" / "dead")
    kill(dead, until)
    kill(outside, until)
    assert gpu_train_fuse.umount_stale(within=tmp_path / "y") == ([], [])
    done, failed = gpu_train_fuse.umount_stale(lab.workspace.home.mounts, within=tmp_path)
    assert {m.path for m in done} == {dead, outside}
    assert failed == []
    assert not dead.exists()
    assert only(lab, str(alive)).state is State.LIVE


def test_a_stale_mount_of_another_home_is_left_alone(lab, job, mount, until, tmp_path):
    path = mount("run")
    kill(path, until)
    with pytest.raises(NotFound, match="no mount of gpu-train here"):
        gpu_train_fuse.find(job.id, tmp_path / "another")
    assert only(lab, job.id).state is State.STALE


def test_umount_of_one_stale_mount(lab, job, mount, until):
    path = mount("run")
    kill(path, until)
    gpu_train_fuse.umount(only(lab, str(path)), lab.workspace.home.mounts)
    assert not path.exists()


def test_a_stopped_process_is_silent_and_can_be_taken_away(lab, job, mount, monkeypatch, until):
    path = mount("run")
    pid = pid_of(path)
    monkeypatch.setattr(table, "ANSWER_WITHIN_S", 0.3)
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: is_stopped(pid))  # its threads stop one after another
        assert only(lab, job.id).state is State.SILENT
        with pytest.raises(Busy, match="does not answer"):
            mount("run")
        gpu_train_fuse.umount(only(lab, job.id))
        assert path not in [at for at, _ in table.paths()]
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not is_alive(pid))


# ---- in the foreground ---------------------------------------------------------------------------


def test_in_the_foreground_the_caller_serves_until_interrupted(lab, job, mount):
    home, path = lab.workspace.home.root, lab.workspace.home.mounts / job.id
    code = (
        "import sys, gpu_train, gpu_train_fuse\n"
        "with gpu_train.Workspace.open(sys.argv[1], read_only=True) as w:\n"
        "    gpu_train_fuse.mount_here(w, 'run', on_ready=lambda path: print(path, flush=True))\n"
        "print('ended')"
    )
    with subprocess.Popen([sys.executable, "-c", code, home], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{path}\n"
            assert sorted(os.listdir(path)) == ["checkpoints", "job.json", "latest"]
            assert pid_of(path) == process.pid
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert said == "ended\n"
    assert process.returncode == 0
    assert path not in [at for at, _ in table.paths()]


def test_a_home_that_cannot_be_written_can_be_mounted(lab, job, mount, tmp_path):
    lab.workspace.close()
    with Workspace.open(lab.workspace.home, create=False, read_only=True) as workspace:
        found = gpu_train_fuse.mount(workspace, "run", tmp_path / "m")
    assert (found.path / "latest" / "model.bin").stat().st_size == 4_000_000
