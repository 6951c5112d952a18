"""The agent in real jobs: rotation, files written over, deleted, unfinished and oddly named ones."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import gpu_train
from gpu_train import Workspace
from gpu_train.capture.board import read_board
from gpu_train.process import boot_id, module_command, module_environment
from gpu_train.tables.checkpoint import Checkpoint


def rows(home: Path, job_id: str) -> list[Checkpoint]:
    """A job's checkpoints, first captured first."""
    with Workspace.open(home) as workspace:
        return workspace.checkpoints.list(job_id)[::-1]


def states(home: Path, job_id: str) -> list[tuple[str, str, str]]:
    return [(c.name, c.state, c.proof) for c in rows(home, job_id)]


def content(home: Path, checkpoint: Checkpoint) -> dict[str, bytes]:
    with Workspace.open(home) as workspace:
        assert checkpoint.record is not None
        root = workspace.store.record(checkpoint.record).root
        reader = workspace.store.reader
        return {
            os.fsdecode(path): reader.open(entry).pread(entry.size_bytes, 0)
            for path, entry in reader.walk(root)
            if entry.files == 1 and entry.kind == 0
        }


def event_kinds(home: Path, job_id: str) -> list[str]:
    with Workspace.open(home) as workspace:
        return [e.kind for e in workspace.events.list(job_id)]


def test_what_the_trainer_rotates_away_is_captured(launch, home) -> None:
    run = launch.trainer("hf", env={"STEPS": "4"})
    code, _, err = run.finish()
    assert code == 0, err
    found = rows(home, run.job_id)
    assert [(c.name, c.step, c.state, c.proof) for c in found] == [
        (f"checkpoint-{n}", n, "verified", "hf-trainer") for n in (10, 20, 30, 40)
    ]
    folder = home / "artifacts" / run.job_id
    assert list((folder / "checkpoints").iterdir()) == []
    assert list((folder / "pins").iterdir()) == []
    for checkpoint in found:
        files = content(home, checkpoint)
        assert len(files) == 7 == checkpoint.files
        assert json.loads(files["trainer_state.json"])["global_step"] == checkpoint.step
        assert checkpoint.metrics == {"loss": 1 / checkpoint.step, "learning_rate": 0.1}
    with Workspace.open(home) as workspace:
        assert [(m.step, m.source) for m in workspace.metrics.list(run.job_id)] == [
            (n, "trainer_state") for n in (10, 20, 30, 40)
        ]


def test_a_file_written_over_in_place_gives_one_checkpoint_per_version(launch, home, eventually) -> None:
    run = launch.trainer("nanogpt", env={"VERSIONS": "3"})
    for version in (1, 2, 3):
        eventually(lambda version=version: len(rows(home, run.job_id)) >= version, f"version {version}")
        assert len(states(home, run.job_id)) == version, states(home, run.job_id)
        (launch.cwd / f"captured-{version}").touch()
    assert run.finish()[0] == 0
    found = rows(home, run.job_id)
    assert [c.name for c in found] == ["ckpt.pt", "ckpt.pt~2", "ckpt.pt~3"]
    assert len({content(home, c)["ckpt.pt"] for c in found}) == 3
    with Workspace.open(home) as workspace:
        assert workspace.checkpoints.resolve(f"{run.job_id}@ckpt.pt")[0].name == "ckpt.pt~3"
        assert workspace.checkpoints.resolve(f"{run.job_id}@ckpt.pt~1/ckpt.pt")[0].name == "ckpt.pt"


def test_a_checkpoint_without_its_marker_waits_and_is_incomplete_at_the_end(launch, home, eventually) -> None:
    run = launch.trainer("dcp", env={"NO_METADATA": "1"})
    assert run.process.stdout.readline() == b"shards\n"
    (launch.cwd / "go-on").touch()
    (launch.cwd / "end").touch()
    assert run.finish()[0] == 0
    ((name, state, proof),) = states(home, run.job_id)
    assert (name, state, proof) == ("step-100", "incomplete", ".metadata (torch-dcp)")
    assert len(content(home, rows(home, run.job_id)[0])) == 2
    assert "incomplete" in event_kinds(home, run.job_id)
    with Workspace.open(home) as workspace:
        assert workspace.checkpoints.latest(run.job_id) is None


def test_a_marker_completes_it_while_the_job_runs(launch, home, eventually) -> None:
    run = launch.trainer("dcp")
    assert run.process.stdout.readline() == b"shards\n"
    (launch.cwd / "go-on").touch()
    eventually(lambda: states(home, run.job_id) == [("step-100", "verified", "torch-dcp")], "the capture")
    (launch.cwd / "end").touch()
    assert run.finish()[0] == 0
    assert set(content(home, rows(home, run.job_id)[0])) == {".metadata", "__0_0.distcp", "__1_0.distcp"}


def test_the_file_of_a_slow_rank_completes_the_checkpoint(launch, home, eventually) -> None:
    run = launch.script("""
        from writing import OUT, torch_zip, wait_for_file
        for step in (1, 2):
            folder = OUT / f"checkpoint-{step}"
            folder.mkdir()
            (folder / "rng_state_0.pth").write_bytes(torch_zip(step))
            (folder / "trainer_state.json").write_text("{}")
            wait_for_file(f"captured-{step}")
        (OUT / "checkpoint-1" / "rng_state_1.pth").write_bytes(torch_zip(3))
        wait_for_file("end")
    """)
    for step in (1, 2):
        eventually(lambda step=step: len(rows(home, run.job_id)) == step, "the capture")
        (launch.cwd / f"captured-{step}").touch()
    eventually(lambda: rows(home, run.job_id)[0].files == 3, "the late file")
    (launch.cwd / "end").touch()
    assert run.finish()[0] == 0
    assert states(home, run.job_id) == [
        ("checkpoint-1", "verified", "hf-trainer"), ("checkpoint-2", "verified", "hf-trainer"),
    ]  # fmt: skip
    assert set(content(home, rows(home, run.job_id)[0])) == {"rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"}
    assert "completed" in event_kinds(home, run.job_id)
    with Workspace.open(home) as workspace:
        latest = workspace.checkpoints.latest(run.job_id)
    assert latest is not None
    assert latest.name == "checkpoint-2"


def test_checkpoints_of_many_files_among_others(launch, home) -> None:
    run = launch.script("""
        import json, os
        from writing import OUT, safetensors
        os.mkdir(OUT / "tf")
        index = bytes.fromhex("57fb808b247547db")
        for name, data in (("ckpt-5.data-00000-of-00001", b"d" * 99), ("ckpt-5.index", index)):
            (OUT / "tf" / name).write_bytes(data)
        (OUT / "tf" / "checkpoint").write_text("ckpt-5")
        for part in ("unet", "vae"):
            os.mkdir(OUT / part)
            (OUT / part / "diffusion_pytorch_model.safetensors").write_bytes(safetensors(1, 16))
        (OUT / "model_index.json").write_text(json.dumps({"unet": ["a", "b"], "vae": ["a", "b"]}))
        os.mkdir(OUT / "samples")
        (OUT / "samples" / "1.png").write_bytes(b"png")
    """)
    assert run.finish()[0] == 0
    assert sorted(states(home, run.job_id)) == [
        ("final", "verified", "diffusers"), ("tf/ckpt-5", "verified", "tensorflow"),
    ]  # fmt: skip
    found = {c.name: c for c in rows(home, run.job_id)}
    assert found["tf/ckpt-5"].step == 5
    assert set(content(home, found["tf/ckpt-5"])) == {"ckpt-5.data-00000-of-00001", "ckpt-5.index"}
    assert set(content(home, found["final"])) == {
        "model_index.json", "unet/diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.safetensors",
    }  # fmt: skip


def test_rules_of_the_project(launch, home, eventually) -> None:
    (launch.cwd / "gpu-train.toml").write_text("""
        [[capture.rules]]
        name = "mine"
        names = ["snap-*"]
        complete = ["END"]
        temporary = ["{name}.saving"]
    """)
    run = launch.script("""
        import os
        from writing import OUT, safetensors, wait_for_file
        for name in ("snap-1", "snap-2"):
            (OUT / f"{name}.saving").mkdir()
            (OUT / f"{name}.saving" / "w.safetensors").write_bytes(safetensors(1))
        os.rename(OUT / "snap-1.saving", OUT / "snap-1")
        print("written", flush=True)
        wait_for_file("go-on")
        (OUT / "snap-1" / "END").write_text("")
    """)
    assert run.process.stdout.readline() == b"written\n"
    (launch.cwd / "go-on").touch()
    assert run.finish()[0] == 0
    assert sorted(states(home, run.job_id)) == [
        ("snap-1", "verified", "mine"),
        ("snap-2.saving", "incomplete", "its end: snap-2.saving says that it is being written"),
    ]


def test_an_open_file_is_not_taken(launch, home, eventually) -> None:
    run = launch.script("""
        from writing import OUT, is_pinned, wait_for, wait_for_file
        with open(OUT / "state.pkl", "wb") as file:
            file.write(b"half")
            file.flush()
            print("half")
            wait_for_file("go-on")
            file.write(b" and half")
        wait_for_file("end")
    """)
    assert run.process.stdout.readline() == b"half\n"
    with Workspace.open(home) as workspace:
        pins = workspace.home.pins(run.job_id)
    eventually(lambda: list(pins.glob("*/files/state.pkl")), "the pin")
    (launch.cwd / "go-on").touch()
    eventually(lambda: rows(home, run.job_id), "the capture")
    (launch.cwd / "end").touch()
    assert run.finish()[0] == 0
    assert states(home, run.job_id) == [("state.pkl", "verified", "quiet")]
    assert content(home, rows(home, run.job_id)[0]) == {"state.pkl": b"half and half"}


def test_explicit_commits_are_captured_although_deleted_at_once(launch, home) -> None:
    run = launch.script("""
        import shutil, gpu_train
        from writing import safetensors
        for step in range(1, 21):
            with gpu_train.checkpoint(step=step, metrics={"loss": 1 / step}, tags={"kind": "test"}) as path:
                (path / "model.safetensors").write_bytes(safetensors(step, 64))
                (path / "empty").mkdir()
            shutil.rmtree(gpu_train.checkpoint_dir() / f"checkpoint-{step}")
    """)
    code, _, err = run.finish()
    assert (code, err) == (0, b"")
    found = rows(home, run.job_id)
    assert [(c.name, c.step, c.proof, c.metrics, c.tags) for c in found] == [
        (f"checkpoint-{n}", n, "explicit", {"loss": 1 / n}, {"kind": "test"}) for n in range(1, 21)
    ]
    assert "gone" not in event_kinds(home, run.job_id)


def test_a_commit_outside_of_the_checkpoint_folder(launch, home) -> None:
    run = launch.script("""
        import gpu_train
        from pathlib import Path
        Path("out").mkdir()
        Path("out/weights.bin").write_bytes(b"w" * 100)
        gpu_train.commit("out/weights.bin", step=3)
        gpu_train.commit(Path("out"), tags={"which": "folder"})
    """)
    assert run.finish()[0] == 0
    found = rows(home, run.job_id)
    assert [(c.name, c.step, c.proof) for c in found] == [("weights.bin", 3, "explicit"), ("out", None, "explicit")]


def test_a_later_commit_improves_the_row_that_is_there(launch, home, eventually) -> None:
    run = launch.script("""
        import gpu_train
        from writing import safetensors, wait_for_file
        path = gpu_train.checkpoint_dir() / "model-v.safetensors"
        path.write_bytes(safetensors(1))
        wait_for_file("go-on")
        gpu_train.commit(path, step=9, metrics={"loss": 0.5}, tags={"good": "yes"})
    """)
    eventually(lambda: rows(home, run.job_id), "the capture")
    (launch.cwd / "go-on").touch()
    assert run.finish()[0] == 0
    (row,) = rows(home, run.job_id)
    assert (row.step, row.proof, row.metrics, row.tags) == (9, "explicit", {"loss": 0.5}, {"good": "yes"})


def test_flush_returns_when_all_that_was_committed_is_stored(launch, home) -> None:
    run = launch.script("""
        import os
        import gpu_train
        from gpu_train.active import append_line
        from writing import safetensors

        job = os.environ["GPU_TRAIN_JOB_ID"]
        gpu_train.log({"loss": 0.5}, step=1)
        for step in (2, 3):
            with gpu_train.checkpoint(step=step) as path:
                (path / "model.safetensors").write_bytes(safetensors(step))
        print(gpu_train.flush())
        with gpu_train.Workspace.open() as workspace:
            print([(c.name, c.state, dict(c.metrics)) for c in workspace.checkpoints.list(job)])
        control = gpu_train.checkpoint_dir().parent / "control"
        append_line(control / "commits.jsonl", {"id": "x", "path": "/nowhere/checkpoint-9"})
        print(gpu_train.flush())
    """)
    code, out, err = run.finish()
    assert code == 0, err
    first, stored, second = out.decode().splitlines()
    assert (first, second) == ("True", "False")
    assert stored == str([(f"checkpoint-{n}", "verified", {"loss": 0.5}) for n in (3, 2)])
    assert b"/nowhere/checkpoint-9 was committed but is not stored: it was deleted" in err


def test_a_commit_from_another_filesystem_may_be_deleted_at_once(launch, home, tmp_path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second filesystem here")
    run = launch.script("""
        import shutil, tempfile
        from pathlib import Path
        import gpu_train
        from writing import safetensors

        with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
            for step in (1, 2, 3):
                path = Path(scratch, f"checkpoint-{step}")
                path.mkdir()
                (path / "model.safetensors").write_bytes(safetensors(step))
                gpu_train.commit(path)
                shutil.rmtree(path)
    """)
    code, _, err = run.finish()
    assert code == 0, err
    assert err.count(b"such a commit waits until it is stored") == 1
    assert states(home, run.job_id) == [(f"checkpoint-{n}", "verified", "explicit") for n in (1, 2, 3)]


def test_names_of_all_kinds(launch, home) -> None:
    run = launch.script(r"""
        import os
        from writing import OUT, safetensors, torch_zip
        odd = os.fsencode(OUT) + b"/checkpoint-\xff\n-7"
        os.mkdir(odd)
        with open(odd + b"/w\xfe.safetensors", "wb") as file:
            file.write(safetensors(1))
        nested = OUT / "my run" / "checkpoint-500"
        nested.mkdir(parents=True)
        (nested / "model.safetensors").write_bytes(safetensors(2))
        (OUT / "model.safetensors").write_bytes(safetensors(3))
        (OUT / "config.json").write_text("{}")
        (OUT / "notes.log").write_text("nothing")
        for name in ("tmp-checkpoint-600", "checkpoint-700.tmp", ".hidden"):
            (OUT / name).mkdir()
            (OUT / name / "model.safetensors").write_bytes(safetensors(4))
        (OUT / "half.pt.partial").write_bytes(torch_zip(5))
        os.symlink("my run/checkpoint-500", OUT / "latest")
    """)
    code, _, err = run.finish()
    assert (code, err) == (0, b"")
    found = {c.name: c for c in rows(home, run.job_id)}
    odd = os.fsdecode(b"checkpoint-\xff\n-7")
    assert set(found) == {odd, "my run/checkpoint-500", "final", "tmp-checkpoint-600"}
    assert found["tmp-checkpoint-600"].state == "incomplete"
    assert found[odd].step == 7
    assert set(content(home, found[odd])) == {os.fsdecode(b"w\xfe.safetensors")}
    assert set(content(home, found["final"])) == {"model.safetensors", "config.json"}
    with Workspace.open(home) as workspace:
        chosen, path = workspace.checkpoints.resolve(f"{run.job_id}@my run/checkpoint-500/model.safetensors")
    assert (chosen.name, path) == ("my run/checkpoint-500", "model.safetensors")


def test_a_crash_in_the_middle_of_a_save(launch, home) -> None:
    run = launch.script("""
        import os, signal
        from writing import OUT, is_pinned, safetensors, torch_zip, wait_for
        (OUT / "checkpoint-1").mkdir()
        (OUT / "checkpoint-1" / "config.json").write_text("{}")
        (OUT / "checkpoint-1" / "model.safetensors").write_bytes(safetensors(1))
        (OUT / "ckpt.pt").write_bytes(torch_zip(1)[:-10])
        wait_for(lambda: is_pinned(OUT))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert run.finish()[0] == 137
    found = {c.name: c for c in rows(home, run.job_id)}
    assert found["ckpt.pt"].state == "incomplete"
    assert "cut short" in found["ckpt.pt"].proof
    assert found["checkpoint-1"].state == "incomplete"


def test_metrics_and_events_reach_the_registry(launch, home) -> None:
    run = launch.script("""
        import gpu_train
        from writing import safetensors
        gpu_train.event("begun", lr=0.1)
        for step in range(5):
            gpu_train.log({"loss": 1.0 - step / 10, "big": 2**70}, step=step)
        with gpu_train.checkpoint(step=3, metrics={"accuracy": 0.75}) as path:
            (path / "model.safetensors").write_bytes(safetensors(1, 16))
        gpu_train.log({"eval_loss": 0.25, "accuracy": 0.1}, step=3)
    """)
    code, _, err = run.finish()
    assert (code, err) == (0, b"")
    with Workspace.open(home) as workspace:
        metrics = workspace.metrics.list(run.job_id)
        events = workspace.events.list(run.job_id)
        (row,) = workspace.checkpoints.list(run.job_id)
    assert [m.step for m in metrics] == [0, 1, 2, 3, 4, 3]
    assert [(e.text, e.fields, e.source) for e in events if e.kind == "note"] == [("begun", {"lr": 0.1}, "job")]
    assert [e.kind for e in events if e.source == "gpu-train"] == ["started", "captured", "ended"] or [
        e.kind for e in events if e.source == "gpu-train"
    ] == ["started", "ended", "captured"]
    assert row.metrics["accuracy"] == 0.75
    assert row.metrics["loss"] == 0.7
    assert row.metrics["eval_loss"] == 0.25


def test_resuming_from_a_checkpoint(launch, home) -> None:
    first = launch.script("""
        import gpu_train
        from writing import safetensors
        with gpu_train.checkpoint(step=5) as path:
            (path / "model.safetensors").write_bytes(safetensors(5))
        (gpu_train.checkpoint_dir() / "ckpt.pt").write_bytes(b"plain file")
        gpu_train.commit(gpu_train.checkpoint_dir() / "ckpt.pt")
    """)
    assert first.finish()[0] == 0
    second = launch.script(
        """
        import os, gpu_train
        from pathlib import Path
        resume = gpu_train.latest_checkpoint()
        print(resume, gpu_train.load_dir(), sorted(p.name for p in gpu_train.load_dir().iterdir()), resume.is_file())
        assert os.environ["GPU_TRAIN_RESUME_FROM"] == str(resume)
        """,
        resume_from=f"{first.job_id}@ckpt.pt", load=[f"{first.job_id}@step:5"],
    )  # fmt: skip
    code, out, err = second.finish()
    assert (code, err) == (0, b"")
    load = home / "artifacts" / second.job_id / "load"
    assert out.decode().strip() == f"{load}/ckpt.pt/ckpt.pt {load} ['checkpoint-5', 'ckpt.pt'] True"
    with Workspace.open(home) as workspace:
        job = workspace.jobs.find(second.job_id)
    assert job.parent == f"{first.job_id}@ckpt.pt~1"
    assert job.loads == (f"{first.job_id}@ckpt.pt~1", f"{first.job_id}@checkpoint-5~1")
    assert gpu_train.latest_checkpoint(second.job_id) is None


def test_the_newest_checkpoint_as_plain_files(launch, home) -> None:
    run = launch.script("""
        import gpu_train
        with gpu_train.checkpoint(name="kept") as path:
            (path / "w.bin").write_bytes(b"kept")
    """)
    assert run.finish()[0] == 0
    plain = home / "artifacts" / run.job_id / "checkpoints" / "kept"
    assert gpu_train.latest_checkpoint(run.job_id) == plain
    (plain / "w.bin").write_bytes(b"not what was stored")
    restored = gpu_train.latest_checkpoint(run.job_id)
    assert restored == home / "artifacts" / run.job_id / "load" / "kept"
    assert (restored / "w.bin").read_bytes() == b"kept"


def test_the_agent_gives_way_to_the_training_and_the_sentry_does_not(launch, home) -> None:
    run = launch.script("""
        from writing import wait_for_file
        print("here", flush=True)
        wait_for_file("end")
    """)
    assert run.process.stdout.readline() == b"here\n"
    agent = read_board(home / "artifacts" / run.job_id / "control").pid
    assert agent is not None
    (sentry,) = map(int, Path(f"/proc/{agent}/task/{agent}/children").read_text().split())
    own = os.nice(0)
    assert os.getpriority(os.PRIO_PROCESS, agent) == min(19, own + 10)
    assert os.getpriority(os.PRIO_PROCESS, sentry) == own
    groups = [Path(f"/proc/{pid}/autogroup") for pid in (agent, sentry)]
    if groups[0].exists():
        told = [group.read_text().split() for group in groups]
        assert [words[-1] for words in told] == ["10", "0"]
        assert told[0][0] != told[1][0]
    (launch.cwd / "end").touch()
    assert run.finish()[0] == 0


def test_an_agent_whose_runner_died_as_it_began_ends_quietly(home, tmp_path) -> None:
    with Workspace.open(home) as workspace:
        workspace.jobs.put(gpu_train.Job("orphan-aaaaaa", "orphan", status="running", created_ns=1, boot_id=boot_id()))
    answer, unread = os.pipe()
    lifeline, cut = os.pipe()
    os.close(answer)
    os.close(cut)
    try:
        words = ("--home", str(home), "--job", "orphan-aaaaaa", "--lifeline", str(lifeline))
        done = subprocess.run(
            module_command("gpu_train.capture", *words),
            env=module_environment(dict(os.environ)), stdout=unread, stderr=subprocess.PIPE, pass_fds=[lifeline],
            cwd=tmp_path, check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(unread)
        os.close(lifeline)
    assert (done.returncode, done.stderr) == (0, b"")
    with Workspace.open(home) as workspace:
        job = workspace.jobs.get("orphan-aaaaaa")
    assert job is not None
    assert (job.status, job.reason) == ("lost", "its runner died")
