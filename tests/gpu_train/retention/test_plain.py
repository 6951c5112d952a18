"""Plain files go when they are stored byte for byte and nobody wants them, and otherwise stay, with the reason."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_train.launch import restore_checkpoint
from gpu_train.retention import removal
from gpu_train.retention.plain import plan_loaded, plan_reclaim
from gpu_train.retention.reclaiming import ASIDE, SURE, finish_reclaim, reclaim
from gpu_train.retention.thinning import plan_thinning, thin
from gpu_train.workspace import Workspace

from .conftest import LONG_AGO_NS, Run, noise

BLOCK_BYTES = 4096
Why = dict[str, tuple[str, ...]]


def reasons(run: Run, **how: bool) -> Why:
    return {one.found.name: one.why for one in plan_reclaim(run.workspace, run.job, **how)}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def live(make_run: Callable[..., Run]) -> Run:
    """A running job; this process is its command."""
    return make_run(status="running", pid=os.getpid())


def test_an_ended_job_needs_none_of_them(run: Run, workspace: Workspace) -> None:
    run.write("checkpoint-1")
    run.write("runs/0/checkpoint-2")
    run.write("", {"G_100.pth": noise("g"), "D_100.pth": noise("d"), "notes.txt": b"mine"})
    run.write("best", {"model.safetensors": noise("best"), "config.json": b"{}"})
    run.write("final", {"adapter_model.safetensors": noise("final"), "adapter_config.json": b"{}"})
    before = files_of(run.plain)
    rows = {c.name: c for c in run.capture()}
    plan = plan_reclaim(workspace, run.job)
    assert {one.found.name for one in plan} == set(rows) and all(one.goes for one in plan)
    gone = reclaim(workspace, plan)
    assert {one.found.name for one in gone} == set(rows)
    freed = sum(-(-len(data) // BLOCK_BYTES) * BLOCK_BYTES for name, data in before.items() if name != "notes.txt")
    assert abs(sum(one.size_bytes for one in gone) - freed) <= BLOCK_BYTES * len(before)
    assert [p.name for p in run.plain.rglob("*")] == ["notes.txt"], "with the folders that are empty now"
    assert {data for c in rows.values() for data in run.read(c).values()} == set(before.values()) - {b"mine"}
    assert plan_reclaim(workspace, run.job) == []


def test_the_newest_stays_if_asked_with_what_belongs_to_it(run: Run) -> None:
    run.write("", {f"{part}_{step}.pth": noise(f"{part}{step}") for part in "GD" for step in (100, 200)})
    run.capture()
    assert {name for name, why in reasons(run, keep_latest=True).items() if why} == {"G_200.pth", "D_200.pth"}
    assert not any(reasons(run).values())


def test_only_what_is_stored_as_it_lies_there_goes(run: Run, workspace: Workspace) -> None:
    names = ["same", "touched", "copied", "longer", "other", "more", "less", "unseen", "link"]
    folders = {name: run.write(f"checkpoint-{at}-{name}") for at, name in enumerate(names)}
    (folders["link"] / "to").symlink_to("config.json")
    run.capture()
    run.write("checkpoint-99")
    weights = {name: folder / "model.safetensors" for name, folder in folders.items()}
    os.utime(weights["touched"])
    copied = weights["copied"].read_bytes()
    weights["copied"].unlink()
    weights["copied"].write_bytes(copied)
    weights["longer"].write_bytes(weights["longer"].read_bytes() + b"x")
    weights["other"].write_bytes(weights["other"].read_bytes()[:-1] + b"\0")
    (folders["more"] / "eval.json").write_bytes(b"{}")
    (folders["less"] / "config.json").unlink()
    (folders["unseen"] / "weights.lock").write_bytes(b"a lock with content")
    (folders["link"] / "to").unlink()
    (folders["link"] / "to").symlink_to("model.safetensors")

    why = {name.split("-")[-1]: said for name, said in reasons(run).items()}
    assert why == {
        "same": (), "touched": (), "copied": (),
        "longer": ("model.safetensors is not what is stored",), "other": ("model.safetensors is not what is stored",),
        "more": ("eval.json is not stored",), "less": ("config.json is not what is stored",),
        "unseen": ("weights.lock is not stored",), "link": ("to is not what is stored",),
        "99": ("no whole checkpoint is stored under this name",),
    }  # fmt: skip
    shallow = {name.split("-")[-1]: said for name, said in reasons(run, deep=False).items()}
    assert shallow["same"] == ()
    assert shallow["touched"] == shallow["copied"] == ("its files are not those that were stored",)
    assert len(reclaim(workspace, plan_reclaim(workspace, run.job))) == 3
    assert {p.name for p in run.plain.iterdir()} == {p.name for p in folders.values()} - {
        "checkpoint-0-same", "checkpoint-1-touched", "checkpoint-2-copied",
    } | {"checkpoint-99"}  # fmt: skip


def test_times_that_prove_nothing_are_not_believed(run: Run) -> None:
    weights = run.write("checkpoint-1") / "model.safetensors"
    os.utime(weights)
    now_ns = weights.stat().st_mtime_ns
    run.capture()
    weights.write_bytes(noise("another"))
    os.utime(weights, ns=(now_ns, now_ns))
    assert reasons(run, deep=False) == {"checkpoint-1": ("model.safetensors is not what is stored",)}


def test_what_is_stored_badly_or_not_as_a_whole_is_not_counted_on(run: Run, workspace: Workspace) -> None:
    run.write("checkpoint-1", {"model.bin": noise("1"), "optimizer.pt": noise("2")})
    run.write("checkpoint-2", {"model.bin": noise("3", 500_000)})
    one, two = run.capture()
    thin(workspace, plan_thinning(workspace, [one]))
    pack = max((workspace.home.root / "store" / "packs").rglob("*"), key=lambda path: path.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    assert workspace.store.verify().damaged
    found = reasons(run)
    assert found["checkpoint-1"] == ("what is stored was thinned",)
    [why] = found["checkpoint-2"]
    assert why.startswith("what is stored is damaged: ") and "gpu-train verify" in why
    assert two.state == "verified"


def test_what_is_in_the_trash_is_stored_too(run: Run, workspace: Workspace) -> None:
    for step in (1, 2):
        run.write(f"checkpoint-{step}")
    one, _ = run.capture()
    removal.remove(workspace, [one])
    [plan, _] = plan_reclaim(workspace, run.job)
    assert plan.goes and plan.checkpoint is not None and plan.checkpoint.removed_ns
    workspace.store.gc(trash_days=0)
    assert reasons(run)["checkpoint-1"] == ("no whole checkpoint is stored under this name",)


def test_the_content_that_was_taken_from_the_files_counts(run: Run, workspace: Workspace) -> None:
    run.write("checkpoint-1")
    run.write("checkpoint-2")
    [first, _] = run.capture()
    weights = run.write("checkpoint-1", {"model.safetensors": noise("later")}) / "model.safetensors"
    [second, _] = run.capture()
    assert (second.name, second.seq != first.seq) == ("checkpoint-1~2", True)
    assert reasons(run)["checkpoint-1"] == ()
    weights.write_bytes(noise("checkpoint-1"))
    assert reasons(run)["checkpoint-1"] == ("model.safetensors is not what is stored",)
    removal.remove(workspace, [second])
    assert reasons(run)["checkpoint-1"] == (), "the files are the first content again"


def test_while_it_is_open_or_a_link_leads_there(run: Run) -> None:
    folder, linked = run.write("checkpoint-1"), run.write("checkpoint-2")
    run.write("runs/checkpoint-3")
    (run.plain / "runs" / "last").symlink_to(f"../{linked.name}/config.json")
    run.capture()
    with (folder / "config.json").open("rb"):
        found = reasons(run)
    assert found == {
        "checkpoint-1": ("a process has it open",), "checkpoint-2": ("a link leads to it",), "runs/checkpoint-3": (),
    }  # fmt: skip
    assert reasons(run)["checkpoint-1"] == ()


def test_a_running_job_keeps_what_it_may_come_back_to(live: Run, workspace: Workspace) -> None:
    for step in range(1, 6):
        live.write(f"checkpoint-{step}00")
    live.write("other/checkpoint-7")
    live.write("final")
    live.write("checkpoint-500", {"trainer_state.json": b'{"best_model_checkpoint": "out/checkpoint-300"}'})
    rows = {c.name: c for c in live.capture()}
    workspace.checkpoints.put(rows["checkpoint-200"]._replace(metrics={"eval_loss": 0.1}))
    assert reasons(live) == {
        "checkpoint-100": (),
        "checkpoint-200": ("it is the best one, which the running job may load",),
        "checkpoint-300": ("the newest checkpoint speaks of it",),
        "checkpoint-400": (),
        "checkpoint-500": ("it is the newest",),
        "final": ("it is the newest", "the job is running and may write or read it again"),
        "other/checkpoint-7": ("it is the newest",),
    }


def test_a_running_job_keeps_what_is_named_in_a_text_beside(live: Run) -> None:
    for step in (1, 2, 3):
        live.write(f"iter_000000{step}", {"mp_rank_00/model_optim_rng.pt": noise(str(step))})
    live.write("", {"latest_checkpointed_iteration.txt": b"1"})
    live.write("", {"latest": b"iter_0000002"})
    live.capture()
    assert {name[-1]: bool(why) for name, why in reasons(live).items()} == {"1": False, "2": True, "3": True}


def test_a_running_job_keeps_what_a_lightning_checkpoint_names(live: Run) -> None:
    live.write("", {})
    for step in (1, 2, 3):
        with zipfile.ZipFile(live.plain.joinpath(f"step={step}.ckpt"), "w") as archive:
            archive.writestr("step/data.pkl", pickle.dumps({"best_model_path": "/x/step=1.ckpt"}))
        os.utime(live.plain / f"step={step}.ckpt", ns=(LONG_AGO_NS, LONG_AGO_NS))
    live.capture()
    assert reasons(live) == {
        "step=1.ckpt": ("the newest checkpoint speaks of it",), "step=2.ckpt": (), "step=3.ckpt": ("it is the newest",),
    }  # fmt: skip


def test_nothing_goes_while_something_is_written(live: Run) -> None:
    for step in (1, 2):
        live.write(f"checkpoint-{step}")
    live.capture()
    weights = live.write("checkpoint-3") / "model.safetensors"
    assert reasons(live)["checkpoint-1"] == (), "what was written long ago is not being written"
    os.utime(weights)
    assert reasons(live)["checkpoint-1"] == ("the job is writing checkpoint-3",)


def test_what_changed_since_it_was_planned_stays(run: Run, workspace: Workspace) -> None:
    written, grown = run.write("checkpoint-1"), run.write("checkpoint-2")
    removed, left = run.write("checkpoint-3"), run.write("checkpoint-4")
    run.write("", {"a_1.pt": noise("a1"), "a_2.pt": noise("a2")})
    run.capture()
    plan = plan_reclaim(workspace, run.job)
    assert len(plan) == 6 and all(one.goes for one in plan)
    (written / "config.json").write_bytes(b"[]")
    (grown / "more.json").write_bytes(b"[]")
    shutil.rmtree(removed)
    (run.plain / "a_1.pt").write_bytes(noise("other"))
    assert {one.found.name for one in reclaim(workspace, plan)} == {left.name, "a_2.pt"}
    assert {p.name for p in run.plain.iterdir()} == {written.name, grown.name, "a_1.pt"}
    assert (written / "config.json").read_bytes() == b"[]" and (grown / "more.json").exists()


def test_another_name_for_a_file_is_no_room_freed(run: Run, workspace: Workspace, tmp_path: Path) -> None:
    folder = run.write("checkpoint-1", {"model.bin": noise("1", 100_000), "config.json": b"{}"})
    run.capture()
    [whole] = plan_reclaim(workspace, run.job)
    (tmp_path / "elsewhere").hardlink_to(folder / "model.bin")
    [part] = plan_reclaim(workspace, run.job)
    assert whole.size_bytes - part.size_bytes >= 100_000 and part.goes


def test_what_was_restored_for_a_job(make_run: Callable[..., Run], workspace: Workspace) -> None:
    earlier = make_run("base-aaaaaa")
    parent, other = earlier.add("checkpoint-1"), earlier.add("runs/checkpoint-2")
    job = make_run("next-aaaaaa", parent=parent.ref, loads=(parent.ref, other.ref), status="running", pid=os.getpid())
    own = job.add("checkpoint-9")
    load = workspace.home.load(job.job.id)
    paths = [restore_checkpoint(workspace, c, load) for c in (parent, other, own)]
    (load / "mine").mkdir()
    (load / "mine" / "notes.txt").write_text("mine")
    assert {one.why for one in plan_loaded(workspace, job.job)} == {("the job is running and may read it",)}
    ended = job.job._replace(status="finished")
    workspace.jobs.put(ended)
    (paths[1] / "own.bin").write_bytes(b"changed")
    removal.remove(workspace, [own])
    plan = {one.found.name: one for one in plan_loaded(workspace, ended)}
    assert {name: one.why for name, one in plan.items()} == {
        "load/checkpoint-1": (),
        "load/checkpoint-9": ("what it was restored from is not stored any more",),
        "load/mine": ("what it was restored from is not stored any more",),
        "load/runs_checkpoint-2": ("own.bin is not what is stored",),
    }
    [gone] = reclaim(workspace, plan.values())
    assert (gone.found.name, gone.checkpoint) == ("load/checkpoint-1", parent)
    assert not paths[0].exists() and all(path.exists() for path in paths[1:]) and load.exists()


def test_what_a_kill_left_is_finished(run: Run, workspace: Workspace) -> None:
    aside, sure = run.plain / "runs" / f"{ASIDE}1", run.plain / f"{SURE}2"
    held = run.plain / f"{ASIDE}3"
    for hidden, name in ((aside, "checkpoint-1"), (sure, "checkpoint-2"), (held, "checkpoint-3")):
        run.write(str((hidden / name).relative_to(run.plain)))
    assert plan_reclaim(workspace, run.job) == [], "nobody else sees them"
    fd = os.open(held, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    finish_reclaim(workspace, run.job)
    assert sorted(files_of(run.plain)) == [
        ".reclaim-3/checkpoint-3/config.json", ".reclaim-3/checkpoint-3/model.safetensors",
        "runs/checkpoint-1/config.json", "runs/checkpoint-1/model.safetensors",
    ]  # fmt: skip
    os.close(fd)
    run.write("checkpoint-3", {"newer.bin": b"1"})
    finish_reclaim(workspace, run.job)
    assert files_of(run.plain / "checkpoint-3") == {"newer.bin": b"1"}, "what was written since is not replaced"
    assert (held / "checkpoint-3" / "model.safetensors").exists()
    (run.plain / "checkpoint-3").rename(run.plain / "checkpoint-4")
    finish_reclaim(workspace, run.job)
    assert (run.plain / "checkpoint-3" / "model.safetensors").exists() and not held.exists()


def test_several_at_once_take_each_thing_once(run: Run, workspace: Workspace) -> None:
    for step in range(30):
        run.write(f"checkpoint-{step}")
    run.capture()
    plan = plan_reclaim(workspace, run.job)
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(reclaim, workspace, plan) for _ in range(3)]
        finishing = [pool.submit(finish_reclaim, workspace, run.job) for _ in range(20)]
        gone = [one.found.name for future in done for one in future.result()]
        for future in finishing:
            future.result()
    assert len(gone) == len(set(gone)) and set(gone) | set(reasons(run)) == {f"checkpoint-{n}" for n in range(30)}
    assert len(reclaim(workspace, plan_reclaim(workspace, run.job))) == 30 - len(gone)
    assert list(run.plain.iterdir()) == []
