"""Thinning what real frameworks write: weights load bit for bit, the optimizer is missed loudly, space comes back."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from gpu_train import marking
from gpu_train.importer import import_checkpoints
from gpu_train.launch import run as run_job
from gpu_train.retention import removal
from gpu_train.retention.optimizer import NO_WEIGHTS, NONE_KNOWN, find_optimizer
from gpu_train.retention.thinning import forecast_thinning, old_ones, plan_thinning, thin
from gpu_train.tables.checkpoint import Checkpoint
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import Incomplete, NotFound

from .conftest import JOB, Run

SIZE = 256
Made = tuple[torch.nn.Module, torch.optim.Optimizer]


@pytest.fixture
def trained() -> Made:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE), torch.nn.LayerNorm(SIZE), torch.nn.Linear(SIZE, SIZE))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(2, SIZE)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def thinned(workspace: Workspace, checkpoint: Checkpoint, out: Path) -> Path:
    """The checkpoint as it is restored after it was thinned and gc has been there."""
    plan = plan_thinning(workspace, [checkpoint])
    assert plan[0].goes, plan[0].why
    told = forecast_thinning(workspace, plan)
    (row,) = thin(workspace, plan)
    assert row.record != checkpoint.record and row.thin["record"] == checkpoint.record
    before = sum(p.stat().st_size for p in workspace.home.packs.rglob("*.pack"))
    report = workspace.store.gc(trash_days=0)
    assert abs(report.block_bytes - told.freed_bytes) < 0.1 * told.freed_bytes + 6000
    assert sum(p.stat().st_size for p in workspace.home.packs.rglob("*.pack")) < before
    assert workspace.store.verify().damaged is False
    workspace.store.restore(workspace.store.record(row.record).root, out)
    return out


def why(workspace: Workspace, checkpoint: Checkpoint) -> str:
    (plan,) = plan_thinning(workspace, [checkpoint])
    assert not plan.goes
    return plan.why[0]


def same(loaded: dict[str, torch.Tensor], model: torch.nn.Module) -> bool:
    wanted = model.state_dict()
    return list(loaded) == list(wanted) and all(torch.equal(loaded[k], wanted[k]) for k in wanted)


def hugging_face(folder: Path, made: Made, safetensors: Callable[..., None]) -> Path:
    """The files of a Hugging Face Trainer's checkpoint."""
    model, optimizer = made
    folder.mkdir(parents=True)
    arrays = {k.replace(".", "_"): v.numpy() for k, v in model.state_dict().items()}
    safetensors(folder / "model.safetensors", arrays)
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save({"last_epoch": 3}, folder / "scheduler.pt")
    torch.save({"python": 1}, folder / "rng_state.pth")
    (folder / "trainer_state.json").write_text('{"global_step": 1}')
    (folder / "optimizer_config.json").write_text("{}")
    return folder


def test_files_of_their_own(workspace: Workspace, run: Run, tmp_path: Path, trained: Made, safetensors) -> None:
    folder = hugging_face(tmp_path / "checkpoint-1", trained, safetensors)
    out = thinned(workspace, run.store(folder, "c"), tmp_path / "out")
    assert {p.name for p in folder.iterdir()} - {p.name for p in out.iterdir()} == {"optimizer.pt"}
    assert all((out / p.name).read_bytes() == (folder / p.name).read_bytes() for p in out.iterdir())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_folders_of_their_own(workspace: Workspace, run: Run, tmp_path: Path, trained: Made) -> None:
    """As Accelerate writes with FSDP: a folder for the model, another for each optimizer."""
    model, optimizer = trained
    folder = tmp_path / "checkpoint-1"
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "pytorch_model_fsdp_0", no_dist=True)
    states = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.save(states, checkpoint_id=folder / "optimizer_0", no_dist=True)
    (folder / "random_states_0.pkl").write_bytes(b"\x80\x04N.")
    out = thinned(workspace, run.store(folder, "c"), tmp_path / "out")
    assert {p.name for p in out.iterdir()} == {"pytorch_model_fsdp_0", "random_states_0.pkl"}
    loaded = {"model": {k: torch.zeros_like(v) for k, v in model.state_dict().items()}}
    dcp.load(loaded, checkpoint_id=out / "pytorch_model_fsdp_0", no_dist=True)
    assert same(loaded["model"], model)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("prefix", ["", "app"])
def test_items_among_the_weights(workspace: Workspace, run: Run, tmp_path: Path, trained: Made, prefix: str) -> None:
    """torch.distributed.checkpoint of model and optimizer into the same files, as torchtitan and Megatron do."""
    model, optimizer = trained
    states: dict = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer), "step": 7}
    folder = tmp_path / "step-1"
    dcp.save({prefix: states} if prefix else states, checkpoint_id=folder, no_dist=True)
    checkpoint = run.store(folder, "step-1")
    out = thinned(workspace, checkpoint, tmp_path / "out")
    assert {p.name for p in out.iterdir()} == {p.name for p in folder.iterdir()}
    parts: dict = {"model": {k: torch.zeros_like(v) for k, v in model.state_dict().items()}, "step": 0}
    dcp.load({prefix: parts} if prefix else parts, checkpoint_id=out, no_dist=True)
    assert same(parts["model"], model) and parts["step"] == 7
    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    with pytest.raises(dcp.api.CheckpointException, match="failed"):
        dcp.load({prefix: state} if prefix else state, checkpoint_id=out, no_dist=True)
    assert out.joinpath("__0_0.distcp").stat().st_size == folder.joinpath("__0_0.distcp").stat().st_size


def test_one_archive_for_all(workspace: Workspace, run: Run, tmp_path: Path, trained: Made) -> None:
    """nanoGPT's ckpt.pt and Megatron's model_optim_rng.pt."""
    model, optimizer = trained
    for name, keys in (("ckpt.pt", ("model", "optimizer")), ("mp_rank_00/model_optim_rng.pt", ("model", "optimizer"))):
        folder = tmp_path / name.replace("/", "_")
        (folder / name).parent.mkdir(parents=True)
        torch.save({keys[0]: model.state_dict(), keys[1]: optimizer.state_dict(), "iteration": 9}, folder / name)
        out = thinned(workspace, run.store(folder, folder.name), tmp_path / f"out-{folder.name}")
        loaded = torch.load(out / name)
        assert set(loaded) == {"model", "iteration"} and same(loaded["model"], model)
        assert (out / name).stat().st_blocks < (folder / name).stat().st_blocks / 2


def test_a_lightning_checkpoint(workspace: Workspace, run: Run, tmp_path: Path, trained: Made) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(SIZE, SIZE)
            self.save_hyperparameters({"optimizer": "adamw"})

        def training_step(self, batch, _):
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    def trainer(steps: int):
        return lightning.Trainer(
            max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, SIZE)), batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, first = Module(), trainer(2)
        first.fit(module, data)
        (tmp_path / "run").mkdir()
        first.save_checkpoint(tmp_path / "run" / "epoch=0-step=2.ckpt")
        out = thinned(workspace, run.store(tmp_path / "run", "run"), tmp_path / "out") / "epoch=0-step=2.ckpt"
        loaded = Module.load_from_checkpoint(out)
        assert same(loaded.state_dict(), module) and loaded.hparams == {"optimizer": "adamw"}
        with pytest.raises(KeyError, match="Trying to restore optimizer state but checkpoint contains only the model"):
            trainer(4).fit(Module(), data, ckpt_path=out, weights_only=False)


def deepspeed(folder: Path, made: Made, *, stage: int) -> Path:
    """The files of DeepSpeed: per rank a part of the flattened fp32 weights with their moments."""
    model, _ = made
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    inside = folder / "global_step1"
    inside.mkdir(parents=True)
    for rank, part in enumerate(flat.chunk(2)):
        moments = {"exp_avg": part.clone(), "exp_avg_sq": part.clone() ** 2}
        state = {"base_optimizer_state": {"state": {0: moments}}, "fp32_flat_groups": [part.clone()]}
        torch.save({"optimizer_state_dict": state}, inside / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if stage == 3:
            empty = {k: torch.empty(0) for k in model.state_dict()}
            torch.save({"module": empty, "optimizer": None}, inside / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if stage < 3:
        half = {k: v.bfloat16() for k, v in model.state_dict().items()}
        torch.save({"module": half, "optimizer": None}, inside / "mp_rank_00_model_states.pt")
    return folder


def test_weights_that_lie_in_the_optimizers_files_are_not_thrown_away(
    workspace: Workspace, run: Run, tmp_path: Path, trained: Made, safetensors
) -> None:
    second = deepspeed(tmp_path / "stage2", trained, stage=2)
    out = thinned(workspace, run.store(second, "stage2"), tmp_path / "out")
    assert [p.name for p in out.rglob("*.pt")] == ["mp_rank_00_model_states.pt"]
    third = deepspeed(tmp_path / "stage3", trained, stage=3)
    bare = run.store(third, "bare")
    assert why(workspace, bare) == NO_WEIGHTS
    removal.remove(workspace, [bare])
    arrays = {k.replace(".", "_"): v.numpy() for k, v in trained[0].state_dict().items()}
    safetensors(third / "model.safetensors", arrays)  # gathered, as Hugging Face can have it
    out = thinned(workspace, run.store(third, "stage3"), tmp_path / "out3")
    assert (out / "model.safetensors").read_bytes() == (third / "model.safetensors").read_bytes()


def test_what_cannot_be_thinned_says_why(workspace: Workspace, run: Run, tmp_path: Path, trained: Made) -> None:
    model, optimizer = trained
    cases = {
        "weights only": (model.state_dict(), {}, NONE_KNOWN),
        "other protocol": (
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, {"pickle_protocol": 4},
            "its optimizer's state cannot be taken out: ckpt.pt: the pickle is not of protocol 2",
        ),
        "optimizer only": ({"optimizer": optimizer.state_dict()}, {}, NO_WEIGHTS),
        "old format": (
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            {"_use_new_zipfile_serialization": False}, NONE_KNOWN,
        ),
    }  # fmt: skip
    for name, (state, options, expected) in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        torch.save(state, folder / "ckpt.pt", **options)
        assert why(workspace, run.store(folder, name)).startswith(expected), name


def test_small_files_are_looked_into(workspace: Workspace, run: Run, tmp_path: Path) -> None:
    model = torch.nn.Linear(20, 20)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 20)).sum().backward()
    optimizer.step()
    (tmp_path / "tiny").mkdir()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "tiny" / "ckpt.pt")
    checkpoint = run.store(tmp_path / "tiny", "tiny")
    found = find_optimizer(workspace.store.reader, workspace.store.record(checkpoint.record).root)
    assert list(found.edits) == [b"ckpt.pt"] and found.edits[b"ckpt.pt"].keys == ["optimizer"]
    (row,) = thin(workspace, plan_thinning(workspace, [checkpoint]))
    workspace.store.restore(workspace.store.record(row.record).root, tmp_path / "out")
    assert same(torch.load(tmp_path / "out" / "ckpt.pt")["model"], model)


# The life of a thinned checkpoint


@pytest.fixture
def three(workspace: Workspace, run: Run, tmp_path: Path, trained: Made, safetensors) -> list[Checkpoint]:
    """Three checkpoints like a Hugging Face Trainer's."""
    rows = []
    for step in (1, 2, 3):
        with torch.no_grad():
            for state in trained[1].state.values():
                state["exp_avg"].mul_(1.01)
        folder = hugging_face(tmp_path / f"checkpoint-{step}", trained, safetensors)
        (stored,) = import_checkpoints(workspace, folder, JOB, name=f"c-{step}")
        rows.append(stored.checkpoint)
    return rows


def test_undo_gives_the_state_back(workspace: Workspace, three: list[Checkpoint], tmp_path: Path) -> None:
    done = thin(workspace, plan_thinning(workspace, three[:2]))
    assert all(c.files == 5 and c.size_bytes < before.size_bytes for c, before in zip(done, three, strict=False))
    assert [c.name for c in workspace.checkpoints.list(JOB) if c.thin] == ["c-2", "c-1"]
    assert why(workspace, done[0]) == "it is thin already"
    undone = removal.undo(workspace, [done[1].ref])
    assert ([c.name for c in undone.whole], undone.checkpoints, undone.lost) == (["c-2"], [], [])
    assert workspace.checkpoints.resolve("train@c-2")[0] == three[1]
    assert [c.name for c in removal.undo(workspace).whole] == ["c-1"]
    assert {c.name: c for c in workspace.checkpoints.list(JOB)} == {c.name: c for c in three}
    with pytest.raises(NotFound):
        removal.undo(workspace)
    workspace.store.gc(trash_days=0)
    assert workspace.store.verify().damaged is False
    assert len(list(workspace.store.records("checkpoint"))) == 3


def test_the_last_command_is_the_one_that_is_undone(workspace: Workspace, three: list[Checkpoint]) -> None:
    thin(workspace, plan_thinning(workspace, three[:1]))
    removal.remove(workspace, [three[1]])
    assert [c.name for c in removal.undo(workspace).checkpoints] == ["c-2"]
    removal.remove(workspace, [three[1]])
    thin(workspace, plan_thinning(workspace, [three[2]]))
    assert [c.name for c in removal.undo(workspace).whole] == ["c-3"]
    undone = removal.undo(workspace, [JOB])
    assert ([c.name for c in undone.checkpoints], [c.name for c in undone.whole]) == (["c-2"], ["c-1"])


def test_what_gc_has_taken_is_lost_and_the_weights_stay(
    workspace: Workspace, three: list[Checkpoint], tmp_path
) -> None:
    thin(workspace, plan_thinning(workspace, three[:1]))
    workspace.store.gc(trash_days=0)
    undone = removal.undo(workspace, ["train@c-1"])
    assert ([c.name for c in undone.lost], undone.whole) == (["c-1"], [])
    row, _ = workspace.checkpoints.resolve("train@c-1/model.safetensors")
    root = workspace.store.record(row.record).root
    file = workspace.store.reader.open(workspace.store.reader.lookup(root, b"model.safetensors"))
    assert file.pread(file.size_bytes, 0) == (tmp_path / "checkpoint-1" / "model.safetensors").read_bytes()


def test_the_same_content_again_makes_it_whole(workspace: Workspace, three: list[Checkpoint], tmp_path: Path) -> None:
    thin(workspace, plan_thinning(workspace, three[:1]))
    workspace.store.gc(trash_days=0)
    (again,) = import_checkpoints(workspace, tmp_path / "checkpoint-1", JOB, name="c-1")
    assert (again.is_new, again.checkpoint.thin, again.checkpoint.seq) == (False, {}, three[0].seq)
    workspace.store.restore(workspace.store.record(again.checkpoint.record).root, tmp_path / "out")
    assert (tmp_path / "out" / "optimizer.pt").read_bytes() == (tmp_path / "checkpoint-1" / "optimizer.pt").read_bytes()
    workspace.store.gc(trash_days=0)
    assert len(list(workspace.store.records("checkpoint"))) == 3


def test_a_removed_thin_one_comes_back_thin(workspace: Workspace, three: list[Checkpoint]) -> None:
    (row,) = thin(workspace, plan_thinning(workspace, three[:1]))
    removal.remove(workspace, [row])
    assert removal.undo(workspace).checkpoints == [row]
    assert [c.name for c in removal.undo(workspace).whole] == ["c-1"]


def test_what_may_not_be_thinned(make_run: Callable[..., Run], workspace: Workspace, three: list[Checkpoint]) -> None:
    one, two, last = three
    marking.keep(workspace, [one])
    make_run("child-aaaaaa", status="running", parent=two.ref)
    assert "it is kept" in why(workspace, workspace.checkpoints.resolve("train@c-1")[0])
    assert "started from it" in why(workspace, two)
    workspace.jobs.update(JOB, status="running")
    assert "newest whole one of a job that is still running" in why(workspace, last)
    workspace.jobs.update(JOB, status="finished")
    plan = plan_thinning(workspace, [last])
    assert plan[0].goes
    marking.keep(workspace, [last])
    assert thin(workspace, plan) == [], "what is kept meanwhile stays as it is"
    marking.keep(workspace, [last], kept=False)
    workspace.checkpoints.put(last._replace(tags={"deployed": "yes"}))
    assert plan_thinning(workspace, workspace.checkpoints.list(JOB)[:1])[0].goes, "what serves needs no optimizer"


def test_which_ones_are_old(workspace: Workspace, run: Run) -> None:
    now = time.time_ns()
    for number in range(4):
        row = run.add(f"c-{number}")
        workspace.checkpoints.put(row._replace(created_ns=now - (4 - number) * 3600 * 10**9))
    run.add("half", state="incomplete")
    names = lambda **said: [c.name for c in old_ones(workspace, run.job, **said)]  # noqa: E731
    assert names() == ["c-2", "c-1", "c-0"]
    assert names(keep_latest=3) == ["c-0"]
    assert names(older_than_s=2.5 * 3600) == ["c-1", "c-0"]
    assert names(keep_latest=3, older_than_s=5 * 3600) == []


def test_a_job_does_not_resume_from_it(
    workspace: Workspace, three: list[Checkpoint], home: Path, tmp_path: Path
) -> None:
    thin(workspace, plan_thinning(workspace, three[:1]))
    with pytest.raises(Incomplete, match="was thinned: it can serve, not resume"):
        run_job({"command": ["true"], "cwd": str(tmp_path)}, resume_from="train@c-1", home=home)
    job = run_job({"command": ["ls"], "cwd": str(tmp_path)}, load="train@c-1", home=home)
    assert job.exit_code == 0
    assert not (workspace.home.load(job.id) / "c-1" / "optimizer.pt").exists()


def test_deltas_of_what_was_thinned_stay_readable(
    workspace: Workspace, three: list[Checkpoint], tmp_path: Path
) -> None:
    """The moments of a later checkpoint may be stored against those that were dropped."""
    plan = plan_thinning(workspace, three[:2])
    told = forecast_thinning(workspace, plan)
    thin(workspace, plan)
    report = workspace.store.gc(trash_days=0)
    assert told.held_bytes > 0 and report.held_bytes > 0
    workspace.store.restore(workspace.store.record(three[2].record).root, tmp_path / "out")
    for path in (tmp_path / "checkpoint-3").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
